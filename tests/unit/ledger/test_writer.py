"""The writer: what is on the disk when `record` has returned, and what happens when it can't be."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import FrameType
from unittest.mock import Mock

import pytest

import belljar.ledger.writer as writer_module
from belljar.cell.base import text
from belljar.channel.frames import MAX_REQUEST_BYTES
from belljar.dataclass import replace
from belljar.errors import InvalidEventError, LedgerError
from belljar.events import Body, Event, JsonValue, Kind
from belljar.ledger.chain import parse_canonical
from belljar.ledger.files import is_being_written
from belljar.ledger.keys import SigningKey
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.verification import Status, verify
from belljar.ledger.writer import LedgerWriter

from .conftest import body, exec_events, signed_events, wait_until


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "20261120-000000000-abcdef"
    path.mkdir()
    return path


@pytest.fixture
def writer(run_dir: Path, key: SigningKey) -> Iterator[LedgerWriter]:
    with LedgerWriter(run_dir, key) as made:
        yield made


def hit(reason: str, *bodies: Body) -> Event:
    return Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": reason}, bodies=bodies)


def files_of_bodies(run_dir: Path) -> list[Path]:
    return [path for path in (run_dir / "bodies").rglob("*") if path.is_file()]


def test_bodies_are_stored_once_and_before_the_line(
    writer: LedgerWriter, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal bytes make one file; when the line that names a body is written, the body is there."""
    seen: list[int] = []
    write = os.write

    def watch(fd: int, content: bytes) -> int:
        if bytes(content).startswith(b'{"actor"'):  # a line, not a body or a checkpoint
            seen.append(len(files_of_bodies(run_dir)))
        return write(fd, content)

    monkeypatch.setattr("belljar.ledger.writer.os.write", watch)
    for _ in range(2):
        writer.record(hit("x", body("frame", b"12")))
    assert seen == [1, 1]
    assert writer.body_totals == {"count": 1, "bytes": 2}
    (kept,) = files_of_bodies(run_dir)
    assert kept.stat().st_mode & 0o777 == 0o600


def test_the_digest_of_a_body_is_never_that_of_a_part(writer: LedgerWriter, run_dir: Path) -> None:
    """Of what the host did not see whole it is null; what was kept has a digest of its own."""
    part = hashlib.sha256(b"12").hexdigest()
    writer.record(hit("x", Body(name="x", content=b"12", total_bytes=3, sha256="")))
    (line,) = map(parse_canonical, (run_dir / "ledger.jsonl").read_bytes().splitlines())
    (ref,) = line["bodies"]
    assert (ref["sha256"], ref["stored_sha256"], ref["total_bytes"]) == (None, part, 3)
    assert verify(run_dir).problem is None


def test_what_no_line_can_hold_is_beside_it_or_refused(writer: LedgerWriter, run_dir: Path) -> None:
    """What is too deep for a reader is refused; the longest argv, escaped, is recorded in full."""
    value: dict[str, JsonValue] = {}
    for _ in range(97):
        value = {"a": value}
    writer.record(replace(hit("x"), data={"reason": "x", "more": value}))
    with pytest.raises(InvalidEventError):
        writer.record(replace(hit("x"), data={"reason": "x", "more": {"a": value}}))
    event = exec_events(1)[0]
    writer.record(
        replace(event, data={**event.data, "argv": [text(b"\xff" * MAX_REQUEST_BYTES), "\udcff"]})
    )
    _, large = (parse_canonical(line) for line in (run_dir / "ledger.jsonl").read_bytes().split())
    assert large["data"] == {"$body": "data"}
    result = verify(run_dir)
    assert (result.problem, result.bodies) == (None, 1)


@pytest.mark.promise("5.2")
def test_no_body_of_an_event_passes_for_its_data(writer: LedgerWriter, run_dir: Path) -> None:
    """A gateway's body of that name would be read in place of the long data that was checked."""
    large, forged = {"reason": "x", "more": "x" * (1 << 16)}, b'{"reason":"y"}'
    digest = hashlib.sha256(forged).hexdigest()
    own = Body(name="data", content=forged, total_bytes=len(forged), sha256=digest)
    with pytest.raises(InvalidEventError, match="two bodies of one name"):
        writer.record(replace(hit("x", own), data=large))
    writer.record(hit("x"))
    assert verify(run_dir).problem is None


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


def test_threads_may_record_together(writer: LedgerWriter, run_dir: Path) -> None:
    """Eight threads: every event once, numbered without a gap, chained, verifiable."""
    numbers: list[int] = []

    def work(name: int) -> None:
        for index in range(50):
            content = b"%d" % (index % 7)
            numbers.append(writer.record(hit(f"{name}.{index}", body("frame", content))))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sorted(numbers) == list(range(400))
    result = verify(run_dir)
    assert (result.events, result.problem) == (400, None)


