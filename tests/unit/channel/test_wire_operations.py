"""The rules of one operation and of watched files as short dialogues."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes import guest as g
from tests.fakes.wires import (
    STARTED,
    WINDOW,
    data,
    ready_read,
    ready_write,
    refused,
    renewed,
    result,
    unstarted,
    with_exec,
    with_read,
    with_write,
)

from belljar.channel.frames import (
    Answer,
    FrameType,
    Outcome,
    Progress,
    Result,
    ResultFlag,
    SignalScope,
    Stage,
    Touched,
)
from belljar.channel.outcomes import ExecRequest, exec_body, file_error
from belljar.channel.wire import HostConnection

# ---- operations


def test_output_needs_started_and_an_open_stream() -> None:
    """No output before STARTED, after EOF, on another stream, or without content."""
    refused(with_exec(started=False), data(1, b"x"), "not open")
    refused(with_exec(started=False), g.frame(g.EOF, 1, b"\1"), "not open")
    for stream in (0, 3, 255):
        refused(with_exec(), data(stream, b"x"), "not open")
        refused(with_exec(), g.frame(g.EOF, 1, bytes((stream,))), "not open")
    for late in (data(1, b"x"), g.frame(g.EOF, 1, b"\1")):
        wire = with_exec()
        wire.feed(g.frame(g.EOF, 1, b"\1"))
        refused(wire, late, "not open")
    refused(with_exec(pty=True), data(2, b"x"), "not open")
    refused(ready_read(), data(2, b"x"), "not open")
    refused(ready_write(), data(1, b"x"), "not open")
    refused(with_exec(), g.frame(g.DATA, 1, b"\1"), "without a byte")
    refused(with_exec(), g.frame(g.DATA, 1, b""), "without a byte")


@pytest.mark.promise("4.1")
def test_output_stays_within_its_cap() -> None:
    """Each stream's cap holds; the last byte that is allowed is taken, the next is refused."""
    wire = with_exec(caps=(3, 0))
    wire.feed(data(1, b"abc"))
    refused(wire, data(1, b"d"), "0 were granted")
    refused(with_exec(caps=(3, 0)), data(2, b"d"), "0 were granted")
    refused(with_exec(caps=(3, 0)), data(1, b"abcd"), "4 bytes where 3")
    wire = with_read(max_bytes=2)
    wire.feed(g.frame(g.STARTED, 1, STARTED) + data(1, b"abc"))
    refused(wire, data(1, b"d"), "0 were granted")


@pytest.mark.promise("4.1")
def test_output_stays_within_its_credit() -> None:
    """One window of 1 MiB for both streams together."""
    wire = with_exec(caps=(1 << 64, 1 << 64))
    for stream in (1, 2):
        for _ in range(8):
            wire.feed(data(stream, bytes(65_535)))
    wire.feed(data(1, bytes(16)))
    with pytest.raises(RuntimeError, match="more output credit"):
        wire.send_credit(1, (1 << 20) + 1)
    assert wire.send_credit(1, 5) == g.frame(g.CREDIT, 1, struct.pack("<I", 5))
    wire.feed(data(2, b"12345"))
    refused(wire, data(1, b"x"), "1 bytes where 0")


def test_stdin_credit() -> None:
    """The guest gives back what it took of stdin: never nothing, never above the window."""
    wire = with_exec()
    assert wire.stdin_credit(1) == WINDOW
    assert wire.send_data(1, b"x" * 400) == g.frame(g.DATA, 1, b"\0" + b"x" * 400)
    assert wire.feed(g.frame(g.CREDIT, 1, struct.pack("<I", 400))) == [
        Progress(kind=FrameType.CREDIT, op=1, value=400)
    ]
    assert wire.stdin_credit(1) == WINDOW
    refused(wire, g.frame(g.CREDIT, 1, struct.pack("<I", 1)), "on top of 1000")
    refused(with_exec(), g.frame(g.CREDIT, 1, struct.pack("<I", 0)), "0 bytes of credit")
    refused(with_exec(), g.frame(g.CREDIT, 1, struct.pack("<I", 0xFFFFFFFF)), "window is 1000")
    refused(with_read(), g.frame(g.CREDIT, 1, struct.pack("<I", 1)), "on top of 1000")


def test_started() -> None:
    """STARTED comes once; it says a size only for a read, and one that can be."""
    refused(with_exec(), g.frame(g.STARTED, 1, STARTED), "twice")
    refused(with_exec(started=False), g.frame(g.STARTED, 1, struct.pack("<Q", 1)), "info 1")
    refused(with_write(), g.frame(g.STARTED, 1, struct.pack("<Q", 1)), "info 1")
    assert with_read().feed(g.frame(g.STARTED, 1, struct.pack("<Q", 1 << 40))) == [
        Progress(kind=FrameType.STARTED, op=1, value=1 << 40)
    ]
    refused(with_read(), g.frame(g.STARTED, 1, struct.pack("<Q", 1 << 63)), "STARTED")


