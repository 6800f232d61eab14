"""Sections that cells of any place have: resources, copied files, rights, outside tools."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.plan.make import granted
from belljar.plan.obstacles import refusals
from belljar.policy import limits
from belljar.policy.load import Examined, examine
from belljar.policy.sections import Rights


def read(text: str, risk: str = "high") -> Examined:
    """A policy with that line, the third."""
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
    assert (rule("host_tools: report"), rule("host_tools: refuse")) == (
        limits.REPORT,
        limits.REFUSE,
    )
    named = rule("host_tools: {allow: [web_search, notes]}")
    assert named.permits(("web_search",))
    assert named.permits(("mcp_server_notes", "notes"))
    assert not named.permits(("code_execution",))
    assert not limits.REFUSE.permits(("web_search",))
    assert limits.REPORT.permits(("anything",))
