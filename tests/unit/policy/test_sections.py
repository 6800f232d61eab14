"""Sections that cells of any place have: risk, tier, resources, files, rights, a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from belljar.errors import PolicyError
from belljar.plan.make import granted
from belljar.plan.obstacles import refusals
from belljar.policy import limits, sections
from belljar.policy.limits import Resources, Risk, Tier
from belljar.policy.load import Examined, examine, policy_of
from belljar.policy.model import Policy
from belljar.policy.sections import CellData, FileCopy, ModelBlock, Rights, TaskFile, trees_of


def read(text: str, risk: str = "high") -> Examined:
    return examine(f"belljar: 1\nrisk: {risk}\n{text}\n".encode(), base=None)


RIGHTS = st.builds(
    Rights,
    capabilities=st.lists(st.sampled_from(["SYS_PTRACE", "NET_ADMIN", "BPF"]), unique=True),
    seccomp=st.sampled_from(["default", "unconfined"]),
    privileged=st.booleans(),
)


def test_capabilities_have_the_kernels_numbers() -> None:
    """As linux/capability.h has them: a wrong number would grant another right."""
    known = {"CHOWN": 0, "SYS_MODULE": 16, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "BPF": 39}
    assert {name: limits.CAPABILITIES[name] for name in known} == known
    assert limits.CAPABILITIES["CHECKPOINT_RESTORE"] == len(limits.CAPABILITIES) - 1 == 40
    assert sum(1 << limits.CAPABILITIES[name] for name in limits.USUAL_CAPABILITIES) == 0xA80425FB


@pytest.mark.promise("2.4")
def test_a_shared_kernel_grants_nothing() -> None:
    """Nor does any tier grant what would reach the guest agent or open its kernel."""
    assert limits.GRANTABLE[limits.Tier.CONTAINER] == limits.Granted()
    never = {"SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "BPF", "PERFMON", "SYS_BOOT"}
    for most in limits.GRANTABLE.values():
        assert not never & set(most.capabilities)
    assert "SYS_PTRACE" not in limits.GRANTABLE[limits.Tier.GVISOR].capabilities


@pytest.mark.promise("2.4")
@given(RIGHTS, st.sampled_from(list(limits.Tier)))
def test_a_tier_grants_what_is_asked_for_or_says_what_not(
    rights: Rights, tier: limits.Tier
) -> None:
    """Never more than its list; and what is not granted is among its refusals."""
    found, most = granted(rights, tier), limits.GRANTABLE[tier]
    assert set(found.capabilities) <= set(most.capabilities)
    assert set(found.calls) <= set(most.calls)
    if not list(refusals(rights, tier)) and not rights.privileged:
        assert set(found.capabilities) == set(rights.capabilities)
        assert bool(found.calls) == (rights.seccomp == "unconfined")
    if rights == Rights():
        assert found == limits.Granted()


@pytest.mark.promise("1.4")
def test_a_policy_that_says_nothing_bounds_nothing() -> None:
    """One that says `{}` forbids all; a task that asks for nothing has nothing."""
    asked = Rights(privileged=True)
    assert asked.common(None) == asked
    assert asked.common(Rights()) == Rights()


@pytest.mark.promise("1.9")
@pytest.mark.parametrize("risk", limits.Risk)
def test_the_default_follows_the_risk(risk: limits.Risk) -> None:
    """From `high` on refused, below reported; what is written comes first."""

    def rule(text: str = "") -> limits.HostTools:
        found = read(text, str(risk)).policy
        assert found is not None
        return found.host_tools_rule

    assert rule() == (limits.REFUSE if risk >= limits.Risk.HIGH else limits.REPORT)
    assert rule("host_tools: report") == limits.REPORT
    assert rule("host_tools: refuse") == limits.REFUSE
    named = rule("host_tools: {allow: [web_search, notes]}")
    assert named.permits(("web_search",))
    assert named.permits(("mcp_server_notes", "notes"))
    assert not named.permits(("code_execution",))
    assert not limits.REFUSE.permits(("web_search",))
    assert limits.REPORT.permits(("anything",))


def test_words_are_compared_by_place_and_not_by_spelling() -> None:
    """`critical` comes before `low` in the alphabet, and must not on the scale."""
    assert list(Risk) == sorted(Risk)
    assert Risk.CRITICAL > Risk.HIGH > Risk.MEDIUM > Risk.LOW
    assert Tier.MICROVM >= Tier.MICROVM > Tier.GVISOR > Tier.CONTAINER <= Tier.CONTAINER
    with pytest.raises(TypeError):
        assert Risk.LOW < Tier.MICROVM


@pytest.mark.promise("1.7")
def test_all_of_a_cell_together_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again when it is made: files may have grown since they were looked at."""
    for name in ("a", "b"):
        (tmp_path / name).write_text("four")
    files = tuple(TaskFile(target=f"/{name}", source=name) for name in ("a", "b"))
    data = CellData(files=files)
    assert set(trees_of(tmp_path, data)) == {"/a", "/b"}
    monkeypatch.setattr(sections, "MAX_BYTES", 7)
    with pytest.raises(ValueError, match="at most"):
        trees_of(tmp_path, data)
    monkeypatch.setattr(sections, "MAX_ENTRIES", 1)
    with pytest.raises(ValueError, match="more than"):
        trees_of(tmp_path, data)


