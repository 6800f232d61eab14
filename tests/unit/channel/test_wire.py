"""Every rule of the protocol as a short dialogue: what the guest may say when, and that anything else ends the conversation."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import guest as g

from belljar.channel import frames
from belljar.channel.frames import Outcome, RenewedBit, ResultFlag, SignalScope, Stage, Stream
from belljar.channel.messages import (
    Configured,
    Credit,
    Data,
    Eof,
    Fatal,
    GuestEvent,
    Pong,
    Ready,
    Renewed,
    Result,
    Started,
    Welcome,
)
from belljar.channel.wire import HostConnection
from belljar.errors import ProtocolViolation

NONCE = bytes(range(16))
WINDOW = 1000
READY = g.frame(g.READY, 0, struct.pack("<H", 1) + g.text("build 7"))
RENEWAL = frames.renew_payload(realtime_ns=1, seed=bytes(32), machine_id="0" * 32, boot_id="0" * 36, hostname="h")
RENEWED = g.frame(g.RENEWED, 0, struct.pack("<I", 31) + g.text(""))
STARTED = struct.pack("<Q", 0)


def welcome(version: int = 1, nonce: bytes = NONCE, max_ops: int = 64, window: int = WINDOW) -> bytes:
    """A WELCOME."""
    return g.frame(g.WELCOME, 0, struct.pack("<H", version) + nonce + struct.pack("<II", max_ops, window))


def greeted() -> HostConnection:
    """A connection that has shaken hands."""
    wire = HostConnection()
    wire.send_hello(NONCE)
    wire.feed(welcome())
    return wire


def renewed() -> HostConnection:
    """A connection that may start operations."""
    wire = greeted()
    wire.send_renew(RENEWAL)
    wire.feed(RENEWED)
    return wire


def with_exec(
    *, stdin_open: bool = True, pty: bool = False, caps: tuple[int, int] = (5000, 5000), started: bool = True
) -> HostConnection:
    """A connection with exec 1 live."""
    wire = renewed()
    op, _ = wire.start_exec(b"body", stdin_open=stdin_open, pty=pty, stdout_cap=caps[0], stderr_cap=caps[1])
    assert op == 1
    if started:
        wire.feed(g.frame(g.STARTED, 1, STARTED))
    return wire


def with_read(max_bytes: int = 100) -> HostConnection:
    """A connection with read 1 live and not started."""
    wire = renewed()
    wire.start_read(b"body", max_bytes=max_bytes)
    return wire


def with_write() -> HostConnection:
    """A connection with write 1 live and not started."""
    wire = renewed()
    wire.start_write(b"body")
    return wire


def data(stream: int, content: bytes, op: int = 1) -> bytes:
    """A DATA."""
    return g.frame(g.DATA, op, bytes((stream,)) + content)


def result(outcome: int = 0, code: int = 0, op: int = 1, **rest: object) -> bytes:
    """A RESULT."""
    return g.frame(g.RESULT, op, g.result_payload(outcome, code, **rest))  # type: ignore[arg-type]


def refused(wire: HostConnection, said: bytes, why: str) -> None:
    """The guest may not say this; the connection is poisoned for good, and holds nothing."""
    with pytest.raises(ProtocolViolation, match=why) as caught:
        wire.feed(said)
    assert caught.value.where.startswith("channel, ")
    assert caught.value.mend
    with pytest.raises(ProtocolViolation, match=why):
        wire.feed(b"")
    assert (wire.pending_bytes, wire.live_ops) == (0, 0)


# ---- frames


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (struct.pack("<IBBHI", 65_537, g.PONG, 0, 0, 0), "length 65537"),
        (struct.pack("<IBBHI", 0xFFFFFFFF, g.PONG, 0, 0, 0), "length 4294967295"),
        (struct.pack("<IBBHI", 0, g.PONG, 1, 0, 0), "flags 1"),
        (struct.pack("<IBBHI", 0, g.PONG, 0, 1, 0), "reserved 1"),
    ],
)
def test_header(header: bytes, why: str) -> None:
    """A length over the limit or a non-zero reserved field is refused before any payload is waited for."""
    refused(renewed(), header, why)


@pytest.mark.parametrize(
    "kind", [0, g.HELLO, g.CONFIG, g.RENEW, g.PING, g.PART, g.START, g.SIGNAL, g.RESIZE, 0x0B, 0x19, 255]
)
def test_types_that_a_guest_may_not_send(kind: int) -> None:
    """Unknown types and the host's own are refused."""
    refused(with_exec(), g.frame(kind, 1, b"\1\2\3\4"), "may not send")


