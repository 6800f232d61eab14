"""Control groups, on fake trees of both versions."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

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


def planned(names: Iterable[str], parents: dict[str, Path], *, unified: bool) -> cgroup.CellGroups:
    with patch.object(cgroup, "host_parents", lambda: (parents, unified)):
        return cgroup.plan_groups(CELL, names)


def test_version_2_is_one_group(tmp_path: Path) -> None:
    """One directory for all controllers, which are first handed down by the parent; no swap."""
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    parents = dict.fromkeys(("cpu", "memory", "pids"), tmp_path)
    groups = planned(parents, parents, unified=True)
    assert groups.directories == (tmp_path / f"cell-{CELL}",)
    cgroup.make_groups(groups, LIMITS)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +pids"
    written = {path.name: path.read_text() for path in groups.directories[0].iterdir()}
    assert written == {"memory.max": str(1 << 29), "cpu.max": "150000 100000", "pids.max": "81"}


def test_a_missing_controller_is_refused(tmp_path: Path) -> None:
    """What the plan counts on and the host lost meanwhile is an error, never a weaker cell."""
    with pytest.raises(HostError, match="memory"):
        planned(("memory",), {"cpu": tmp_path}, unified=True)


def test_a_group_that_is_there_already_is_refused(tmp_path: Path) -> None:
    """Two cells never share a group."""
    parents = {"pids": tmp_path}
    groups = planned(parents, parents, unified=False)
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
def test_version_1_bounds_what_sockets_hold_and_does_not_swap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Datagrams that nobody reads are not counted there without a limit of their own."""
    groups = planned(("memory",), {"memory": tmp_path}, unified=False)
    has_files(monkeypatch, **{"memory.kmem.tcp.limit_in_bytes": "", "memory.swappiness": "60"})
    cgroup.make_groups(groups, LIMITS)
    group = groups.paths["memory"]
    sockets = str(LIMITS.memory_max_bytes // 8)
    assert (group / "memory.kmem.tcp.limit_in_bytes").read_text() == sockets
    assert (group / "memory.swappiness").read_text() == "0"


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