DIGEST = "ab" * 32


def model_of(risk: str = "low", **fields: object) -> ModelBlock:
    model = {"weights": {"sha256": DIGEST}, **fields}
    block = policy_of({"belljar": 1, "risk": risk, "model": model}).policy.model
    assert block is not None
    return block


def test_what_makes_no_server_is_refused() -> None:
    """With the field's name."""
    wrong: dict[str, list[Any]] = {
        "weights": [{"sha256": "ab"}, {}],
        "server": ["tgi", [], ["a\0b"]],
        "port": [0],
        "parallel": [0],
        "record": ["all"],
        "gpu": [{"devices": devices} for devices in ([], ["/dev/kmsg"], ["/dev/nvidia0/../mem"])],
    }
    for field, values in wrong.items():
        for value in values:
            with pytest.raises(PolicyError, match=field):
                model_of(**{field: value})


@pytest.mark.promise("2.8")
def test_a_model_cell_has_no_network() -> None:
    """Not even stand-ins."""
    network = {"stand_ins": {"www": {"kind": "http", "names": ["a.test"], "routes": []}}}
    fields = {"belljar": 1, "risk": "low", "model": {"weights": {"sha256": DIGEST}}}
    with pytest.raises(PolicyError, match="model"):
        policy_of({**fields, "network": network})


def test_a_gpu_needs_a_reason_from_risk_high_on() -> None:
    """What it would open is said."""
    gpu = {"devices": ["/dev/nvidia0"]}
    assert model_of("medium", gpu=gpu).gpu is not None
    assert model_of("high", gpu={**gpu, "reason": "measured"}).gpu is not None
    with pytest.raises(PolicyError, match="driver"):
        model_of("high", gpu=gpu)


LEAST: dict[str, Any] = {"belljar": 1, "risk": "high"}


def test_a_program_may_give_what_a_file_can_not_write() -> None:
    """Within the same bounds."""
    resources = Resources(cpus=2, memory_bytes=(64 << 20) + 1, lifetime_s=61.5, exec_timeout_s=1.25)
    files = (FileCopy(source="a", target="b", mode=None),)
    policy = Policy(belljar=1, risk=Risk.HIGH, tier=Tier.MICROVM, resources=resources, files=files)
    assert policy.resources == resources
    fields = {name: getattr(policy, name) for name in Policy.model_fields}
    changed = Policy.model_validate({**fields, "env": {"A": "b"}})
    assert (changed.resources, changed.files) == (policy.resources, policy.files)
    for wrong in (Resources(cpus=0), Resources(lifetime_s=float("inf"))):
        with pytest.raises(ValidationError):
            Policy(belljar=1, risk=Risk.HIGH, resources=wrong)


def test_a_command_never_outlives_its_cell() -> None:
    """A default shrinks with a shorter lifetime."""
    minute = {"lifetime": "1m"}
    assert Policy.model_validate({**LEAST, "resources": minute}).resources.exec_timeout_s == 60
    with pytest.raises(ValidationError, match="at most `lifetime`"):
        Policy.model_validate({**LEAST, "resources": {**minute, "exec_timeout": "61s"}})
    files = [{"source": "a", "target": "/x//y"}, {"source": "b", "target": "/x/y"}]
    with pytest.raises(ValidationError, match="two files"):
        Policy.model_validate({**LEAST, "files": files})
