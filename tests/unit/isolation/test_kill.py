"""The kill switch over a real journal and real processes, without a cell."""

from __future__ import annotations

import errno
import itertools
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.unit.isolation.test_survivors import process as waiting

from belljar.isolation import cgroup, survivors
from belljar.isolation import kill as kill_module
from belljar.isolation import reap as reap_module
from belljar.isolation.hold import read_hold, read_order
from belljar.isolation.kill import KILLS, choose, kill, kill_now
from belljar.isolation.survivors import Destruction
from belljar.ledger.keys import signature_is_good
from belljar.process import ProcessId, boot_id, identify
from belljar.process import kill as kill_process
from belljar.store.journal import Journal, JournalEntry, own_entry

CELL, WIRE, TARGET, OTHER = "c-000000000001", "c-000000000002", "c-000000000003", "c-000000000004"
RANGE = "r-000000000001"


@pytest.fixture(autouse=True)
def _forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test left in its journal is forgotten; owners get no time."""
    monkeypatch.setattr("belljar.isolation.kill.OWNER_GRACE_S", 0)
    yield
    shutil.rmtree(tmp_path / "journal", ignore_errors=True)


@contextmanager
def a_process(*words: str) -> Iterator[ProcessId]:
    with waiting(*words) as child:
        found = identify(child.pid)
        assert found is not None
        try:
            yield found
        finally:
            child.kill()


def entry_of(name: str, **fields: object) -> JournalEntry:
    return replace(own_entry(name, "range" if name.startswith("r-") else "cell"), **fields)  # type: ignore[arg-type]


def ids(entries: Iterable[JournalEntry]) -> set[str]:
    return {entry.cell_id for entry in entries}


@pytest.mark.promise("6.3")
def test_what_belongs_together_ends_together() -> None:
    """A wire names its cell, a cell its range or the sample's first: any stands for all."""
    ranged = (
        *(entry_of(RANGE), entry_of(TARGET, part_of=RANGE), entry_of(CELL, part_of=RANGE)),
        *(entry_of(WIRE, part_of=CELL), entry_of(OTHER)),
    )
    for name in (RANGE, TARGET, CELL, WIRE):
        assert ids(choose(ranged, [name])) == {RANGE, TARGET, CELL, WIRE}
    assert ids(choose(ranged, [OTHER])) == {OTHER}
    assert choose(ranged, []) == ()
    alone = (entry_of(CELL), entry_of(TARGET, part_of=CELL), entry_of(OTHER))
    for name in (CELL, TARGET):
        assert ids(choose(alone, [name])) == {CELL, TARGET}


@pytest.mark.promise("6.3")
def test_an_owner_that_does_nothing_saves_nothing(tmp_path: Path) -> None:
    """What the journal names, and what was only started for the cell, ends; it is signed."""
    journal, directory = Journal(tmp_path), tmp_path / f"cell-{CELL}"
    directory.mkdir()
    with a_process() as process, a_process("--cell", CELL) as launched:
        journal.write(entry_of(CELL, child=process, directories=(directory,)))
        report = kill_now(tmp_path, [CELL], reason="why")
        assert (identify(process.pid), identify(launched.pid)) == (None, None)
    (killed,) = report.cells
    assert (killed.remaining, report.ok) == ((), True)
    assert killed.halted_ms is not None
    assert not directory.exists()
    assert journal.entries() == ()
    assert read_order(tmp_path, CELL) == report.order
    signed = json.loads((tmp_path / KILLS / f"{report.order.kill_id}.json").read_text())
    assert signature_is_good(signed["key"], signed["signature"], signed["document"].encode())
    assert json.loads(signed["document"])["cells"][0]["cell_id"] == CELL


@pytest.mark.parametrize("acts", ["destroys it", "ends"])
def test_an_owner_that_acts_during_the_look_stops_the_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acts: str
) -> None:
    """What a hung owner's cell was found to have may be another's by then: none of it is removed."""
    journal, directory = Journal(tmp_path), tmp_path / f"cell-{CELL}"
    directory.mkdir()
    with a_process() as process, a_process() as owner:
        entry = entry_of(CELL, owner=owner, child=process, directories=(directory,))
        journal.write(entry)

        def look(of: JournalEntry) -> Destruction:
            found = survivors.look(of)
            if acts == "destroys it":
                journal.remove(CELL)
                return found
            kill_process(owner)
            while identify(owner.pid) is not None:
                pass
            return found

        monkeypatch.setattr(reap_module, "look", look)
        assert reap_module.reap_one(tmp_path, entry, hangs=True) is None
        assert identify(process.pid) == process
    assert directory.exists()


