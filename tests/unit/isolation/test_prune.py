"""Pruning: what nobody used for long goes; what a cell uses, or somebody makes, never does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from belljar.isolation.microvm.template import lock_name
from belljar.isolation.program_root import RootRecipe, ensure_root
from belljar.isolation.prune import prune, remove_part, unneeded
from belljar.store.locks import claimed
from belljar.store.scratch import retire_unclaimed

pytestmark = pytest.mark.anyio
DAY_S = 86_400.0
KERNEL = "c" * 64
FRESH, STALE = "1" * 64, "2" * 64
HOLD = (
    "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), getattr(fcntl,"
    " sys.argv[2])); print(flush=True); sys.stdin.read()"
)
KINDS = ("templates", "vmm", "runtimes", "wires")  # their parts need no ids of their own


def part_of(home: Path, name: str, key: str, used_s_ago: float) -> Path:
    """A part as far as pruning looks at it, as if it had last been used then."""
    directory = home / name / key
    directory.mkdir(parents=True)
    (directory / "memory").write_bytes(b"m" * 8192)
    os.utime(directory, (time.time() - used_s_ago,) * 2)
    return directory


@pytest.fixture
def home(tmp_path: Path) -> Path:
    part_of(tmp_path, "kernels", KERNEL, 99 * DAY_S)
    return tmp_path


@contextmanager
def held_by_another(path: Path, how: str = "LOCK_SH") -> Iterator[None]:
    argv = [sys.executable, "-c", HOLD, str(path), how]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.kill()


async def pruned(home: Path, *, unused_for_s: float) -> list[str]:
    parts = await prune(home, unused_for_s=unused_for_s)
    assert not any(part.problem for part in parts)
    return [part.path.name for part in parts]


@pytest.mark.parametrize("name", [*KINDS, pytest.param("trees", marks=pytest.mark.root)])
async def test_what_nobody_used_for_long_goes_and_the_rest_stays(home: Path, name: str) -> None:
    """By the last use, if no cell holds it. Kernels stay."""
    fresh, stale = part_of(home, name, FRESH, 13 * DAY_S), part_of(home, name, STALE, 15 * DAY_S)
    with held_by_another(stale):
        assert await pruned(home, unused_for_s=14 * DAY_S) == []
    assert await pruned(home, unused_for_s=14 * DAY_S) == [STALE]
    assert fresh.exists()
    assert not stale.exists()
    assert await pruned(home, unused_for_s=0) == [FRESH]
    assert (home / "kernels" / KERNEL).exists()


@pytest.mark.promise("6.5")
@pytest.mark.parametrize("name", KINDS)
async def test_what_a_living_cell_uses_stays(home: Path, name: str) -> None:
    """Its claim is a lock of the process that owns the cell: it ends with it, however that ends."""
    directory = part_of(home, name, STALE, 15 * DAY_S)
    with held_by_another(directory):
        assert await pruned(home, unused_for_s=0) == []
    (part,) = unneeded(home, 14 * DAY_S)
    with held_by_another(directory):
        assert await remove_part(part, home) is None
    lock = home / "locks" / (lock_name(STALE) if name == "templates" else name)
    lock.parent.mkdir(exist_ok=True)
    lock.touch()
    with held_by_another(lock, "LOCK_EX"):
        assert await remove_part(part, home) is None
    assert (directory / "memory").exists()
    with claimed(directory):
        pass
    assert await pruned(home, unused_for_s=14 * DAY_S) == []
    assert await remove_part(part, home) == part
    assert await remove_part(part, home) == part  # another prune was quicker


async def test_another_installation_s_files_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    """Two installations share a store and a runtime."""
    program = tmp_path / "runtime"
    program.write_text("the same")
    common = RootRecipe(directory="vmm", program=program, files=list)
    recipes = []
    for name in ("first", "second"):
        agent = tmp_path / name
        agent.write_text(f"agent of the {name}")
        files = [(str(program), program), ("/agent", agent)]
        recipes.append(replace(common, files=partial(list, files), own=(agent,)))
    home = tmp_path / "store"
    for recipe, text in zip((*recipes, *recipes), ("first", "second") * 2, strict=True):
        assert (ensure_root(home, recipe).root / "agent").read_text() == f"agent of the {text}"
    old = ensure_root(home, recipes[0]).root
    program.write_text("another")
    new = ensure_root(home, recipes[0]).root
    assert (new / str(program).lstrip("/")).read_text() == "another"
    assert retire_unclaimed(old.parent) is not None
    inside = os.open(new, os.O_PATH)
    with claimed(new.parent):
        program.write_text("another")
        assert ensure_root(home, recipes[0]).root == new
        assert os.stat("agent", dir_fd=inside).st_size
    program.write_text("another")
    assert ensure_root(home, recipes[0]).root == new
    os.close(inside)
    assert len([*(home / "vmm").iterdir()]) == 4  # with two that are retired