@pytest.mark.parametrize(
    "said", [READY, welcome(), RENEWED, g.frame(g.PONG, 0, bytes(8)), g.frame(g.FATAL, 0, g.text("x"))]
)
def test_connection_frames_name_no_operation(said: bytes) -> None:
    """A connection frame with an operation's id is refused."""
    refused(with_exec(), said[:8] + struct.pack("<I", 1) + said[12:], "names an operation")


@pytest.mark.parametrize("kind", [g.DATA, g.EOF, g.CREDIT, g.STARTED, g.RESULT])
@pytest.mark.parametrize("op", [0, 2, 0xFFFFFFFF])
def test_operation_frames_need_a_live_operation(kind: int, op: int) -> None:
    """A frame for no operation, one that never was, or one to come is refused."""
    refused(with_exec(), g.frame(kind, op, b"\1\1\1\1"), "not live")


def _complete_frames() -> list[tuple[str, Callable[[], HostConnection], bytes]]:
    configured = g.frame(g.CONFIGURED, 0, struct.pack("<I", 2) + g.text("why"))

    def asked(what: Callable[[HostConnection], object]) -> Callable[[], HostConnection]:
        def make() -> HostConnection:
            wire = greeted()
            what(wire)
            return wire

        return make

    def helloed() -> HostConnection:
        wire = HostConnection()
        wire.send_hello(NONCE)
        return wire

    return [
        ("READY", HostConnection, READY),
        ("WELCOME", helloed, welcome()),
        ("CONFIGURED", asked(lambda w: w.send_config(b"x")), configured),
        ("RENEWED", asked(lambda w: w.send_renew(RENEWAL)), RENEWED),
        ("PONG", asked(lambda w: w.send_ping(7)), g.frame(g.PONG, 0, struct.pack("<Q", 7))),
        ("FATAL", HostConnection, g.frame(g.FATAL, 0, g.text("over"))),
        ("STARTED", lambda: with_exec(started=False), g.frame(g.STARTED, 1, STARTED)),
        ("EOF", with_exec, g.frame(g.EOF, 1, b"\1")),
        ("RESULT", with_exec, result(detail="why")),
    ]