def of_the_dead(entry: JournalEntry) -> JournalEntry:
    return replace(entry, owner=replace(entry.owner, start_ticks=entry.owner.start_ticks - 1))


@pytest.mark.promise("6.3")
@pytest.mark.parametrize("left", ["", "{"])
def test_an_entry_that_is_damaged_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """One that another reaper has removed does."""
    file = tmp_path / "journal" / f"{CELL}.json"
    Journal(tmp_path).write(of_the_dead(entry_of(CELL)))

    def another(*_: object) -> tuple[()]:
        file.write_text(left) if left else file.unlink()
        return ()

    monkeypatch.setattr(kill_module, "reap_now", another)
    (killed,) = kill_now(tmp_path, [CELL]).cells
    assert killed.ok is not bool(left)


@pytest.mark.parametrize("owner_is", ["hung", "dead"])
def test_a_fork_server_lives_as_long_as_its_owner(tmp_path: Path, owner_is: str) -> None:
    """It may serve other ranges of an owner that only hangs: a kill of one leaves it."""
    entry = of_the_dead(entry_of(RANGE)) if owner_is == "dead" else entry_of(RANGE)
    with a_process() as server:
        Journal(tmp_path).write(replace(entry, supervisor=server))
        assert kill_now(tmp_path, [RANGE]).ok
        assert (identify(server.pid) == server) is (owner_is == "hung")


@pytest.mark.promise("6.3")
def test_a_pid_of_another_is_never_killed(tmp_path: Path) -> None:
    """A number that was used again, or is of another boot, is not the cell's."""
    journal = Journal(tmp_path)
    with a_process() as process:
        journal.write(entry_of(CELL, child=replace(process, start_ticks=process.start_ticks - 1)))
        journal.write(entry_of(OTHER, child=process, boot_id=f"not {boot_id()}"))
        assert kill_now(tmp_path, [CELL, OTHER]).ok
        assert identify(process.pid) == process


@pytest.mark.promise("6.3")
def test_it_acts_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither order nor record: the process is killed all the same, and the report says it."""
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(kill_module, "give_order", full)
    monkeypatch.setattr(kill_module, "write_whole", full)
    with a_process() as process:
        Journal(tmp_path).write(entry_of(CELL, child=process))
        report = kill_now(tmp_path, [CELL])
        assert identify(process.pid) is None
    assert (report.cells[0].ok, report.ok) == (True, False)
    assert any("No space left" in problem for problem in report.problems)


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in os.scandir("/proc/self/fd"))
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)


def without_descriptors(act: Callable[..., Any], *, times: int) -> Callable[..., Any]:
    calls = itertools.count()

    def scarce(*args: object, **named: object) -> object:
        with no_descriptors() if next(calls) < times else nullcontext():
            return act(*args, **named)

    return scarce


@pytest.mark.promise("6.3")
@pytest.mark.parametrize(
    ("place", "step", "times"),
    [
        (kill_module, "strike", 1),
        (kill_module, "started_for", 3),
        (reap_module, "look", 1),
        (os, "listdir", 3),
        (Journal, "read", 4),
        (Journal, "unreadable", 2),
    ],
)
def test_want_of_descriptors_is_waited_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: object, step: str, times: int
) -> None:
    """At the strike, at looks, or while it is proven that all is gone."""
    journal, directory = Journal(tmp_path), tmp_path / f"cell-{CELL}"
    directory.mkdir()
    scarce = without_descriptors(getattr(place, step), times=times)
    with a_process() as one, a_process("--cell", OTHER) as other:
        journal.write(entry_of(CELL, child=one, directories=(directory,)))
        journal.write(entry_of(OTHER))
        monkeypatch.setattr(place, step, scarce)
        report = kill_now(tmp_path, (), everything=True)
        assert (identify(one.pid), identify(other.pid)) == (None, None)
    assert report.ok, report
    assert not directory.exists()
    assert journal.entries() == ()


@pytest.fixture
def _in_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill_module, "HALT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(kill_module, "REMOVE_TIMEOUT_S", 0.05)


@pytest.mark.promise("6.3")
@pytest.mark.usefixtures("_in_little_time")
@pytest.mark.parametrize("step", ["read", "unreadable"])
def test_what_can_never_be_looked_at_is_not_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its processes are ended; that nothing else is left is not claimed."""
    monkeypatch.setattr(Journal, step, without_descriptors(getattr(Journal, step), times=10_000))
    with a_process() as process:
        Journal(tmp_path).write(entry_of(CELL, child=process))
        report = kill_now(tmp_path, (), everything=True)
        assert identify(process.pid) is None
    assert not report.ok
    assert "Too many open files" in " ".join((*report.cells[0].remaining, *report.problems))


