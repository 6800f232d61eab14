"""Every rule of the protocol as a short dialogue."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import guest as g
from tests.fakes.wires import (
    NONCE,
    READY,
    RENEWAL,
    RENEWED,
    STARTED,
    data,
    greeted,
    refused,
    renewed,
    result,
    welcome,
    with_exec,
)

from belljar.channel import frames
from belljar.channel.frames import Answer, Data, FrameType
from belljar.channel.wire import HostConnection
from belljar.errors import ProtocolViolation

# ---- frames


def test_header() -> None:
    """A length over the limit or a reserved field is refused before any payload comes."""
    for length, flags, reserved, why in (
        (65_537, 0, 0, "length 65537"),
        (0xFFFFFFFF, 0, 0, "length 4294967295"),
        (0, 1, 0, "flags 1"),
        (0, 0, 1, "reserved 1"),
    ):
        refused(renewed(), struct.pack("<IBBHI", length, g.PONG, flags, reserved, 0), why)


HOSTS = (g.HELLO, g.CONFIG, g.RENEW, g.PING, g.PART, g.START, g.SIGNAL, g.RESIZE)


def test_frames_that_a_guest_may_not_send() -> None:
    """Unknown types and the host's own; a connection's frame with an operation's id."""
    for kind in (0, *HOSTS, 0x0B, 0x19, 255):
        refused(with_exec(), g.frame(kind, 1, b"\1\2\3\4"), "may not send")
    pong, fatal = g.frame(g.PONG, 0, bytes(8)), g.frame(g.FATAL, 0, g.text("x"))
    for said in (READY, welcome(), RENEWED, pong, fatal):
        refused(with_exec(), said[:8] + struct.pack("<I", 1) + said[12:], "names an operation")
    for kind in (g.DATA, g.EOF, g.CREDIT, g.STARTED, g.RESULT):
        for op in (0, 2, 0xFFFFFFFF):
            refused(with_exec(), g.frame(kind, op, b"\1\1\1\1"), "not live")


def asked(
    what: Callable[[HostConnection], object], make: Callable[[], HostConnection] = greeted
) -> Callable[[], HostConnection]:
    def asking() -> HostConnection:
        wire = make()
        what(wire)
        return wire

    return asking


CONFIGURED = g.frame(g.CONFIGURED, 0, struct.pack("<I", 2) + g.text("why"))
COMPLETE: dict[str, tuple[Callable[[], HostConnection], bytes]] = {
    "READY": (HostConnection, READY),
    "WELCOME": (asked(lambda wire: wire.send_hello(NONCE), HostConnection), welcome()),
    "CONFIGURED": (asked(lambda wire: wire.ask(frames.FrameType.CONFIG, b"x")), CONFIGURED),
    "RENEWED": (asked(lambda wire: wire.ask(frames.FrameType.RENEW, RENEWAL)), RENEWED),
    "PONG": (asked(lambda wire: wire.send_ping(7)), g.frame(g.PONG, 0, struct.pack("<Q", 7))),
    "FATAL": (HostConnection, g.frame(g.FATAL, 0, g.text("over"))),
    "STARTED": (lambda: with_exec(started=False), g.frame(g.STARTED, 1, STARTED)),
    "EOF": (with_exec, g.frame(g.EOF, 1, b"\1")),
    "RESULT": (with_exec, result(detail="why")),
}


@pytest.mark.parametrize("name", COMPLETE)
def test_payloads_have_exactly_their_fields(name: str) -> None:
    """Each frame is taken as it should be."""
    make, said = COMPLETE[name]
    assert len(make().feed(said)) == 1
    payload, op = said[12:], int(name in {"STARTED", "EOF", "RESULT"})
    for length in range(len(payload)):
        short = g.frame(said[4], op, payload[:length])
        refused(make(), short, "should be longer|other nonce")
    refused(make(), g.frame(said[4], op, payload + b"\0"), "too many")


def test_texts_are_bounded_and_decoded() -> None:
    """A text has at most 4,096 bytes, and what is no UTF-8 is shown as escapes."""
    wire = HostConnection()
    assert wire.feed(g.frame(g.FATAL, 0, g.text(b"\xff\xc3\xa9" + b"x" * 4093))) == [
        Answer(kind=FrameType.FATAL, detail="\\xffé" + "x" * 4093)
    ]
    refused(HostConnection(), g.frame(g.FATAL, 0, g.text(b"x" * 4097)), "4097")