@pytest.mark.parametrize(
    ("name", "make", "said"), _complete_frames(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_payloads_have_exactly_their_fields(name: str, make: Callable[[], HostConnection], said: bytes) -> None:
    """Each frame is taken as it should be; a payload one byte shorter, at every length, or one byte longer is refused."""
    assert len(make().feed(said)) == 1
    payload = said[12:]
    for length in range(len(payload)):
        refused(
            make(),
            g.frame(said[4], int(name in {"STARTED", "EOF", "RESULT"}), payload[:length]),
            "should be longer|other nonce",
        )
    refused(make(), g.frame(said[4], int(name in {"STARTED", "EOF", "RESULT"}), payload + b"\0"), "too many")


def test_texts_are_bounded_and_decoded() -> None:
    """A text has at most 4,096 bytes whatever the frame could hold, and what is no UTF-8 is shown as escapes."""
    wire = HostConnection()
    assert wire.feed(g.frame(g.FATAL, 0, g.text(b"\xff\xc3\xa9" + b"x" * 4093))) == [
        Fatal(detail="\\xffé" + "x" * 4093)
    ]
    refused(HostConnection(), g.frame(g.FATAL, 0, g.text(b"x" * 4097)), "4097")


# ---- the connection


def test_the_whole_greeting() -> None:
    """READY, WELCOME, CONFIGURED, RENEWED and PONGs are taken in their order."""
    wire = HostConnection()
    assert wire.feed(READY) == [Ready(version=1, build="build 7")]
    assert wire.send_hello(NONCE) == g.frame(g.HELLO, 0, b"\1\0" + NONCE)
    assert wire.feed(welcome()) == [Welcome(version=1, max_ops=64, stdin_window_bytes=WINDOW)]
    wire.send_config(b"c")
    assert wire.feed(g.frame(g.CONFIGURED, 0, struct.pack("<I", 2) + g.text("d"))) == [Configured(errno=2, detail="d")]
    wire.send_renew(RENEWAL)
    done = RenewedBit.RNG | RenewedBit.BOOT_ID
    assert wire.feed(g.frame(g.RENEWED, 0, struct.pack("<I", 9) + g.text(""))) == [Renewed(done=done, detail="")]
    wire.send_ping(1), wire.send_ping(2)
    pongs = [g.frame(g.PONG, 0, struct.pack("<Q", cookie)) for cookie in (1, 2)]
    assert wire.feed(pongs[0] + pongs[1]) == [Pong(cookie=1), Pong(cookie=2)]


def test_unasked_answers() -> None:
    """No answer without its question, none twice, none that doesn't match."""
    refused(greeted(), READY, "after WELCOME")
    wire = HostConnection()
    wire.feed(READY)
    refused(wire, READY, "twice")
    refused(HostConnection(), welcome(), "nobody asked")
    refused(greeted(), welcome(), "nobody asked")
    refused(greeted(), g.frame(g.CONFIGURED, 0, struct.pack("<I", 0) + g.text("")), "nobody asked")
    refused(greeted(), RENEWED, "nobody asked")
    refused(renewed(), RENEWED, "nobody asked")
    refused(renewed(), g.frame(g.PONG, 0, bytes(8)), "answers no PING")
    wire = renewed()
    wire.send_ping(1), wire.send_ping(2)
    refused(wire, g.frame(g.PONG, 0, struct.pack("<Q", 2)), "out of order")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (welcome(version=2), "version 2"),
        (welcome(nonce=bytes(16)), "nonce"),
        (welcome(max_ops=0), "0 operations"),
        (welcome(window=0), "window of 0"),
        (welcome(window=(16 << 20) + 1), "window of 16777217"),
    ],
)
def test_welcome(said: bytes, why: str) -> None:
    """WELCOME has our version, our nonce and grants that make sense."""
    wire = HostConnection()
    wire.send_hello(NONCE)
    refused(wire, said, why)


def test_values_of_the_connection() -> None:
    """Another READY version, an impossible errno and unknown done bits are refused."""
    refused(HostConnection(), g.frame(g.READY, 0, struct.pack("<H", 0) + g.text("")), "version 0")
    wire = greeted()
    wire.send_config(b"")
    refused(wire, g.frame(g.CONFIGURED, 0, struct.pack("<I", 4096) + g.text("")), "errno 4096")
    wire = greeted()
    wire.send_renew(RENEWAL)
    refused(wire, g.frame(g.RENEWED, 0, struct.pack("<I", 32) + g.text("")), "done bits")


def test_nothing_is_read_after_fatal() -> None:
    """What follows FATAL is ignored, in the same piece and in later ones."""
    wire = with_exec()
    assert wire.feed(g.frame(g.FATAL, 0, g.text("over")) + b"\xff" * 100) == [Fatal(detail="over")]
    assert wire.feed(b"\xff" * 100) == []
    assert wire.pending_bytes == 0


# ---- operations


