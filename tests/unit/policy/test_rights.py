"""Rights inside a cell: what can be asked for, what a tier grants, and which of two policies has
more."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from belljar.plan.layers import granted
from belljar.plan.obstacles import refusals
from belljar.policy import Tier
from belljar.policy.limits import CAPABILITIES, GRANTABLE, USUAL_CAPABILITIES, Granted
from belljar.policy.sections import NO_RIGHTS, Rights, common_rights, is_within

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


def test_names_are_read_as_people_write_them() -> None:
    """With and without `CAP_`, in either case; what root has anyway is not asked for again."""
    found = Rights.model_validate({"capabilities": ["cap_sys_ptrace", "SYS_PTRACE", "CHOWN"]})
    assert found.capabilities == ("SYS_PTRACE",)
    assert Rights.model_validate({"capabilities": []}) == NO_RIGHTS


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


def test_a_shared_kernel_grants_nothing() -> None:
    """Nor does any tier grant what would reach the guest agent or open its kernel."""
    assert GRANTABLE[Tier.CONTAINER] == Granted()
    never = {"SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "BPF", "PERFMON", "NET_ADMIN", "SYS_BOOT"}
    for most in GRANTABLE.values():
        assert not never & set(most.capabilities)
    assert "SYS_PTRACE" not in GRANTABLE[Tier.GVISOR].capabilities


@given(RIGHTS, st.sampled_from(list(Tier)))
def test_a_tier_grants_what_is_asked_for_or_says_what_not(rights: Rights, tier: Tier) -> None:
    """Never more than its list; and what is not granted is among its refusals."""
    found, most = granted(rights, tier), GRANTABLE[tier]
    assert set(found.capabilities) <= set(most.capabilities)
    assert set(found.calls) <= set(most.calls)
    if not list(refusals(rights, tier)) and not rights.privileged:
        assert set(found.capabilities) == set(rights.capabilities)
        assert bool(found.calls) == (rights.seccomp == "unconfined")
    if rights == NO_RIGHTS:
        assert found == Granted()


@given(RIGHTS, RIGHTS, st.sampled_from(list(Tier)))
def test_what_two_policies_have_in_common_is_no_more_than_either(ours: Rights, floor: Rights, tier: Tier) -> None:
    """In what any tier grants; and it is within the floor."""
    common = ours.common(floor)
    assert is_within(common, floor)
    kept = granted(common, tier)
    for other in (ours, floor):
        allowed = granted(other, tier)
        assert set(kept.capabilities) <= set(allowed.capabilities)
        assert set(kept.calls) <= set(allowed.calls)


def test_a_policy_that_says_nothing_bounds_nothing() -> None:
    """One that says `{}` forbids all; a task that asks for nothing has nothing."""
    asked = Rights(privileged=True)
    assert common_rights(asked, None) == asked
    assert common_rights(asked, NO_RIGHTS) == NO_RIGHTS
    assert common_rights(None, asked) is None
    assert all(is_within(None, floor) for floor in (None, NO_RIGHTS, asked))


@pytest.mark.parametrize(("tier", "other"), list(itertools.permutations(Tier, 2)))
def test_a_stronger_tier_grants_no_less(tier: Tier, other: Tier) -> None:
    """So that raising a tier never takes a right away."""
    if tier < other:
        assert set(GRANTABLE[tier].capabilities) <= set(GRANTABLE[other].capabilities)
        assert set(GRANTABLE[tier].calls) <= set(GRANTABLE[other].calls)
