"""Hosts and images to plan for, as data."""

from __future__ import annotations

from belljar.host.model import (
    CgroupFact,
    CgroupVersion,
    HostFacts,
    IdsFact,
    RuntimeFact,
    ToolFact,
    Trial,
    TrialState,
    UsernsFact,
)
from belljar.plan.model import ImageFacts

_GROUPS = {name: f"/sys/fs/cgroup/{name}" for name in ("cpu", "memory", "pids")}


def capable_host() -> HostFacts:
    """Root on a host with proven KVM, proven OCI runtimes and every control group."""
    return HostFacts(
        arch="x86_64",
        kernel_release="6.12.0-1-amd64",
        is_root=True,
        uid=0,
        cpu_model="A Processor",
        cpus=8,
        memory_total_mib=32_000,
        kvm=Trial(state=TrialState.PROVEN),
        userns=UsernsFact(available=True),
        cgroup=CgroupFact(version=CgroupVersion.V1, parents=_GROUPS),
        tools=(
            ToolFact(
                name="qemu-system-x86_64",
                use="the microVM",
                needed=True,
                path="/usr/bin/qemu-system-x86_64",
                version="10.0.2",
                needed_min="8.2",
                ok=True,
            ),
            ToolFact(
                name="nft",
                use="networks",
                needed=False,
                path="/usr/sbin/nft",
                version="6.1",
                ok=True,
                tier="network",
            ),
            ToolFact(name="skopeo", use="importing images", needed=False, hint="install skopeo"),
        ),
        runtimes=(_runtime("container", "runc", "1.1.5"), _runtime("gvisor", "runsc", "20240729")),
        ids=IdsFact(available=True),
        open_files_max=1 << 20,
    )


def _runtime(tier: str, name: str, version: str) -> RuntimeFact:
    return RuntimeFact(
        tier=tier,
        name=name,
        kind=name,
        path=f"/usr/bin/{name}",
        version=version,
        state=TrialState.PROVEN,
    )


def image_with_a_user() -> ImageFacts:
    return ImageFacts(
        digest="0123456789abcdef" * 4,
        name="default",
        user="user",
        workdir="/home/user",
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
    )