def test_an_exec() -> None:
    """STARTED, DATA, EOF and RESULT are taken; afterwards the operation is dead."""
    wire = with_exec(started=False)
    assert wire.feed(g.frame(g.STARTED, 1, STARTED)) == [Started(op=1, info=0)]
    assert wire.feed(data(1, b"out") + data(2, b"err")) == [
        Data(op=1, stream=Stream.STDOUT, content=b"out"),
        Data(op=1, stream=Stream.STDERR, content=b"err"),
    ]
    assert wire.feed(g.frame(g.EOF, 1, b"\2")) == [Eof(op=1, stream=Stream.STDERR)]
    said = result(1, 9, flags=15, stage=3, dropped=(5, 6), duration_ns=7, detail="why")
    assert wire.feed(said) == [
        Result(
            op=1,
            outcome=Outcome.SIGNALED,
            flags=ResultFlag(15),
            stage=Stage.EXEC,
            code=9,
            stdout_dropped_bytes=5,
            stderr_dropped_bytes=6,
            duration_ns=7,
            detail="why",
        )
    ]
    assert not wire.is_live(1)
    for late in (data(1, b"x"), result(), g.frame(g.CREDIT, 1, struct.pack("<I", 1))):
        dead = with_exec()
        dead.feed(result())
        refused(dead, late, "not live")


def test_output_needs_started_and_an_open_stream() -> None:
    """No output before STARTED, after EOF, on stdin, or on a stream that the operation doesn't have."""
    refused(with_exec(started=False), data(1, b"x"), "not begun")
    refused(with_exec(started=False), g.frame(g.EOF, 1, b"\1"), "not begun")
    for stream in (0, 3, 255):
        refused(with_exec(), data(stream, b"x"), "does not exist")
        refused(with_exec(), g.frame(g.EOF, 1, bytes((stream,))), "does not exist")
    wire = with_exec()
    wire.feed(g.frame(g.EOF, 1, b"\1"))
    refused(wire, data(1, b"x"), "has ended")
    wire = with_exec()
    wire.feed(g.frame(g.EOF, 1, b"\1"))
    refused(wire, g.frame(g.EOF, 1, b"\1"), "has ended")
    refused(with_exec(pty=True), data(2, b"x"), "does not exist")
    wire = with_read()
    wire.feed(g.frame(g.STARTED, 1, STARTED))
    refused(wire, data(2, b"x"), "does not exist")
    wire = with_write()
    wire.feed(g.frame(g.STARTED, 1, STARTED))
    refused(wire, data(1, b"x"), "does not exist")


def test_data_has_a_byte() -> None:
    """DATA without content, and without a stream, is refused."""
    refused(with_exec(), g.frame(g.DATA, 1, b"\1"), "without a byte")
    refused(with_exec(), g.frame(g.DATA, 1, b""), "without a byte")


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


def test_output_stays_within_its_credit() -> None:
    """One window of 1 MiB for both streams together; CREDIT gives back what was taken and no more."""
    wire = with_exec(caps=(frames.NO_CAP, frames.NO_CAP))
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
    """The guest gives back what it took of stdin: never nothing, never above the window; what was granted may be sent."""
    wire = with_exec()
    assert wire.stdin_credit(1) == WINDOW
    assert wire.send_data(1, b"x" * 400) == g.frame(g.DATA, 1, b"\0" + b"x" * 400)
    assert wire.feed(g.frame(g.CREDIT, 1, struct.pack("<I", 400))) == [Credit(op=1, granted_bytes=400)]
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
    assert with_read().feed(g.frame(g.STARTED, 1, struct.pack("<Q", 1 << 40))) == [Started(op=1, info=1 << 40)]
    refused(with_read(), g.frame(g.STARTED, 1, struct.pack("<Q", 1 << 63)), "STARTED")


def ready_read() -> HostConnection:
    """A read that has started."""
    wire = with_read()
    wire.feed(g.frame(g.STARTED, 1, STARTED))
    return wire


def ready_write() -> HostConnection:
    """A write that has started."""
    wire = with_write()
    wire.feed(g.frame(g.STARTED, 1, STARTED))
    return wire