@pytest.mark.promise("6.3")
@pytest.mark.usefixtures("_in_little_time")
def test_what_was_never_struck_is_kept_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing could be struck at first: it is struck while it is removed, before its entry goes."""
    monkeypatch.setattr(kill_module, "halt", without_descriptors(kill_module.halt, times=1))
    with a_process() as process:
        Journal(tmp_path).write(entry_of(CELL, child=process))
        report = kill_now(tmp_path, [CELL])
        assert identify(process.pid) is None
    assert Journal(tmp_path).entries() == ()
    assert (report.cells[0].halted_ms, report.ok) == (None, False)


@pytest.mark.promise("6.3")
@pytest.mark.usefixtures("_in_little_time")
@pytest.mark.parametrize("blind", ["entry", "damaged", "group"])
def test_one_that_can_not_be_read_keeps_no_other_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blind: str
) -> None:
    """Its entry, or one that is damaged: it is a problem, and ended by its file's name."""
    group, refused = tmp_path / f"cell-{CELL}", OSError(errno.ENOMEM, "Cannot allocate memory")
    read_text, read_group = Path.read_text, cgroup.processes_in

    def text(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
        if blind == "entry" and path.name == f"{CELL}.json":
            raise refused
        return read_text(path, encoding, errors)

    def processes(directory: Path, *, threads: bool = True) -> tuple[int, ...]:
        if blind == "group" and directory == group:
            raise refused
        return read_group(directory, threads=threads)

    with a_process("--cell", CELL) as one, a_process() as other:
        Journal(tmp_path).write(entry_of(CELL, child=one, cgroups=(group,)))
        Journal(tmp_path).write(entry_of(OTHER, child=other))
        if blind == "damaged":
            (tmp_path / "journal" / f"{CELL}.json").write_text("{")
        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_text", text)
            patched.setattr(cgroup, "processes_in", processes)
            report = kill_now(tmp_path, (), everything=True)
        assert (identify(one.pid), identify(other.pid)) == (None, None)
    cells = {cell.cell_id: cell for cell in report.cells}
    assert cells[OTHER].ok
    assert not report.ok
    if blind != "group":
        assert CELL not in cells or not cells[CELL].ok
        assert ("Cannot allocate memory" if blind == "entry" else CELL) in report.problems[0]
    else:
        assert (cells[CELL].halted_ms, cells[CELL].ok) == (None, False)


@pytest.mark.promise("6.4")
@pytest.mark.anyio
async def test_the_hold_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are listed when the hold is in force: what is made meanwhile sees it."""
    held: list[bool] = []
    real = Journal.entries_now

    def entries_now(journal: Journal, problems: list[str]) -> tuple[JournalEntry, ...]:
        held.append(read_hold(tmp_path) is not None)
        return real(journal, problems)

    monkeypatch.setattr(Journal, "entries_now", entries_now)
    assert (await kill(everything=True, hold=True, reason="stop", home=tmp_path)).ok
    assert held[-1]


def test_a_group_of_version_2_is_killed_whole(tmp_path: Path) -> None:
    """Frozen first, then killed, by the kernel's own files."""
    files = [tmp_path / name for name in ("cgroup.freeze", "cgroup.kill")]
    for file in files:
        file.write_text("0")
    cgroup.halt(tmp_path)
    assert [file.read_text() for file in files] == ["1", "1"]
    cgroup.halt(tmp_path / "nowhere")
    places = map(Path, ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"))
    parent = next((path for path in places if (path / "cgroup.procs").exists()), None)
    if os.geteuid() != 0 or parent is None or os.statvfs(parent).f_flag & os.ST_RDONLY:
        return
    group = parent / f"kill-test-{os.getpid()}"
    group.mkdir()
    try:
        if (group / "cgroup.kill").exists():
            with subprocess.Popen(["sleep", "600"]) as process:
                (group / "cgroup.procs").write_text(str(process.pid))
                cgroup.halt(group)
                assert process.wait(60) == -9
    finally:
        cgroup.remove_group(group)
