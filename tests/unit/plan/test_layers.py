"""What each tier is made of here, and what its author is told."""

from __future__ import annotations

import pytest

from belljar.host.model import HostFacts
from belljar.plan.make import isolation_of, oci_limits, oci_overhead_mib, vm_shape
from belljar.policy.limits import Resources, Tier

OCI = (Tier.CONTAINER, Tier.GVISOR)


@pytest.mark.promise("2.3")
@pytest.mark.parametrize("tier", list(Tier))
def test_the_jail_is_outermost_and_a_shared_kernel_is_called_that(
    tier: Tier, facts: HostFacts
) -> None:
    """No layer of a container claims more than this host's kernel can hold."""
    walls = isolation_of(tier, Resources(), facts)
    assert walls.layers[0].name == "jail"
    if tier is Tier.CONTAINER:
        assert {layer.state for layer in walls.layers} == {"shared"}
        assert any("shared kernel" in said for said in walls.warnings)
    assert all("shared" in layer.enforced_by for layer in walls.layers if layer.state == "shared")


@pytest.mark.promise("8.1")
def test_what_holds_a_cell_takes_nothing_from_its_workload() -> None:
    """Memory and tasks of the runtime, the agent and gVisor's kernel come on top. Each process in
    gVisor costs the host its kernel's record, stubs and page tables; a container's are its own. Each
    processor of a machine costs its kernel 1.6 MiB, measured, or the agent refuses it."""
    few, many = Resources(processes=100), Resources(processes=500)
    for tier, least in zip(OCI, (0, 0.4 * 400), strict=True):
        limits, overhead_mib = oci_limits(tier, few), oci_overhead_mib(tier, few)
        assert limits.memory_max_bytes - (overhead_mib << 20) == few.memory_bytes + few.disk_bytes
        assert limits.processes >= few.processes + 32
        assert oci_overhead_mib(tier, many) - overhead_mib >= least
    assert oci_overhead_mib(OCI[0], many) == oci_overhead_mib(OCI[0], few)
    one, more = (vm_shape(Resources(cpus=cpus), emulated=True).ram_mib for cpus in (1, 65))
    assert more - one >= 64 * 1.6
