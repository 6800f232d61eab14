"""Control groups, on fake trees of both versions: where they are made, what is written, and that
they go."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from belljar.errors import HostError
from belljar.isolation import cgroup
from belljar.plan.jail import JailLimits

CELL = "c-0123456789ab"
LIMITS = JailLimits(
    memory_max_bytes=1 << 29,
    cpu_quota_percent=150,
    processes=81,
    lifetime_s=60,
    address_space_bytes=1 << 31,
)


def test_version_2_is_one_group(tmp_path: Path) -> None:
    """One directory for all controllers, which are first handed down by the parent; no swap."""
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    parents = dict.fromkeys(("cpu", "memory", "pids"), tmp_path)
    groups = cgroup.plan_groups(CELL, parents, parents=parents, unified=True)
    assert groups.directories == (tmp_path / f"cell-{CELL}",)
    cgroup.make_groups(groups, LIMITS)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +pids"
    written = {path.name: path.read_text() for path in groups.directories[0].iterdir()}
    assert written == {"memory.max": str(1 << 29), "cpu.max": "150000 100000", "pids.max": "81"}


def test_version_1_is_a_group_a_controller(tmp_path: Path) -> None:
    """Each hierarchy has its own directory and file names; swap counts where the kernel counts
    it."""
    parents = {name: tmp_path / name for name in ("cpu", "memory", "pids")}
    for parent in parents.values():
        parent.mkdir()
    groups = cgroup.plan_groups(CELL, parents, parents=parents, unified=False)
    cgroup.make_groups(groups, LIMITS)
    written = {
        path.parent.parent.name + "/" + path.name: path.read_text()
        for path in tmp_path.glob("*/*/*")
    }
    assert written == {
        "memory/memory.limit_in_bytes": str(1 << 29),
        "pids/pids.max": "81",
        "cpu/cpu.cfs_period_us": "100000",
        "cpu/cpu.cfs_quota_us": "150000",
    }


def test_a_missing_controller_is_refused(tmp_path: Path) -> None:
    """What the plan counts on and the host lost meanwhile is an error, never a weaker cell."""
    with pytest.raises(HostError, match="memory"):
        cgroup.plan_groups(CELL, ("memory",), parents={"cpu": tmp_path}, unified=True)


def test_no_controllers_no_groups() -> None:
    """Where nothing is handed out, nothing is made, and the host is not even looked at."""
    assert cgroup.plan_groups(CELL, ()).directories == ()


def test_a_group_that_is_there_already_is_refused(tmp_path: Path) -> None:
    """Two cells never share a group."""
    parents = {"pids": tmp_path}
    groups = cgroup.plan_groups(CELL, parents, parents=parents, unified=False)
    cgroup.make_groups(groups, LIMITS)
    with pytest.raises(HostError, match="control group"):
        cgroup.make_groups(groups, LIMITS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("memory.oom_control", "under_oom 0\noom_kill 2\n"),
    ],
)
def test_out_of_memory_kills(tmp_path: Path, name: str, text: str) -> None:
    """Counted in either version's words."""
    (tmp_path / name).write_text(text)
    assert cgroup.out_of_memory_kills(tmp_path) == 2


def has_files(monkeypatch: pytest.MonkeyPatch, **contents: str) -> None:
    """Every directory that is made has these files at once, as the kernel's groups do."""
    mkdir = Path.mkdir

    def made(path: Path, mode: int = 0o777) -> None:
        mkdir(path, mode)
        for name, text in contents.items():
            (path / name).write_text(text)

    monkeypatch.setattr(Path, "mkdir", made)


@pytest.mark.promise("8.2")
def test_version_1_bounds_what_sockets_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a limit of their own they are not counted there at all: a cell could take the host's
    memory by datagrams that nobody reads."""
    groups = cgroup.plan_groups(CELL, ("memory",), parents={"memory": tmp_path}, unified=False)
    has_files(monkeypatch, **{"memory.kmem.tcp.limit_in_bytes": ""})
    cgroup.make_groups(groups, LIMITS)
    assert (groups.paths["memory"] / "memory.kmem.tcp.limit_in_bytes").read_text() == str(
        LIMITS.memory_max_bytes // 8
    )


def test_version_1_does_not_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel counts no swap, a group at its limit would otherwise be swapped out, slowly
    and without a bound."""
    groups = cgroup.plan_groups(CELL, ("memory",), parents={"memory": tmp_path}, unified=False)
    has_files(monkeypatch, **{"memory.swappiness": "60"})
    cgroup.make_groups(groups, LIMITS)
    assert (groups.paths["memory"] / "memory.swappiness").read_text() == "0"


def test_processor_time_and_memory_of_either_version(tmp_path: Path) -> None:
    """Version 2 by its own count, version 1 by cpuacct, else by the processes in the group; what
    can't be read is no number."""
    two, one, neither = (tmp_path / name for name in ("two", "one", "neither"))
    for directory in (two, one, neither):
        directory.mkdir()
    (two / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (two / "memory.current").write_text("4096\n")
    (one / "cpuacct.usage").write_text("1500000000\n")
    (one / "memory.usage_in_bytes").write_text("8192\n")
    assert (cgroup.cpu_s(two), cgroup.memory_bytes(two)) == (2.5, 4096)
    assert (cgroup.cpu_s(one), cgroup.memory_bytes(one)) == (1.5, 8192)
    assert (cgroup.cpu_s(neither), cgroup.memory_bytes(neither)) == (None, None)
    (neither / "cgroup.procs").write_text(f"{os.getpid()}\n")
    spent_s = sum(os.times()[:4])
    counted_s = cgroup.cpu_s(neither)
    assert counted_s is not None
    assert counted_s >= spent_s - 0.1  # whole ticks


@pytest.mark.promise("6.3")
def test_a_group_that_goes_while_it_is_looked_at_is_empty(tmp_path: Path) -> None:
    """A kill looks at groups that their owner removes at the same time."""
    group, done = tmp_path / "cell", threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            (group / "inner").mkdir(parents=True)
            (group / "inner").rmdir()
            group.rmdir()

    owner = threading.Thread(target=come_and_go)
    owner.start()
    try:
        looks = {cgroup.processes_in(group) for _ in range(5_000)}
    finally:
        done.set()
        owner.join()
    assert looks == {()}
