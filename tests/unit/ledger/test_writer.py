"""The writer: what is on the disk when `record` has returned, and what happens when it can't be."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from belljar.errors import LedgerError
from belljar.events import Body, Event, Kind
from belljar.ledger.files import is_being_written
from belljar.ledger.keys import SigningKey, load_or_make_key
from belljar.ledger.verification import Status, verify
from belljar.ledger.writer import LedgerWriter, wall_time

from .conftest import body, exec_events, signed_events, wait_until


@pytest.fixture
def key(home: Path) -> SigningKey:
    """A key."""
    return load_or_make_key(home)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An empty run directory."""
    path = tmp_path / "20261120-000000000-abcdef"
    path.mkdir()
    return path


@pytest.fixture
def writer(run_dir: Path, key: SigningKey) -> Iterator[LedgerWriter]:
    """A writer at work."""
    with LedgerWriter(run_dir, key) as made:
        yield made


def hit(reason: str) -> Event:
    """The smallest event."""
    return Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": reason})


def lines_of(run_dir: Path) -> list[dict[str, object]]:
    """The ledger's lines, parsed."""
    return [json.loads(line) for line in (run_dir / "ledger.jsonl").read_bytes().splitlines()]


def test_the_line_is_there_when_record_returns(writer: LedgerWriter, run_dir: Path) -> None:
    """No buffering: another process sees the event at once, with its number, cell, actor and
    trust."""
    for number, event in enumerate(exec_events(1)):
        assert writer.record(event) == number
        line = lines_of(run_dir)[-1]
        assert (line["seq"], line["kind"], line["cell"]) == (number, event.kind.value, "c1")
        assert (line["actor"], line["trust"], line["data"]) == (
            event.actor.value,
            event.trust.value,
            dict(event.data),
        )


