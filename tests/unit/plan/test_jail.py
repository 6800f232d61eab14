"""The launcher's command line: golden, and its limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from belljar.plan import jail

SPEC = jail.JailSpec(
    cell_id="c-0123456789ab",
    owner_pid=42,
    root=Path("/s/vmm/k/root"),
    binds={"/i/disk": Path("/s/i/rootfs.sqfs")},
    identity=jail.JailIdentity(host_uid=0x70000001, host_gid=0x70000001, privileged=True),
    limits=jail.JailLimits(
        memory_max_bytes=1 << 30,
        cpu_quota_percent=100,
        processes=81,
        lifetime_s=1.5,
        address_space_bytes=1 << 31,
    ),
    cgroups=(Path("/sys/fs/cgroup/memory/cell-c-0123456789ab"),),
    memory_by_rlimit=False,
)


def test_golden() -> None:
    """Everything the launcher is told, in its order; lifetimes in milliseconds."""
    fds = jail.JailFds(lifeline=5, status=6, kept=(7, 8), hold=9)
    expected = """
        /p/jail --cell c-0123456789ab --root /s/vmm/k/root --owner 42 --privileged
        --uid 1879048193 1000 --gid 1879048193 1000
        --lifeline 5 --status 6 --lifetime-ms 1500 --hold 9
        --bind /s/i/rootfs.sqfs /i/disk --cgroup /sys/fs/cgroup/memory/cell-c-0123456789ab
        --rlimit core 1 --rlimit nofile 256 --rlimit memlock 65536 --rlimit nproc 81
        --rlimit fsize 0 --keep 7 --keep 8 -- /usr/bin/vmm -x
    """
    assert [*jail.jail_argv("/p/jail", SPEC, fds, ("/usr/bin/vmm", "-x"))] == expected.split()


def words_of(spec: jail.JailSpec, **more: int) -> str:
    return " ".join(
        jail.jail_argv("/j", spec, jail.JailFds(lifeline=5, status=6, kept=(), **more), ("/r",))
    )


def test_limits_that_were_given_hold() -> None:
    """Limits replace the built-in ones, and no core is dumped in any case."""
    said = words_of(replace(SPEC, rlimits=(("nofile", 1024),), memory_by_rlimit=True))
    assert said.count("--rlimit") == 3
    assert "--rlimit core 1 --rlimit nofile 1024 --rlimit as" in said


def test_a_jail_below_another_user_namespace() -> None:
    """0 is the user, then his subordinate ids, mapped already; nobody's help is asked."""
    words = words_of(replace(SPEC, ids=jail.nested_cell_ids()), user_namespace=9)
    assert "--user-namespace 9" in words
    assert "--uid-map 0 0 1 --uid-map 1 1 65536" in words
    assert words.count("--uid-map") == 2
    assert "--newuidmap" not in words
    assert "--uid 0 1000" in words_of(replace(SPEC, ids=None), user_namespace=9)