def unstarted() -> HostConnection:
    """An exec that has not started."""
    return with_exec(started=False)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (with_exec, result(0, 256)),
        (with_exec, result(0, -1)),
        (with_exec, result(1, 0)),
        (with_exec, result(1, 65)),
        (with_exec, result(3, errno.EIO)),
        (with_exec, result(2, errno.ENOENT)),
        (unstarted, result(0, 0)),
        (unstarted, result(2, 0)),
        (unstarted, result(2, 4096)),
        (unstarted, result(2, -2)),
        (with_read, result(0, 0)),
        (with_write, result(0, 0)),
        (ready_read, result(0, 1)),
        (ready_write, result(0, 1)),
        (ready_write, result(3, 0)),
        (with_exec, result(4, 0)),
        (with_exec, result(0, 0, flags=16)),
        (with_exec, result(0, 0, stage=11)),
        (with_exec, result(0, 0, dropped=(1 << 63, 0))),
        (with_exec, result(0, 0, dropped=(0, 1 << 63))),
        (with_exec, result(0, 0, duration_ns=1 << 63)),
        (with_exec, result(0, 0, detail="x" * 4097)),
    ],
)
def test_results_that_can_not_be(make: Callable[[], HostConnection], said: bytes) -> None:
    """An ending whose code, outcome, flags, stage or counts can't be is refused."""
    refused(make(), said, "outcome|count|text of")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (with_exec, result(0, 255)),
        (with_exec, result(1, 64)),
        (unstarted, result(1, 9)),
        (unstarted, result(2, errno.ENOENT, stage=3)),
        (with_read, result(3, errno.ENOENT, stage=5)),
        (with_read, result(2, errno.ESRCH, stage=1)),
        (ready_read, result(3, errno.EFBIG, stage=6)),
        (ready_read, result(1, 9)),
        (ready_write, result(2, errno.EPERM, stage=10)),
        (ready_write, result(0, 0)),
    ],
)
def test_results_that_can_be(make: Callable[[], HostConnection], said: bytes) -> None:
    """The endings that real operations have are taken, with or without EOF before."""
    assert isinstance(make().feed(said)[0], Result)


# ---- the host's side


def test_the_hosts_own_order() -> None:
    """What the host may not send yet, or not again, is the caller's mistake and not sent."""
    wire = HostConnection()
    for send in (wire.send_config, wire.send_renew):
        with pytest.raises(RuntimeError):
            send(b"")
    with pytest.raises(RuntimeError):
        wire.send_ping(1)
    wire.send_hello(NONCE)
    with pytest.raises(RuntimeError):
        wire.send_hello(NONCE)
    with pytest.raises(RuntimeError):
        greeted().start_read(b"", max_bytes=1)
    wire = greeted()
    wire.send_config(b"")
    with pytest.raises(RuntimeError):
        wire.send_config(b"")


def test_operation_ids() -> None:
    """Ids begin with 1 and only grow, also after an operation has ended; a request that can't be sent uses none."""
    wire = renewed()
    with pytest.raises(OSError, match="at most"):
        wire.start_write(bytes(frames.MAX_REQUEST_BYTES + 1))
    ids = []
    for _ in range(3):
        ids.append(wire.start_write(b"")[0])
        wire.feed(result(3, errno.EIO, op=ids[-1]))
    assert ids == [1, 2, 3]


def test_no_more_operations_than_the_guest_takes() -> None:
    """`max_ops` of WELCOME is kept."""
    wire = HostConnection()
    wire.send_hello(NONCE)
    wire.feed(welcome(max_ops=2))
    wire.send_renew(RENEWAL)
    wire.feed(RENEWED)
    wire.start_write(b"")
    wire.start_write(b"")
    with pytest.raises(RuntimeError, match="2 operations"):
        wire.start_write(b"")


def test_what_is_sent_to_the_dead_is_not_sent() -> None:
    """After RESULT the host sends nothing more of the operation."""
    wire = with_exec()
    wire.feed(result())
    sent = [
        wire.send_data(1, b"x"),
        wire.send_eof(1),
        wire.send_credit(1, 1),
        wire.send_signal(1, 9, SignalScope.WHOLE_TREE),
        wire.send_resize(1, 2, 3),
    ]
    assert sent == [b""] * 5
    assert wire.stdin_credit(1) == 0


