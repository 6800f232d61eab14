"""The look for survivors: what belongs to the cell is found, what only looks like it is not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from belljar.isolation.identity import hold_identity, hold_uid
from belljar.isolation.journal import Journal, JournalEntry, new_cell_id, own_entry
from belljar.isolation.process import identify, kill, namespaces_of
from belljar.isolation.reap import list_cells, reap_now
from belljar.isolation.survivors import find_survivors, remove_survivors


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs, its words in place, and waits until it is killed or the block ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["/bin/sh", "-c", "echo; read x", *words], stdin=pipe, stdout=pipe) as child:
        if child.stdout is None or child.stdout.readline() != b"\n":
            raise RuntimeError("the process did not start")
        yield child


def entry(**fields: object) -> JournalEntry:
    """A new cell's."""
    return own_entry(new_cell_id(), "cell", **fields)


def test_nothing_is_found_of_nothing() -> None:
    """A cell that left nothing."""
    assert find_survivors(entry()) == ()


def test_a_process_started_for_the_cell() -> None:
    """It is found by its words, killed, and then gone."""
    mine = entry()
    with process("--cell", mine.cell_id) as child:
        found = find_survivors(mine)
        assert [survivor.process and survivor.process.pid for survivor in found] == [child.pid]
        remove_survivors(found)
        assert child.wait(timeout=5) == -9
        assert find_survivors(mine) == ()


def test_a_person_looking_for_the_cell_is_not_one() -> None:
    """`grep` for the id, or `reap --cell-id`, is not the cell's."""
    mine = entry()
    with process("grep", mine.cell_id):
        assert find_survivors(mine) == ()


def test_a_process_in_the_cells_namespace() -> None:
    """Found by the namespace's number, whatever its words say."""
    with subprocess.Popen(
        ["/usr/bin/unshare", "--user", "--net", "/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"x")
        child.stdin.flush()
        child.stdout.read(1)  # it has come up
        mine = entry(namespaces={"net": namespaces_of(child.pid)["net"]})
        found = find_survivors(mine)
        assert [survivor.process and survivor.process.pid for survivor in found] == [child.pid]
        remove_survivors(found)


def test_files_and_directories(tmp_path: Path) -> None:
    """What the journal names is found and removed, links not followed."""
    mine = entry()
    kept = tmp_path / "kept"
    kept.mkdir()
    directory = tmp_path / f"scratch-{mine.cell_id}"
    directory.mkdir()
    (directory / "link").symlink_to(kept)
    mine = JournalEntry.from_json({**mine.to_json(), "directories": [str(directory)]})
    found = find_survivors(mine)
    assert [survivor.path for survivor in found] == [directory]
    remove_survivors(found)
    assert not directory.exists()
    assert kept.exists()


def test_a_number_used_again_is_not_killed() -> None:
    """The same pid with another start time is somebody else."""
    with process() as child:
        real = identify(child.pid)
        assert real is not None
        kill(type(real)(pid=real.pid, start_ticks=real.start_ticks - 1))
        assert identify(child.pid) == real
        kill(real)
        assert child.wait(timeout=5) == -9


def orphan(home: Path, **fields: object) -> JournalEntry:
    """A cell whose owner is dead, in the journal."""
    with process() as owner:
        dead = identify(owner.pid)
    assert dead is not None
    entry_of_dead = replace(entry(**fields), owner=dead)
    Journal(home).write(entry_of_dead)
    return entry_of_dead


def test_reaping_spares_who_has_the_numbers_now(tmp_path: Path) -> None:
    """The orphan's namespace numbers and uid may be a living cell's by now: reaping must not touch its processes."""
    with process() as innocent:
        taken = namespaces_of(innocent.pid)
        with process() as child:
            dead_child = identify(child.pid)
        orphan(tmp_path, namespaces=taken, child=dead_child, host_uid=os.getuid() or 0)
        (reaped,) = reap_now(tmp_path)
        assert (reaped.removed, reaped.remaining) == ((), ())
        assert innocent.poll() is None
    assert list_cells(tmp_path) == ()


@pytest.mark.root
def test_a_uid_that_another_cell_has_is_not_looked_for(tmp_path: Path) -> None:
    """While it is locked by somebody it is not the orphan's any more; when it is free it is locked for the look."""
    with hold_identity(tmp_path) as held:
        with hold_uid(tmp_path, held.own_uid) as free:
            assert not free
        with hold_identity(tmp_path) as other:
            assert other.own_uid != held.own_uid
    with hold_uid(tmp_path, held.own_uid) as free:
        assert free
        with hold_identity(tmp_path) as next_cell:
            assert next_cell.own_uid != held.own_uid


def test_an_orphan_is_reaped_and_a_living_owners_cell_is_not(tmp_path: Path) -> None:
    """By owner, not by age or look."""
    alive = entry()
    Journal(tmp_path).write(alive)
    dead = orphan(tmp_path)
    with process("--cell", dead.cell_id) as left, process("--cell", alive.cell_id) as kept:
        reaped = reap_now(tmp_path)
        assert [cell.cell_id for cell in reaped] == [dead.cell_id]
        assert left.wait(timeout=5) == -9
        assert kept.poll() is None
    assert {cell.cell_id: cell.state for cell in list_cells(tmp_path)} == {alive.cell_id: "alive"}
    Journal(tmp_path).remove(alive.cell_id)
