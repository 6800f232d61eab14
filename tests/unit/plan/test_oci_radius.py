"""A container's bounds in words."""

from __future__ import annotations

import pytest

from belljar.host import HostFacts
from belljar.plan.layers import isolation_of
from belljar.policy import Resources, Tier


@pytest.mark.parametrize("tier", [Tier.CONTAINER, Tier.GVISOR])
def test_every_resource_is_bounded_by_the_host(tier: Tier, facts: HostFacts) -> None:
    """Each of the policy's, by a means of the host; the agent alone holds nothing but what the host looks after too."""
    held = {bound.what: bound for bound in isolation_of(tier, Resources(cpus=3, processes=77), facts).bounds}
    assert held["processors"].most == "3"
    assert "300% of one" in held["processors"].enforced_by[0]
    grouped = ("processors", "memory and files together", "files it writes")
    assert all("control group" in " ".join(held[what].enforced_by) for what in grouped)
    (processes,) = (bound for what, bound in held.items() if what.startswith("processes"))
    assert "77" in processes.most
    assert "control group" in processes.enforced_by[0]
    assert any("host" in means for means in held["time of one command"].enforced_by)
    assert ("/tmp" in held["files it writes"].most) is (tier is Tier.GVISOR)
    assert held["open files of one process"].most == "524,288"
