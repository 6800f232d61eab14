"""Control groups, on trees of files that look like the kernel's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from belljar.host.cgroups import (
    cgroup_fact,
    own_memory_limit_bytes,
    parse_hierarchies,
    sweep_trials,
)
from belljar.host.model import CgroupVersion


def v2_tree(root: Path, own: str, controllers: str) -> None:
    parent = (root / own.lstrip("/")).parent
    (root / own.lstrip("/")).mkdir(parents=True)
    for directory in {root, parent}:
        (directory / "cgroup.procs").write_text("")
        (directory / "cgroup.controllers").write_text(controllers)
        (directory / "cgroup.subtree_control").write_text("memory")


def test_hybrid_hosts_have_their_controllers_in_version_1() -> None:
    """One controller a mount, or several; version 2 beside them."""
    mounts = (
        "cgroup /c/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup /c/me\\040m cgroup"
        " rw,relatime,memory 0 0\nc2 /c/unified cgroup2 rw 0 0\n"
    )
    found = parse_hierarchies(
        mounts, "9:name=systemd:/\n4:memory:/a/b\n1:cpu,cpuacct:/x\n0::/u\nbroken\n"
    )
    assert found.v1 == {"cpu": Path("/c/cpu,cpuacct"), "memory": Path("/c/me m")}
    assert found.v2 == Path("/c/unified")
    assert (found.own["memory"], found.own["cpu"], found.own[""]) == ("/a/b", "/x", "/u")


def test_root_proves_a_controller_by_making_a_group(tmp_path: Path) -> None:
    """On plain files no limit file appears: nothing is believed; the trial group is gone."""
    for name in ("memory", "pids"):
        (tmp_path / name).mkdir()
    lines = (f"cgroup {tmp_path / name} cgroup rw,{name} 0 0\n" for name in ("memory", "pids"))
    fact = cgroup_fact(parse_hierarchies("".join(lines), ""), is_root=True)
    assert (fact.version, fact.controllers) == (CgroupVersion.V1, ())
    assert [list((tmp_path / name).iterdir()) for name in ("memory", "pids")] == [[], []]
    none = cgroup_fact(parse_hierarchies("", ""), is_root=True)
    assert (none.version, none.controllers, bool(none.reason)) == (CgroupVersion.NONE, (), True)


def test_a_user_has_what_is_delegated_where_it_runs(tmp_path: Path) -> None:
    """Cells become siblings of the group the user's process is in."""
    v2_tree(tmp_path, "/user.slice/app/own.scope", "memory pids io")
    mounts = f"c {tmp_path} cgroup2 rw 0 0"
    found = parse_hierarchies(mounts, "0::/user.slice/app/own.scope")
    fact = cgroup_fact(found, is_root=False)
    assert fact.parents == dict.fromkeys(("memory", "pids"), str(tmp_path / "user.slice/app"))
    assert "cpu" in fact.reason


def test_a_user_has_the_version_1_groups_that_he_was_put_in(tmp_path: Path) -> None:
    """Below his own group; a hierarchy's root, or a path that leads out, is nobody's gift."""
    lines, own = "", ""
    for name, group in (("memory", "/ann"), ("pids", "/ann/deep"), ("cpu", "/")):
        directory = tmp_path / name / group.lstrip("/")
        directory.mkdir(parents=True)
        (directory / "cgroup.procs").write_text("")
        lines += f"cgroup {tmp_path / name} cgroup rw,{name} 0 0\n"
        own += f"{len(own)}:{name}:{group}\n"
    fact = cgroup_fact(parse_hierarchies(lines, own), is_root=False)
    places = {"memory": "memory/ann", "pids": "pids/ann/deep"}
    assert fact.parents == {name: str(tmp_path / place) for name, place in places.items()}
    assert (fact.version, "cpu" in fact.reason) == (CgroupVersion.V1, True)
    astray = own.replace("/ann", "/../../ann")
    assert cgroup_fact(parse_hierarchies(lines, astray), is_root=False).parents == {}


@pytest.mark.parametrize("own", ["/", "/../../etc/x"])
def test_a_user_without_delegation_has_nothing(tmp_path: Path, own: str) -> None:
    """And is told how to get it; a path that leads out of the tree is not followed."""
    fact = cgroup_fact(
        parse_hierarchies(f"c {tmp_path} cgroup2 rw 0 0", f"0::{own}"), is_root=False
    )
    assert (fact.controllers, "systemd-run" in fact.reason) == ((), True)


@pytest.mark.parametrize(
    ("text", "limit_bytes"),
    [("1048576\n", 1048576), ("max\n", None), ("9223372036854771712\n", None), ("", None)],
)
def test_ones_own_memory_limit_counts(tmp_path: Path, text: str, limit_bytes: int | None) -> None:
    """A container's share is what there is, not the machine's memory."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "memory.max").write_text(text)
    assert (
        own_memory_limit_bytes(parse_hierarchies(f"c {tmp_path} cgroup2 rw 0 0", "0::/own"))
        == limit_bytes
    )


def test_trial_groups_of_the_dead_are_removed(tmp_path: Path) -> None:
    """The next one removes the group of a process that was killed; a living one's stays."""
    with subprocess.Popen(["sleep", "60"]) as process:
        start = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        trial = tmp_path / f"facts-{process.pid}-{start}-0123abcd"
        trial.mkdir()
        sweep_trials(tmp_path)
        assert trial.exists()
        process.kill()
    (tmp_path / "facts-other").mkdir()
    sweep_trials(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["facts-other"]
