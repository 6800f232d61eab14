"""Facts about a host."""

from __future__ import annotations

from dataclasses import replace

from belljar.host.model import (
    CgroupFact,
    CgroupVersion,
    HostFacts,
    KvmFact,
    KvmState,
    ToolFact,
    UsernsFact,
)

FACTS = HostFacts(
    arch="x86_64",
    distro_id="debian",
    distro_version="12",
    kernel_release="6.1.0-1-amd64",
    is_root=False,
    uid=1000,
    cpu_model="A Processor",
    cpus=4,
    memory_total_mib=16_000,
    memory_available_mib=12_000,
    disk_free_mib=50_000,
    home="/home/u/.local/share/belljar",
    kvm=KvmFact(state=KvmState.REFUTED, reason="the guest never spoke", proved_for="kernel 6.1"),
    userns=UsernsFact(available=True, max_user_namespaces=100),
    cgroup=CgroupFact(
        version=CgroupVersion.V2,
        parents={"pids": "/sys/fs/cgroup/u", "memory": "/sys/fs/cgroup/u"},
        delegated=True,
    ),
    tools=(ToolFact(name="qemu", use="the microVM", needed=True, version="10.0.2", ok=True),),
)


def test_tools_and_controllers_are_found_by_name() -> None:
    """The small questions the plan asks."""
    assert FACTS.cgroup.controllers == ("memory", "pids")
    assert FACTS.tool("qemu") == FACTS.tools[0]
    assert replace(FACTS, tools=()).tool("qemu") is None
