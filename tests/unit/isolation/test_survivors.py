"""The look for survivors: what belongs to the cell is found, what only looks like it is not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from belljar.isolation.journal import JournalEntry, new_cell_id, own_entry
from belljar.isolation.process import identify, kill, namespaces_of
from belljar.isolation.survivors import find_survivors, remove_survivors


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until it is killed or the block ends."""
    with subprocess.Popen(["/bin/sh", "-c", "read x", *words], stdin=subprocess.PIPE) as child:
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