def test_a_second_writer_is_refused(writer: LedgerWriter, run_dir: Path, key: SigningKey) -> None:
    """One writer per run, told apart: one that is alive, one that was. `end` closes the record."""
    assert is_being_written(run_dir)
    with pytest.raises(LedgerError, match="another writer"), LedgerWriter(run_dir, key):
        pass
    with pytest.raises(ValueError, match="after end"):  # `seal` comes after it
        writer.seal("0" * 64)
    writer.end()
    with pytest.raises(LedgerError, match="closed"):
        writer.record(hit("x"))
    writer.__exit__(None, None, None)
    assert not is_being_written(run_dir)
    with pytest.raises(LedgerError, match="a ledger already"), LedgerWriter(run_dir, key):
        pass


def test_what_is_no_event_is_refused_and_the_writer_goes_on(
    writer: LedgerWriter, run_dir: Path
) -> None:
    """An event against the schema is an error and leaves nothing; the next good one is recorded."""
    for event in (
        Event(kind=Kind.EXEC_STARTED, data={"op": 1}),
        Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": "x", "n": 2**60}),
        Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": "x", "n": float("nan")}),
        Event(kind="exec.imagined", data={}),  # type: ignore[arg-type]
        hit("x" * (33 << 20)),
        hit("x", *[body("x", b"1")] * 65),
        hit("x", Body(name="x", content=b"12", total_bytes=1, sha256="")),
        hit("x", Body(name="x", content=b"12", total_bytes=2, sha256="0" * 64)),
        *(hit("x", body(name, b"")) for name in ("", "A", "../x", "x" * 65, ".x", "x\n", "é")),
    ):
        with pytest.raises(LedgerError, match="not one"):
            writer.record(event)
    assert writer.record(hit("x")) == 0
    assert verify(run_dir).problem is None


@pytest.mark.promise("5.1")
def test_a_full_disk_poisons(
    writer: LedgerWriter, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that takes only a part is a `LedgerError`, and so is every call after it."""
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
    refuse = Mock(side_effect=OSError(errno.EIO, "I/O error"))
    monkeypatch.setattr("belljar.ledger.writer.os.fsync", refuse)
    with pytest.raises(LedgerError, match="checkpoint"):  # noqa: PT012 - at one of these
        for _ in range(6000):
            writer.record(hit("x"))
            time.sleep(0.01)


# What changes something; the rest of `record` makes the line and the bodies.
_CHANGES = {"_write", "keep", "_append", "_write_once", "name"}


class _Interrupted:
    """Raises KeyboardInterrupt at the nth line of these functions."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, what: str, _: object) -> _Interrupted:
        of_writer = frame.f_code.co_filename == writer_module.__file__
        if not of_writer or frame.f_code.co_name not in _CHANGES:
            return self
        self.left -= what == "line"
        if what == "line" and self.left == 0:
            raise KeyboardInterrupt
        return self


@pytest.mark.promise("5.2")
def test_an_interrupt_anywhere_in_a_record(home: Path) -> None:
    """Ctrl-C at any line of `record`."""
    event = Event(kind=Kind.CELL_CLONING, bodies=(body("a", b"one"), body("b", b"two")))
    interrupt, recorded = _Interrupted(0), set[int]()
    for at in count(1):
        interrupt, before = _Interrupted(at), sys.gettrace()
        with RunDirectory(home, "exec", []) as run:
            sys.settrace(interrupt)
            try:
                with suppress(KeyboardInterrupt):
                    run.recorder.record(event)
            finally:
                sys.settrace(before)
            recorded.add(run.recorder.record(hit("b", body("b", b"two"))))
        result = verify(run.path)
        assert (result.status, result.problem) == (Status.VERIFIED, None), at
        kept = len(files_of_bodies(run.path))
        assert run.recorder.body_totals == {"count": kept, "bytes": 3 * kept}
        shutil.rmtree(run.path)
        if interrupt.left > 0:  # it has run to its end
            break
    # Before its line was written, and behind it.
    assert recorded == {1, 2}


def test_what_was_recorded_before_an_end_that_was_not_sealed_is_signed(
    run_dir: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt between the end and the seal leaves no event without a signature."""
    monkeypatch.setattr("belljar.ledger.writer.CHECKPOINT_INTERVAL_S", 3600)
    with LedgerWriter(run_dir, key) as writer:
        writer.record(hit("the last"))
        writer.end()
    assert signed_events(run_dir) == 1
