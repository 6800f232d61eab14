"""The look for survivors: what belongs to the cell is found, what only looks like it is not."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from belljar.errors import BelljarError, ContainmentBreach, HostError
from belljar.isolation import reap as reap_module
from belljar.isolation import survivors
from belljar.isolation.reap import list_cells, reap_now
from belljar.isolation.survivors import Destruction, destroy_remains, look, remove_survivors
from belljar.process import identify, namespaces_of
from belljar.store.journal import Journal, JournalEntry, new_cell_id, own_entry


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs, its words in place, and waits until it is killed or the block ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        ["/bin/sh", "-c", "echo; read x", *words], stdin=pipe, stdout=pipe
    ) as child:
        if child.stdout is None or child.stdout.readline() != b"\n":
            raise RuntimeError("the process did not start")
        yield child


def entry(**fields: object) -> JournalEntry:
    return own_entry(new_cell_id(), "cell", **fields)


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ({"survivors": ("process 7", "mount /x")}, ContainmentBreach),
        ({"unproven": ("mounts: Permission denied",)}, HostError),
    ],
)
def test_an_unclean_end_says_what_and_where(
    found: dict[str, tuple[object, ...]], error: type[BelljarError]
) -> None:
    """A breach names what was left; what could not be looked for is none, for nothing was found."""
    end = Destruction(**{"survivors": (), "looked_for": (), "duration_ms": 1.0, **found})  # type: ignore[arg-type]
    assert not end.clean
    with pytest.raises(error) as caught:
        end.raise_if_unclean("destruction", where="cell c-0")
    (words,) = found.values()
    assert all(str(word) in caught.value.what for word in words)
    assert caught.value.where == "cell c-0"


refuse = Mock(side_effect=OSError(1, "Operation not permitted"))


def test_what_the_cell_has_nothing_to_be_told_by_is_not_claimed() -> None:
    """Looks that were not made for want of a uid or group are named; the others prove it."""
    destruction = destroy_remains(entry(), time.monotonic())
    assert destruction.clean
    missed = {each.partition(":")[0] for each in destruction.not_checked}
    assert {"processes in its namespaces", "processes with the cell's uid"} <= missed
    assert {"control groups and what is in them", "files"} <= missed
    assert "processes started for the cell" in destruction.looked_for
    assert not missed & set(destruction.looked_for)


@pytest.mark.promise("6.1")
def test_a_look_that_was_refused_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named with the reason; a socket's name is no proof of a process."""
    monkeypatch.setattr(survivors, "_sockets", refuse)
    destruction = destroy_remains(entry(host_uid=4_000_000_000), time.monotonic())
    what = "sockets named after the cell"
    assert what not in destruction.looked_for
    assert f"{what}: Operation not permitted" in destruction.not_checked
    assert destruction.clean