CODES: list[tuple[Callable[[], HostConnection], list[tuple[int, int]]]] = [
    (with_exec, [(0, 256), (0, -1), (1, 0), (1, 65), (3, errno.EIO), (2, errno.ENOENT), (4, 0)]),
    (unstarted, [(0, 0), (2, 0), (2, 4096), (2, -2)]),
    *((with_read, [(0, 0)]), (with_write, [(0, 0)]), (ready_read, [(0, 1)])),
    (ready_write, [(0, 1), (3, 0)]),
]
FIELDS: list[dict[str, Any]] = [
    *({"flags": 64}, {"stage": 11}, {"dropped": (1 << 51, 0)}, {"dropped": (0, 1 << 63)}),
    *({"duration_ns": 1 << 63}, {"detail": "x" * 4097}),
]


def test_results_that_can_not_be() -> None:
    """An ending whose code, outcome, flags, stage or counts can't be is refused."""
    for make, endings in CODES:
        for outcome, code in endings:
            refused(make(), result(outcome, code), "outcome|count|text of|runs on")
    for fields in FIELDS:
        refused(with_exec(), result(0, 0, **fields), "outcome|count|text of|runs on")


# ---- the host's side


def test_a_program_that_is_let_go() -> None:
    """It runs on after RESULT only when the host said that it may."""
    wire = with_exec()
    assert wire.send_signal(1, 18, SignalScope.LEAVE) == g.frame(g.SIGNAL, 1, b"\x12\2")
    (ended,) = wire.feed(result(flags=64))
    assert isinstance(ended, Result)
    assert ResultFlag.RUNS_ON in ended.flags


# ---- watched files


def asked(paths: int = 2, touches: int = 3) -> HostConnection:
    wire = renewed()
    assert wire.send_watch(["/a"] * paths, touches)
    return wire


def watching() -> HostConnection:
    wire = asked()
    assert wire.feed(watched(0, 0, 2)) == [Answer(kind=FrameType.WATCHED, errors=(0, 2))]
    return wire


def watched(code: int, *errors: int) -> bytes:
    return g.frame(g.WATCHED, 0, struct.pack(f"<{2 + len(errors)}I", code, len(errors), *errors))


def touched(index: int = 0, operation: int = 1, count: int = 1, name: str = "cat") -> bytes:
    return g.frame(g.TOUCHED, 0, struct.pack("<IHII", index, operation, count, 7) + g.text(name))


def test_touches_are_reported_until_the_watch_ends() -> None:
    """With their file's place; what comes between the host's WATCH and its answer counts, too."""
    wire = watching()
    touch = Touched(index=1, operation=2, count=5, pid=7, process="cat")
    assert wire.feed(touched(1, 2, 5)) == [touch]
    wire.send_watch([], 0)
    assert wire.feed(touched(1, 2, 5) + watched(0)) == [touch, Answer(kind=FrameType.WATCHED)]
    refused(wire, touched(), "on file 0")


@pytest.mark.promise("5.6")
def test_what_a_guest_may_not_report() -> None:
    """Files that nobody named, counts that can't be, more than it was allowed."""
    cases: tuple[tuple[Callable[[], HostConnection], bytes, str], ...] = (
        (renewed, watched(0), "not asked for"),
        (renewed, touched(), "on file 0"),
        (asked, touched(), "on file 0"),
        (asked, watched(0, 0), "1 answers for 2"),
        (asked, watched(0, 0, 0, 0), "3 answers for 2"),
        (asked, watched(0), "0 answers for 2"),
        (asked, watched(4096), "errno 4096"),
        (asked, watched(0, 0, 4096), "errno"),
        (watching, touched(2), "on file 2"),
        (watching, touched(0, 0), "operation 0"),
        (watching, touched(0, 4), "operation 4"),
        (watching, touched(0, 1, 0), "0 times"),
        (watching, touched(name="x" * 257), "too long"),
        (watching, touched() * 4, "more touches"),
    )
    for make, said, why in cases:
        refused(make(), said, why)


# ---- as its caller reads it


def test_a_file_nobody_looked_at_is_not_missing() -> None:
    """An unknown user, or a helper that could not start, says nothing of the file."""
    for stage in (Stage.USER, Stage.FORK, Stage.REQUEST, Stage.CREDENTIALS):
        words: dict[str, Any] = {"flags": ResultFlag(0), "stage": stage, "detail": "\x1b[2J"}
        words |= dict.fromkeys(("stdout_dropped_bytes", "stderr_dropped_bytes", "duration_ns"), 0)
        ended = Result(op=1, outcome=Outcome.NOT_STARTED, code=errno.ENOENT, **words)
        error = file_error(ended, "p")
        assert (type(error), error.errno) == (OSError, errno.EIO), stage
        assert "\x1b" not in str(error)


def test_a_nul_ends_no_word() -> None:
    """The guest would run another command than the one on record."""
    for request in (ExecRequest(argv=["a\0b"]), ExecRequest(argv=["a"], env={"A": "b\0"})):
        with pytest.raises(ValueError, match="NUL"):
            exec_body(request)
