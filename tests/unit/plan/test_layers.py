"""What each tier is made of here, and what its author is told."""

from __future__ import annotations

import pytest

from belljar.host.model import HostFacts
from belljar.plan.make import isolation_of, oci_limits, oci_overhead_mib, vm_shape
from belljar.policy.limits import Resources, Tier

OCI = [Tier.CONTAINER, Tier.GVISOR]


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


@pytest.mark.parametrize("tier", OCI)
def test_what_holds_a_cell_takes_nothing_from_its_workload(tier: Tier) -> None:
    """Memory and tasks of the runtime, the agent and gVisor's kernel come on top."""
    resources = Resources(processes=100)
    limits = oci_limits(tier, resources)
    overhead_bytes = oci_overhead_mib(tier, resources) << 20
    assert limits.memory_max_bytes - overhead_bytes == resources.memory_bytes + resources.disk_bytes
    assert limits.processes >= resources.processes + 32


@pytest.mark.promise("8.1")
def test_each_process_in_gvisor_costs_the_host_something() -> None:
    """Its kernel's record, stubs and page tables are no memory of the workload's; a container's
    are."""
    few, many = Resources(processes=100), Resources(processes=500)
    assert oci_overhead_mib(Tier.GVISOR, many) - oci_overhead_mib(Tier.GVISOR, few) >= 0.4 * 400
    assert oci_overhead_mib(Tier.CONTAINER, many) == oci_overhead_mib(Tier.CONTAINER, few)


def test_each_processor_costs_the_guests_kernel_something() -> None:
    """1.6 MiB, measured: a machine of many processors must not have less for its workload, or the
    agent refuses it."""
    one, many = (vm_shape(Resources(cpus=cpus), emulated=True).ram_mib for cpus in (1, 65))
    assert many - one >= 64 * 1.6