# ---- the connection


def test_unasked_answers() -> None:
    """No answer without its question, none twice, none that doesn't match."""
    refused(greeted(), READY, "after WELCOME")
    wire = HostConnection()
    wire.feed(READY)
    refused(wire, READY, "twice")
    refused(HostConnection(), welcome(), "not asked for")
    refused(greeted(), welcome(), "not asked for")
    refused(greeted(), g.frame(g.CONFIGURED, 0, struct.pack("<I", 0) + g.text("")), "not asked for")
    refused(greeted(), RENEWED, "not asked for")
    refused(renewed(), RENEWED, "not asked for")
    refused(renewed(), g.frame(g.PONG, 0, bytes(8)), "answers no PING")
    wire = renewed()
    wire.send_ping(1), wire.send_ping(2)
    refused(wire, g.frame(g.PONG, 0, struct.pack("<Q", 2)), "out of order")


def test_values_of_the_connection() -> None:
    """WELCOME has our version, our nonce and grants that make sense."""
    for said, why in (
        (welcome(version=2), "version 2"),
        (welcome(nonce=bytes(16)), "nonce"),
        (welcome(max_ops=0), "0 operations"),
        (welcome(window=0), "window of 0"),
        (welcome(window=(16 << 20) + 1), "window of 16777217"),
    ):
        refused(COMPLETE["WELCOME"][0](), said, why)
    for name, kind, number, why in (
        ("READY", g.READY, struct.pack("<H", 0), "version 0"),
        ("CONFIGURED", g.CONFIGURED, struct.pack("<I", 4096), "errno 4096"),
        ("RENEWED", g.RENEWED, struct.pack("<I", 64), "done bits"),
    ):
        refused(COMPLETE[name][0](), g.frame(kind, 0, number + g.text("")), why)


def test_nothing_is_read_after_fatal() -> None:
    """What follows FATAL is ignored, in the same piece and in later ones."""
    wire = with_exec()
    assert wire.feed(g.frame(g.FATAL, 0, g.text("over")) + b"\xff" * 100) == [
        Answer(kind=FrameType.FATAL, detail="over")
    ]
    assert wire.feed(b"\xff" * 100) == []
    assert len(wire._pending) == 0


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
    wire = with_exec(started=False, caps=(1 << 64, 1 << 64))
    wire.send_ping(7)
    wire.send_data(1, bytes(10))
    return wire


@pytest.mark.promise("4.1")
@settings(max_examples=200)
@given(
    said=st.lists(
        st.sampled_from([*conversation(), *(said for _, said in COMPLETE.values())]), max_size=9
    ),
    changes=st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=8)), max_size=3),
    cut=st.integers(100, 70_000),
)
def test_hostile_bytes(said: list[bytes], changes: list[tuple[int, bytes]], cut: int) -> None:
    """Frames in any order, some of their bytes replaced, in any pieces."""
    stream, wire, taken = bytearray().join(said), listener(), 0
    for at, content in changes:
        stream[at : at + len(content)] = content
    try:
        for at in range(0, len(stream), cut):
            for event in wire.feed(bytes(stream[at : at + cut])):
                taken += len(event.content) if isinstance(event, Data) else 0
            assert len(wire._pending) < 12 + 65_536
    except ProtocolViolation:
        assert (len(wire._pending), wire.live_ops) == (0, 0)
    assert taken <= frames.OUTPUT_WINDOW_BYTES


def test_frozen_answers_one_freeze() -> None:
    """FROZEN comes once for each FREEZE, with an errno that there is."""
    wire = renewed()
    refused(renewed(), g.frame(g.FROZEN, 0, bytes(4)), "not asked for")
    for code in (0, 16):
        assert wire.ask(frames.FrameType.FREEZE, b"x")
        with pytest.raises(RuntimeError):
            wire.ask(frames.FrameType.FREEZE, b"x")
        assert wire.feed(g.frame(g.FROZEN, 0, code.to_bytes(4, "little"))) == [
            Answer(kind=FrameType.FROZEN, errno=code)
        ]
    wire.ask(frames.FrameType.FREEZE, b"x")
    refused(wire, g.frame(g.FROZEN, 0, b"\xff" * 4), "errno")
