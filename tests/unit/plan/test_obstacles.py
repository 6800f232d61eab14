"""What stands in the way, and the mend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from belljar.host import HostFacts, KvmFact, KvmState, UsernsFact
from belljar.plan import hardware_obstacle, microvm_obstacles


def test_a_good_host_has_none(facts: HostFacts) -> None:
    """A tool that only building images needs is no obstacle."""
    assert microvm_obstacles(facts) == ()
    assert hardware_obstacle(facts) is None


@pytest.mark.parametrize(
    ("path", "version", "told"),
    [("", "", "is missing"), ("/q", "8.1", "too old: 8.2 is needed"), ("/q", "", "doesn't say its version")],
)
def test_a_vmm_that_will_not_do_is_named(path: str, version: str, told: str, facts: HostFacts) -> None:
    """Missing, too old, or of unknown age."""
    tool = replace(facts.tools[0], path=path, version=version, ok=False, mend="run `belljar setup`")
    (obstacle,) = microvm_obstacles(replace(facts, tools=(tool,)))
    assert told in obstacle.what
    assert obstacle.mend == "run `belljar setup`"


def test_all_obstacles_are_told(facts: HostFacts) -> None:
    """`belljar doctor` shows them together; each is an error with its mend."""
    host = replace(facts, arch="aarch64", userns=UsernsFact(available=False, reason="a switch is off"))
    found = microvm_obstacles(host)
    assert ["x86_64" in found[0].what, "a switch is off" in found[1].what] == [True, True]
    assert all(obstacle.error().mend for obstacle in found)


@pytest.mark.parametrize("state", [KvmState.ABSENT, KvmState.REFUTED, KvmState.UNPROVEN])
def test_each_way_of_lacking_hardware_has_its_own_mend(state: KvmState, facts: HostFacts) -> None:
    """Only an unproven one is mended by a proof."""
    obstacle = hardware_obstacle(replace(facts, kvm=KvmFact(state=state, reason="why")))
    assert obstacle is not None
    assert ("belljar doctor`, which boots" in obstacle.mend) is (state is KvmState.UNPROVEN)
    assert "why" in obstacle.what
