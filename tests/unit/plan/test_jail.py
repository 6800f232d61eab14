"""The launcher's command line: golden, and its limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from belljar.plan.jail import (
    JailBind,
    JailFds,
    JailIdentity,
    JailLimits,
    JailSpec,
    jail_argv,
    vmm_address_space_bytes,
    vmm_memory_max_bytes,
)
from belljar.plan.qemu import VmShape

SPEC = JailSpec(
    cell_id="c-0123456789ab",
    owner_pid=42,
    root=Path("/s/vmm/k/root"),
    binds=(JailBind(source=Path("/s/i/rootfs.sqfs"), target="/i/disk"),),
    identity=JailIdentity(host_uid=0x70000001, host_gid=0x70000001, privileged=True),
    limits=JailLimits(
        memory_max_bytes=1 << 30, cpu_quota_percent=100, processes=81, lifetime_s=1.5, address_space_bytes=1 << 31
    ),
    cgroups=(Path("/sys/fs/cgroup/memory/cell-c-0123456789ab"),),
    memory_by_rlimit=False,
)


def test_golden() -> None:
    """Everything the launcher is told, in its order; lifetimes in milliseconds."""
    fds = JailFds(lifeline=5, status=6, kept=(7, 8), hold=9)
    assert jail_argv("/p/jail", SPEC, fds, ("/usr/bin/vmm", "-x")) == (
        *("/p/jail", "--cell", "c-0123456789ab", "--root", "/s/vmm/k/root", "--owner", "42", "--privileged"),
        *("--uid", "1879048193", "1000", "--gid", "1879048193", "1000"),
        *("--lifeline", "5", "--status", "6", "--lifetime-ms", "1500", "--hold", "9"),
        *("--bind", "/s/i/rootfs.sqfs", "/i/disk", "--cgroup", "/sys/fs/cgroup/memory/cell-c-0123456789ab"),
        *(
            "--rlimit",
            "core",
            "0",
            "--rlimit",
            "nofile",
            "256",
            "--rlimit",
            "memlock",
            "65536",
            "--rlimit",
            "nproc",
            "81",
        ),
        *("--rlimit", "fsize", "0", "--keep", "7", "--keep", "8", "--", "/usr/bin/vmm", "-x"),
    )


def test_an_ordinary_user_without_groups() -> None:
    """No privilege is claimed, and the address space is what bounds memory."""
    identity = JailIdentity(host_uid=1000, host_gid=1000, privileged=False)
    spec = replace(SPEC, identity=identity, cgroups=(), memory_by_rlimit=True)
    words = jail_argv("/p/jail", spec, JailFds(lifeline=5, status=6, kept=()), ("/v",))
    assert "--privileged" not in words
    assert "--cgroup" not in words
    assert words[words.index("as") + 1] == str(1 << 31)


def test_only_a_template_may_write() -> None:
    """A writable file lifts the ban on growing files, and only that file is writable."""
    writable = JailBind(source=Path("/s/memory"), target="/i/memory", writable=True)
    words = jail_argv("/p/jail", replace(SPEC, binds=(writable,)), JailFds(lifeline=5, status=6, kept=()), ("/v",))
    assert "fsize" not in words
    assert words.count("--bind-writable") == 1
    assert "--bind" not in words


def test_the_bounds_hold_the_ram() -> None:
    """Whatever the shape, RAM and translated code fit the memory bound, and the memory bound fits the address space."""
    for vcpus in (1, 4, 16):
        for accel in ("kvm", "tcg"):
            shape = VmShape(vcpus=vcpus, ram_mib=2048, accel=accel, cpu_model="max")
            assert (2048 + 64) << 20 < vmm_memory_max_bytes(shape) < vmm_address_space_bytes(shape)