def test_stdin_of_the_host() -> None:
    """Not more than granted, not after the end, the end once; a closed stdin has no credit."""
    wire = with_exec()
    with pytest.raises(RuntimeError):
        wire.send_data(1, bytes(WINDOW + 1))
    assert wire.send_eof(1) == g.frame(g.EOF, 1, b"\0")
    assert wire.send_eof(1) == b""
    assert wire.stdin_credit(1) == 0
    with pytest.raises(RuntimeError):
        wire.send_data(1, b"x")
    with pytest.raises(RuntimeError):
        with_exec(stdin_open=False).send_data(1, b"x")


def test_signals_and_sizes() -> None:
    """SIGNAL and RESIZE as the note has them; numbers that can't be are the caller's mistake."""
    wire = with_exec()
    assert wire.send_signal(1, 15, SignalScope.MAIN_PROCESS) == g.frame(g.SIGNAL, 1, b"\x0f\0")
    assert wire.send_resize(1, 24, 80) == g.frame(g.RESIZE, 1, struct.pack("<HH", 24, 80))
    for signo in (0, 65):
        with pytest.raises(ValueError, match="signal"):
            wire.send_signal(1, signo, SignalScope.MAIN_PROCESS)
    for rows, columns in ((0, 1), (1, 0), (65_536, 1)):
        with pytest.raises(ValueError, match="rows"):
            wire.send_resize(1, rows, columns)


# ---- in pieces


def conversation() -> list[bytes]:
    """What a guest says in a life: every type of frame."""
    return [
        g.frame(g.STARTED, 1, STARTED),
        data(1, b"some output"),
        data(2, bytes(65_535)),
        g.frame(g.PONG, 0, struct.pack("<Q", 7)),
        g.frame(g.CREDIT, 1, struct.pack("<I", 10)),
        g.frame(g.EOF, 1, b"\1"),
        result(0, 3, detail="ü"),
        g.frame(g.FATAL, 0, g.text("good bye")),
    ]


def listener() -> HostConnection:
    """A connection to which `conversation` may be said."""
    wire = with_exec(started=False, caps=(frames.NO_CAP, frames.NO_CAP))
    wire.send_ping(7)
    wire.send_data(1, bytes(10))
    return wire


@settings(max_examples=200, deadline=None)
@given(cuts=st.lists(st.integers(0, 66_000), max_size=40))
def test_pieces_make_no_difference(cuts: list[int]) -> None:
    """However the bytes are cut, the events are the same, and never more than one frame is held back."""
    said, expected = b"".join(conversation()), listener().feed(b"".join(conversation()))
    wire, events, at = listener(), list[GuestEvent](), 0
    for cut in [*sorted(cuts), len(said)]:
        events += wire.feed(said[at:cut])
        at = max(at, cut)
        assert wire.pending_bytes < 12 + 65_536
    assert events == expected
    assert len(expected) == 8


def test_byte_by_byte() -> None:
    """One byte at a time is a way to cut, too."""
    wire, said = listener(), b"".join(part for part in conversation() if len(part) < 1000)
    assert len([event for byte in said for event in wire.feed(bytes((byte,)))]) == 7


@settings(max_examples=500, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=10))
def test_hostile_bytes(pieces: list[bytes]) -> None:
    """Whatever a guest sends, nothing but `ProtocolViolation` is raised."""
    wire = listener()
    try:
        for piece in pieces:
            wire.feed(piece)
    except ProtocolViolation:
        assert wire.pending_bytes == 0


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.builds(
            g.frame,
            st.sampled_from([*range(1, 11), *range(0x10, 0x19)]),
            st.integers(0, 3),
            st.binary(max_size=60),
        ),
        max_size=12,
    )
)
def test_hostile_frames(said: list[bytes]) -> None:
    """The same for bytes that look like frames."""
    wire = listener()
    try:
        for part in said:
            wire.feed(part)
    except ProtocolViolation:
        assert wire.live_ops == 0
