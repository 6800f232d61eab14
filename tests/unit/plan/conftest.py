"""Hosts and images to plan for, and golden files.

`BELLJAR_UPDATE_GOLDEN=1 pytest tests/unit/plan` writes the golden files anew; look at the difference before it is committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from belljar.host import CgroupFact, CgroupVersion, HostFacts, KvmFact, KvmState, ToolFact, UsernsFact
from belljar.plan import ImageFacts

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "BELLJAR_UPDATE_GOLDEN"
_GROUPS = {name: f"/sys/fs/cgroup/{name}" for name in ("cpu", "memory", "pids")}


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compares a text with a golden file, or writes it when asked to."""

    def compare(name: str, text: str) -> None:
        file = GOLDEN / name
        if os.environ.get(UPDATE):
            file.write_text(text)
        assert text == file.read_text(), f"{file.name} differs; {UPDATE}=1 writes it anew"

    return compare


@pytest.fixture
def facts() -> HostFacts:
    """Root on a host with proven KVM and every control group."""
    return HostFacts(
        arch="x86_64",
        distro_id="debian",
        distro_version="12",
        kernel_release="6.1.0-1-amd64",
        is_root=True,
        uid=0,
        cpu_model="A Processor",
        cpus=8,
        memory_total_mib=32_000,
        memory_available_mib=30_000,
        disk_free_mib=100_000,
        home="/var/lib/belljar",
        kvm=KvmFact(state=KvmState.PROVEN, proved_for="kernel 6.1.0-1-amd64, QEMU 10.0.2, A Processor"),
        userns=UsernsFact(available=True, max_user_namespaces=1000),
        cgroup=CgroupFact(version=CgroupVersion.HYBRID, parents=_GROUPS),
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
            ToolFact(name="skopeo", use="importing images", needed=False, mend="install skopeo"),
        ),
    )


@pytest.fixture
def image() -> ImageFacts:
    """An image with a user of its own."""
    return ImageFacts(
        digest="0123456789abcdef" * 4,
        name="default",
        user="user",
        workdir="/home/user",
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
    )