def test_bodies_are_stored_once_and_before_the_line(
    writer: LedgerWriter, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal bytes make one file; when the line that names a body is written, the body is there."""
    seen: list[int] = []
    write = os.write

    def watch(fd: int, content: bytes) -> int:
        if bytes(content).startswith(b'{"actor"'):  # a line, not a body or a checkpoint
            seen.append(len([path for path in (run_dir / "bodies").rglob("*") if path.is_file()]))
        return write(fd, content)

    monkeypatch.setattr("belljar.ledger.writer.os.write", watch)
    for _ in range(2):
        writer.record(
            Event(
                kind=Kind.PROTOCOL_VIOLATION, data={"reason": "x"}, bodies=(body("frame", b"12"),)
            )
        )
    assert seen == [1, 1]
    assert writer.body_totals == (1, 2)


@pytest.mark.promise("5.1")
def test_an_event_followed_by_silence_is_signed_within_a_second(
    writer: LedgerWriter, run_dir: Path
) -> None:
    """The promise of a checkpoint every second holds for the last event before a pause too."""
    took_s = []
    for number in range(1, 6):
        writer.record(hit("x"))
        began = time.monotonic()
        wait_until(lambda number=number: signed_events(run_dir) == number, what="a checkpoint")  # type: ignore[misc]
        took_s.append(time.monotonic() - began)
        if took_s[-1] < 1:
            return
    pytest.fail(f"never within a second: {took_s}")  # a busy machine may stall one, not all


def test_a_steady_stream_is_signed_all_along(writer: LedgerWriter, run_dir: Path) -> None:
    """Events that keep coming don't put the checkpoint off."""
    give_up, checkpoints = time.monotonic() + 60, run_dir / "checkpoints.jsonl"
    while not (checkpoints.exists() and checkpoints.read_bytes().count(b"\n") >= 2):
        assert time.monotonic() < give_up
        writer.record(hit("x"))


def test_an_end_that_comes_while_a_checkpoint_begins_is_heard(
    run_dir: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread forgets that it was woken just after `end` woke it for the last time: it ends all
    the same, and so does `end`, which waits for it."""

    class EndsInBetween(threading.Event):
        set_by_end = False

        def set(self) -> None:
            super().set()
            self.set_by_end |= threading.current_thread() is ender

        def clear(self) -> None:
            ender.start()
            wait_until(lambda: self.set_by_end, what="the last wakeup")
            super().clear()

    fake = SimpleNamespace(Lock=threading.Lock, Thread=threading.Thread, Event=EndsInBetween)
    monkeypatch.setattr("belljar.ledger.writer.threading", fake)
    writer, has_ended = LedgerWriter(run_dir, key), threading.Event()

    def end() -> None:
        writer.end()
        has_ended.set()

    ender = threading.Thread(target=end, daemon=True)
    with writer:
        writer.record(hit("x"))
        assert has_ended.wait(timeout=60)


def test_threads_may_record_together(writer: LedgerWriter, run_dir: Path) -> None:
    """Eight threads: every event once, numbered without a gap, chained, verifiable."""
    numbers: list[int] = []

    def work(name: int) -> None:
        for index in range(50):
            event = Event(
                kind=Kind.PROTOCOL_VIOLATION,
                data={"reason": f"{name}.{index}"},
                bodies=(body("frame", b"%d" % (index % 7)),),
            )
            numbers.append(writer.record(event))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(400))
    assert verify(run_dir).events == 400
    assert verify(run_dir).problem is None


def test_a_second_writer_is_refused(writer: LedgerWriter, run_dir: Path, key: SigningKey) -> None:
    """One writer per run, told apart: one that is alive, one that was."""
    assert is_being_written(run_dir)
    with pytest.raises(LedgerError, match="another writer"), LedgerWriter(run_dir, key):
        pass
    writer.__exit__(None, None, None)
    assert not is_being_written(run_dir)
    with pytest.raises(LedgerError, match="a ledger already"), LedgerWriter(run_dir, key):
        pass


@pytest.mark.parametrize(
    "event",
    [
        Event(kind=Kind.EXEC_STARTED, data={"op": 1}),
        Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": "x", "n": 2**60}),
        Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": "x", "n": float("nan")}),
        Event(kind="exec.imagined", data={}),  # type: ignore[arg-type]
        Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": "x" * (17 << 20)}),
        Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": "x"}, bodies=(body("../up", b""),)),
        Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": "x"}, bodies=(body("x", b"1"),) * 65),
        Event(
            kind=Kind.PROTOCOL_VIOLATION,
            data={"reason": "x"},
            bodies=(Body(name="x", content=b"12", total_bytes=1, sha256=""),),
        ),
        Event(
            kind=Kind.PROTOCOL_VIOLATION,
            data={"reason": "x"},
            bodies=(Body(name="x", content=b"12", total_bytes=2, sha256="0" * 64),),
        ),
    ],
)
def test_what_is_no_event_is_refused_and_the_writer_goes_on(
    writer: LedgerWriter, run_dir: Path, event: Event
) -> None:
    """An event against the schema is an error and leaves nothing; the next good one is recorded."""
    with pytest.raises(LedgerError, match="not one"):
        writer.record(event)
    assert writer.record(hit("x")) == 0
    assert verify(run_dir).problem is None


def test_large_data_moves_to_a_body(writer: LedgerWriter, run_dir: Path) -> None:
    """A megabyte of argv is recorded in full, beside the line, and verified there."""
    event = exec_events(1)[0]
    big = Event(kind=event.kind, data={**event.data, "argv": ["x" * (1 << 20), "\udcff"]})
    writer.record(big)
    line = lines_of(run_dir)[0]
    assert line["data"] == {"$body": "data"}
    result = verify(run_dir)
    assert (result.problem, result.bodies) == (None, 1)


@pytest.mark.promise("5.1")
def test_a_full_disk_poisons(
    writer: LedgerWriter, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that takes only a part is a `LedgerError`, and so is every call after it: nothing may
    run without a record."""
    writer.record(hit("x"))
    write = os.write
    monkeypatch.setattr(
        "belljar.ledger.writer.os.write", lambda fd, content: write(fd, content[:10])
    )
    with pytest.raises(LedgerError, match="full"):
        writer.record(hit("y"))
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="full"):
        writer.record(hit("z"))
    with pytest.raises(LedgerError, match="full"):
        writer.end()
    result = verify(run_dir)
    assert (result.status, result.events) == (Status.UNFINISHED, 1)


def test_a_checkpoint_that_fails_poisons(
    writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses to force what it took ends the run at the next event."""

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr("belljar.ledger.writer.os.fsync", refuse)

    def record_for_a_minute() -> None:
        for _ in range(6000):
            writer.record(hit("x"))
            time.sleep(0.01)

    with pytest.raises(LedgerError, match="checkpoint"):
        record_for_a_minute()


@pytest.mark.parametrize("written", [True, False])
def test_an_interrupt_in_the_middle_of_a_record(
    writer: LedgerWriter, run_dir: Path, monkeypatch: pytest.MonkeyPatch, *, written: bool
) -> None:
    """Ctrl-C before or after the write: the next record (a cell's destruction, say) continues the
    chain rightly."""
    write = os.write

    def interrupt(fd: int, content: bytes) -> int:
        if written:
            write(fd, content)
        raise KeyboardInterrupt

    writer.record(hit("a"))
    monkeypatch.setattr("belljar.ledger.writer.os.write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.record(hit("b"))
    monkeypatch.undo()
    assert writer.record(hit("c")) == (2 if written else 1)
    assert verify(run_dir).problem is None


def test_no_event_after_the_end(writer: LedgerWriter) -> None:
    """`end` closes the record; `seal` comes after it."""
    with pytest.raises(ValueError, match="after end"):
        writer.seal("0" * 64)
    writer.end()
    with pytest.raises(LedgerError, match="closed"):
        writer.record(hit("x"))


def test_wall_time() -> None:
    """RFC 3339 in UTC with exactly six digits."""
    assert wall_time(0) == "1970-01-01T00:00:00.000000Z"
    assert wall_time(1_795_211_626_000_123_999) == "2026-11-20T21:53:46.000123Z"