@pytest.mark.promise("6.1")
@pytest.mark.parametrize("blind", ["_processes", "_groups", "_mounts", "_is_there"])
def test_without_a_look_that_is_needed_nothing_is_proven(
    blind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes, control groups, mounts, files: not seen is not clean, though nothing was found."""
    monkeypatch.setattr(survivors, blind, refuse)
    mine = entry()
    mine = replace(mine, cgroups=(tmp_path / mine.cell_id,), directories=(tmp_path / mine.cell_id,))
    (tmp_path / "cgroup.procs").touch()
    destruction = destroy_remains(mine, time.monotonic())
    assert destruction.survivors == ()
    assert destruction.unproven
    assert set(destruction.unproven) <= set(destruction.not_checked)
    assert not destruction.clean


def test_what_is_not_seen_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That a group's directory isn't there says nothing when its parent is no control group now."""
    mine = entry()
    found = look(replace(mine, cgroups=(tmp_path / mine.cell_id,)))
    assert [each.partition(":")[0] for each in found.unproven] == [
        "control groups and what is in them"
    ]
    mine = replace(mine, directories=(tmp_path / mine.cell_id,))
    monkeypatch.setattr(Path, "lstat", Mock(side_effect=PermissionError(13, "no")))
    assert [each.partition(":")[0] for each in look(mine).unproven] == ["files"]


@pytest.mark.promise("6.1")
def test_reaping_goes_on_until_everything_could_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell that could not be looked for whole stays in the journal, and its reaping says why."""
    dead = orphan(tmp_path)
    with monkeypatch.context() as blind:
        blind.setattr(survivors, "_mounts", refuse)
        (reaped,) = reap_now(tmp_path)
    assert reaped.remaining == ("not looked for: mounts: Operation not permitted",)
    assert [cell.cell_id for cell in list_cells(tmp_path)] == [dead.cell_id]
    (reaped,) = reap_now(tmp_path)
    assert reaped.remaining == ()
    assert list_cells(tmp_path) == ()


@pytest.mark.promise("6.1")
def test_any_name_of_a_mount_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Form feeds and separators stand in names as they are: the look is whole."""
    mine = entry()
    lines = [f"36 35 8:0 / /mnt/{name} rw - ext4 a rw\n" for name in ("a\fb\x1cc", mine.cell_id)]
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text("".join(lines))
    monkeypatch.setattr(survivors, "PROC", tmp_path)
    assert list(look(mine).survivors) == [f"mount /mnt/{mine.cell_id}"]


@pytest.mark.parametrize(
    "words", [("grep",), ("find", "/", "-name"), ("belljar", "ledger", "show", "last", "--cell-id")]
)
def test_a_person_looking_for_the_cell_is_not_one(words: tuple[str, ...]) -> None:
    """Nor is a command of ours that is about it."""
    mine = entry()
    with process(*words, mine.cell_id):
        assert look(mine).survivors == ()


@contextmanager
def apart() -> Iterator[subprocess.Popen[bytes]]:
    pipe, words = subprocess.PIPE, ["/usr/bin/unshare", "--user", "--net", "/bin/cat"]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as child:
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("no pipes")
        child.stdin.write(b"x")
        child.stdin.flush()
        child.stdout.read(1)  # it has come up
        yield child


def test_a_process_in_the_cells_namespace() -> None:
    """Found by the namespace's number, whatever its words say."""
    with apart() as child:
        mine = entry(namespaces={"net": namespaces_of(child.pid)["net"]})
        found = look(mine).left
        assert [survivor.process and survivor.process.pid for survivor in found] == [child.pid]
        remove_survivors(found)


def test_files_and_directories(tmp_path: Path) -> None:
    """What the journal names is found and removed, links not followed."""
    mine = entry()
    kept, directory = tmp_path / "kept", tmp_path / f"scratch-{mine.cell_id}"
    kept.mkdir()
    directory.mkdir()
    (directory / "link").symlink_to(kept)
    mine = JournalEntry.from_json({**mine.to_json(), "directories": [str(directory)]})
    found = look(mine).left
    assert [survivor.path for survivor in found] == [directory]
    remove_survivors(found)
    assert not directory.exists()
    assert kept.exists()


def orphan(home: Path, **fields: object) -> JournalEntry:
    with process() as owner:
        dead = identify(owner.pid)
    assert dead is not None
    entry_of_dead = replace(entry(**fields), owner=dead)
    Journal(home).write(entry_of_dead)
    return entry_of_dead


@pytest.mark.promise("6.2")
def test_reaping_spares_who_has_the_numbers_now(tmp_path: Path) -> None:
    """The orphan's namespace numbers and uid may be a living cell's by now."""
    with process() as innocent:
        taken = namespaces_of(innocent.pid)
        with process() as child:
            dead_child = identify(child.pid)
        orphan(tmp_path, namespaces=taken, child=dead_child, host_uid=os.getuid() or 0)
        (reaped,) = reap_now(tmp_path)
        assert (reaped.removed, reaped.remaining) == ((), ())
        assert innocent.poll() is None
    assert list_cells(tmp_path) == ()


@pytest.mark.promise("6.2")
def test_reaping_spares_who_has_what_a_dying_cell_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process 1 leaves its network first, and is long in dying."""

    def left_most(_: object) -> dict[str, int]:
        return {"user": os.open(f"/proc/{still_there.pid}/ns/user", os.O_RDONLY)}

    monkeypatch.setattr(reap_module, "pin_namespaces", left_most)
    with apart() as innocent, apart() as still_there, process() as child:
        numbers = {pid: namespaces_of(pid) for pid in (innocent.pid, still_there.pid)}
        taken = {"net": numbers[innocent.pid]["net"], "user": numbers[still_there.pid]["user"]}
        orphan(tmp_path, namespaces=taken, child=identify(child.pid))
        (reaped,) = reap_now(tmp_path)
        assert reaped.remaining == ()
        assert (still_there.wait(60), child.wait(60)) == (-9, -9)
        assert innocent.poll() is None
