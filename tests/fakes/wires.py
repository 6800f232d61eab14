"""Connections of the host in every state a dialogue begins with, and the frames a guest answers
with."""

from __future__ import annotations

import struct

import pytest
from tests.fakes import guest as g

from belljar.channel import frames
from belljar.channel.wire import HostConnection
from belljar.errors import ProtocolViolation

NONCE = bytes(range(16))
WINDOW = 1000
READY = g.frame(g.READY, 0, struct.pack("<H", 1) + g.text("build 7"))
RENEWAL = bytes(8)
RENEWED = g.frame(g.RENEWED, 0, struct.pack("<I", 31) + g.text(""))
STARTED = struct.pack("<Q", 0)


def welcome(
    version: int = 1, nonce: bytes = NONCE, max_ops: int = 64, window: int = WINDOW
) -> bytes:
    return g.frame(
        g.WELCOME, 0, struct.pack("<H", version) + nonce + struct.pack("<II", max_ops, window)
    )


def greeted() -> HostConnection:
    wire = HostConnection()
    wire.send_hello(NONCE)
    wire.feed(welcome())
    return wire


def renewed() -> HostConnection:
    wire = greeted()
    wire.ask(frames.FrameType.RENEW, RENEWAL)
    wire.feed(RENEWED)
    return wire


def with_exec(
    *, pty: bool = False, caps: tuple[int, int] = (5000, 5000), started: bool = True
) -> HostConnection:
    wire = renewed()
    stderr = None if pty else caps[1]
    op, _ = wire.start(frames.OpKind.EXEC, b"body", stdout=caps[0], stderr=stderr, stdin_open=True)
    assert op == 1
    if started:
        wire.feed(g.frame(g.STARTED, 1, STARTED))
    return wire


def with_read(max_bytes: int = 100) -> HostConnection:
    wire = renewed()
    wire.start(frames.OpKind.READ, b"body", stdout=max_bytes + 1)
    return wire


def with_write() -> HostConnection:
    wire = renewed()
    wire.start(frames.OpKind.WRITE, b"body", stdin_open=True)
    return wire


def data(stream: int, content: bytes) -> bytes:
    return g.frame(g.DATA, 1, bytes((stream,)) + content)


def result(outcome: int = 0, code: int = 0, **rest: object) -> bytes:
    return g.frame(g.RESULT, 1, g.result_payload(outcome, code, **rest))  # type: ignore[arg-type]


def refused(wire: HostConnection, said: bytes, why: str) -> None:
    """The guest may not say this; the connection is poisoned for good, and holds nothing."""
    with pytest.raises(ProtocolViolation, match=why) as caught:
        wire.feed(said)
    assert caught.value.where.startswith("channel, ")
    assert caught.value.hint
    with pytest.raises(ProtocolViolation, match=why):
        wire.feed(b"")
    assert (len(wire._pending), wire.live) == (0, {})


def ready_read() -> HostConnection:
    wire = with_read()
    wire.feed(g.frame(g.STARTED, 1, STARTED))
    return wire


def ready_write() -> HostConnection:
    wire = with_write()
    wire.feed(g.frame(g.STARTED, 1, STARTED))
    return wire


def unstarted() -> HostConnection:
    return with_exec(started=False)
