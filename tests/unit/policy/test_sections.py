"""Sections that cells of any place have: resources, copied files, rights, outside tools."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from belljar.plan.make import granted
from belljar.plan.obstacles import refusals
from belljar.policy.limits import (
    CAPABILITIES,
    GRANTABLE,
    REFUSE,
    REPORT,
    USUAL_CAPABILITIES,
    Granted,
    Risk,
    Tier,
)
from belljar.policy.load import examine
from belljar.policy.model import Policy
from belljar.policy.sections import (
    Rights,
    common_rights,
)


def problems(text: str, base: Path) -> list[str]:
    """What is wrong with a policy, as it is told."""
    return [problem.line("policy.yaml") for problem in examine(text.encode(), base=base).problems]


TARGET = """\
belljar: 1
risk: low
network:
  stand_ins:
    shop:
      kind: cell
      names: [shop.example]
      ports: [{ports}]
      files: [{files}]
"""


def test_all_ports_stand_alone(tmp_path: Path) -> None:
    """With others beside it, nobody would know what was meant."""
    assert problems(TARGET.format(ports="all", files=""), tmp_path) == []
    (told,) = problems(TARGET.format(ports="all, 80", files=""), tmp_path)
    assert "`all` can't be combined" in told


RIGHTS = st.builds(
    Rights,
    capabilities=st.lists(st.sampled_from(["SYS_PTRACE", "NET_ADMIN", "BPF"]), unique=True),
    seccomp=st.sampled_from(["default", "unconfined"]),
    privileged=st.booleans(),
)


def test_capabilities_have_the_kernels_numbers() -> None:
    """As linux/capability.h has them: a wrong number would grant another right."""
    known = {"CHOWN": 0, "SYS_MODULE": 16, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "BPF": 39}
    assert {name: CAPABILITIES[name] for name in known} == known
    assert CAPABILITIES["CHECKPOINT_RESTORE"] == len(CAPABILITIES) - 1 == 40
    assert Granted(capabilities=("SYS_PTRACE",)).mask == 1 << 19
    assert set(CAPABILITIES) >= USUAL_CAPABILITIES
    assert sum(1 << CAPABILITIES[name] for name in USUAL_CAPABILITIES) == 0xA80425FB


@pytest.mark.parametrize(
    "words",
    [
        {"capabilities": ["SYS_EVERYTHING"]},
        {"capabilities": "SYS_PTRACE"},
        {"capabilities": [7]},
        {"seccomp": "profile.json"},
        {"privileged": "true"},
        {"devices": ["/dev/kvm"]},
    ],
)
def test_what_is_no_right_is_refused(words: dict[str, object]) -> None:
    """Nothing is passed over that an author may rely on."""
    with pytest.raises(ValidationError):
        Rights.model_validate(words)


@pytest.mark.promise("2.4")
def test_a_shared_kernel_grants_nothing() -> None:
    """Nor does any tier grant what would reach the guest agent or open its kernel."""
    assert GRANTABLE[Tier.CONTAINER] == Granted()
    never = {"SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "BPF", "PERFMON", "SYS_BOOT"}
    for most in GRANTABLE.values():
        assert not never & set(most.capabilities)
    assert "SYS_PTRACE" not in GRANTABLE[Tier.GVISOR].capabilities


@pytest.mark.promise("2.4")
@given(RIGHTS, st.sampled_from(list(Tier)))
def test_a_tier_grants_what_is_asked_for_or_says_what_not(rights: Rights, tier: Tier) -> None:
    """Never more than its list; and what is not granted is among its refusals."""
    found, most = granted(rights, tier), GRANTABLE[tier]
    assert set(found.capabilities) <= set(most.capabilities)
    assert set(found.calls) <= set(most.calls)
    if not list(refusals(rights, tier)) and not rights.privileged:
        assert set(found.capabilities) == set(rights.capabilities)
        assert bool(found.calls) == (rights.seccomp == "unconfined")
    if rights == Rights():
        assert found == Granted()


@pytest.mark.promise("1.4")
@given(RIGHTS, RIGHTS, st.sampled_from(list(Tier)))
def test_what_two_policies_have_in_common_is_no_more_than_either(
    ours: Rights, floor: Rights, tier: Tier
) -> None:
    """In what any tier grants; and it is within the floor."""
    common = ours.common(floor)
    assert common_rights(common, floor) == common
    kept = granted(common, tier)
    for other in (ours, floor):
        allowed = granted(other, tier)
        assert set(kept.capabilities) <= set(allowed.capabilities)
        assert set(kept.calls) <= set(allowed.calls)


@pytest.mark.promise("1.4")
def test_a_policy_that_says_nothing_bounds_nothing() -> None:
    """One that says `{}` forbids all; a task that asks for nothing has nothing."""
    asked = Rights(privileged=True)
    assert common_rights(asked, None) == asked
    assert common_rights(asked, Rights()) == Rights()
    assert common_rights(None, asked) is None
    assert all(common_rights(None, floor) is None for floor in (None, Rights(), asked))


@pytest.mark.promise("2.4")
@pytest.mark.parametrize(("tier", "other"), list(itertools.permutations(Tier, 2)))
def test_a_stronger_tier_grants_no_less(tier: Tier, other: Tier) -> None:
    """So that raising a tier never takes a right away."""
    if tier < other:
        assert set(GRANTABLE[tier].capabilities) <= set(GRANTABLE[other].capabilities)
        assert set(GRANTABLE[tier].calls) <= set(GRANTABLE[other].calls)


def policy(text: str, risk: str = "high") -> Policy:
    """The policy with that line."""
    read, problems = examine(f"belljar: 1\nrisk: {risk}\n{text}\n".encode(), base=None)
    assert read is not None, problems
    return read


@pytest.mark.promise("1.9")
@pytest.mark.parametrize("risk", Risk)
def test_the_default_follows_the_risk(risk: Risk) -> None:
    """From `high` on refused, below reported; what is written comes first."""
    expected = REFUSE if risk >= Risk.HIGH else REPORT
    assert policy("", str(risk)).host_tools_rule == expected
    assert policy("host_tools: report", str(risk)).host_tools_rule == REPORT
    assert policy("host_tools: refuse", str(risk)).host_tools_rule == REFUSE


def test_what_is_named_is_allowed_and_nothing_else() -> None:
    """By the tool's name or its server's."""
    rule = policy("host_tools: {allow: [web_search, notes]}").host_tools_rule
    assert rule.permits(("web_search",))
    assert rule.permits(("mcp_server_notes", "notes"))
    assert not rule.permits(("code_execution",))
    assert not REFUSE.permits(("web_search",))
    assert REPORT.permits(("anything",))


@pytest.mark.parametrize(
    "text",
    [
        "off",
        "[a]",
        "{}",
        "{alow: [a]}",
        "{allow: []}",
        "{allow: a}",
        "{allow: [1]}",
        "{allow: ['']}",
        '{allow: ["\\e"]}',
        "true",
    ],
)
def test_anything_else_is_refused_at_its_place(text: str) -> None:
    """With the field's name."""
    read, problems = examine(f"belljar: 1\nrisk: high\nhost_tools: {text}\n".encode(), base=None)
    assert read is None
    assert all(problem.field.startswith("host_tools") for problem in problems)
    assert {problem.mark.line for problem in problems} == {3}
