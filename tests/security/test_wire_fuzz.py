"""Two hundred thousand hostile frames (a million when thorough): the decoder raises `ProtocolViolation`
or takes them, and holds no more than it promised.

Sessions follow the protocol through a model of what is allowed (so that the frames reach deep
states) until one mutation breaks it. Everything comes from one seed; a failure names the session,
and `_session(seed, number)` plays it again.
"""

from __future__ import annotations

import os
import random
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes import guest as g

from belljar.channel import frames
from belljar.channel.messages import Data, Fatal
from belljar.channel.wire import HostConnection
from belljar.errors import ProtocolViolation

pytestmark = pytest.mark.slow
SEED = 20_261_120
FRAMES = 200_000
FRAMES_PER_SESSION = 80
HELD_AT_MOST = frames.HEADER.size + frames.MAX_PAYLOAD_BYTES
GROWTH_AT_MOST = 64 << 20
NOISE = random.Random(1).randbytes(70_000)  # noqa: S311 - a fuzzer must be repeatable
SIZES = [1] * 30 + [2, 3, 15, 100, 500] * 4 + [4_000, 65_535]
WINDOW = 256 << 10
RENEWAL = frames.renew_payload(
    realtime_ns=1, seed=bytes(32), machine_id="0" * 32, boot_id="0" * 36, hostname="h"
)


class Model:
    """A guest that knows what it may say next, and the host's decoder it says it to."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.wire = HostConnection()
        self.live: dict[int, dict[str, int]] = {}
        nonce = self.wire.send_hello(bytes(16))[14:]
        self.wire.feed(g.frame(g.READY, 0, struct.pack("<H", 1) + g.text("")))
        self.wire.feed(
            g.frame(g.WELCOME, 0, struct.pack("<H", 1) + nonce + struct.pack("<II", 64, WINDOW))
        )
        self.wire.ask(frames.FrameType.RENEW, RENEWAL)
        self.wire.feed(g.frame(g.RENEWED, 0, struct.pack("<I", 31) + g.text("")))

    def start(self) -> bytes:
        """The host starts an operation; the guest says STARTED."""
        pick = self.rng.random()
        if pick < 0.7:
            pty = pick < 0.2
            stderr = None if pty else 70_000
            op, _ = self.wire.start(
                frames.OpKind.EXEC, b"", stdout=90_000, stderr=stderr, stdin_open=True
            )
            self.live[op] = {"1": 90_000, "credit": 1 << 20} | ({} if pty else {"2": 70_000})
        elif pick < 0.85:
            op, _ = self.wire.start(frames.OpKind.READ, b"", stdout=80_001)
            self.live[op] = {"1": 80_001, "credit": 1 << 20}
        else:
            op, _ = self.wire.start(frames.OpKind.WRITE, b"", stdin_open=True)
            self.live[op] = {"credit": 1 << 20}
        return g.frame(g.STARTED, op, bytes(8))

    def next_frame(self) -> bytes:
        """Something that is allowed now."""
        if not self.live or (len(self.live) < 8 and self.rng.random() < 0.1):
            return self.start()
        op, pick = self.rng.choice(tuple(self.live)), self.rng.random()
        state = self.live[op]
        if pick < 0.05:
            del self.live[op]
            flags, detail = int(pick * 300) & 15, "x" * int(pick * 100)
            return g.frame(g.RESULT, op, g.result_payload(1, 9, flags=flags, detail=detail))
        if pick < 0.1:
            self.wire.send_ping(op)
            return g.frame(g.PONG, 0, struct.pack("<Q", op))
        if pick < 0.15 and (sent := self.wire.stdin_credit(op)):
            self.wire.send_data(op, NOISE[: min(sent, 100)])
            return g.frame(g.CREDIT, op, struct.pack("<I", min(sent, 100)))
        stream = "1" if pick < 0.8 else "2"
        if stream not in state:
            return self.start() if len(self.live) < 8 else self.next_frame()
        size = min(self.rng.choice(SIZES), state[stream], state["credit"])
        if size == 0 or pick > 0.98:
            del state[stream]
            return g.frame(g.EOF, op, stream.encode().translate(bytes.maketrans(b"12", b"\1\2")))
        state[stream] -= size
        state["credit"] -= size
        return g.frame(g.DATA, op, (b"\1" if stream == "1" else b"\2") + NOISE[:size])


def _flip(rng: random.Random, said: bytearray) -> None:
    said[rng.randrange(len(said))] ^= 1 << rng.randrange(8)


def _header(rng: random.Random, said: bytearray) -> None:
    said[rng.randrange(12)] = rng.randrange(256)


def _other_type(rng: random.Random, said: bytearray) -> None:
    said[4] = rng.choice((*range(11), *range(0x10, 0x19), rng.randrange(256)))


def _other_op(rng: random.Random, said: bytearray) -> None:
    said[8:12] = struct.pack("<I", rng.choice((0, 1, 2, 3, 50, 0xFFFFFFFF)))


def _shorter(rng: random.Random, said: bytearray) -> None:
    del said[max(12, len(said) - rng.randrange(1, 9)) :]
    said[:4] = struct.pack("<I", len(said) - 12)


def _longer(rng: random.Random, said: bytearray) -> None:
    said += NOISE[: rng.choice((1, 1, 2, 8, 4096))]
    said[:4] = struct.pack("<I", len(said) - 12)


def _field(rng: random.Random, said: bytearray) -> None:
    """An edge value where a number may be."""
    at = rng.randrange(12, max(13, len(said)))
    said[at : at + 8] = rng.choice(
        (bytes(8), b"\xff" * 8, b"\xff" * 4, b"\0\0\0\x80", b"\x01\x00\x01\x00")
    )
    said[:4] = struct.pack("<I", len(said) - 12)


def _noise(rng: random.Random, said: bytearray) -> None:
    said[:] = rng.randbytes(rng.randrange(1, 200))


def _twice(rng: random.Random, said: bytearray) -> None:
    said += bytes(said)


MUTATIONS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    *(_flip, _header, _other_type, _other_op, _shorter, _longer, _field, _noise, _twice),
)


def _session(seed: int, number: int) -> tuple[int, bool]:
    """One guest's life: how many frames were judged, and whether the protocol was broken."""
    rng = random.Random(f"{seed}:{number}")  # noqa: S311
    model, judged, pending, taken = Model(rng), 0, b"", Counter[int]()
    mutate_after = rng.randrange(FRAMES_PER_SESSION)
    for index in range(FRAMES_PER_SESSION):
        said = bytearray(model.next_frame())
        if index >= mutate_after:
            rng.choice(MUTATIONS)(rng, said)
        pending += said
        cut = len(pending) if rng.random() < 0.7 else rng.randrange(len(pending) + 1)
        piece, pending = pending[:cut], pending[cut:]
        try:
            events = model.wire.feed(piece)
        except ProtocolViolation:
            assert (len(model.wire._pending), model.wire.live_ops) == (0, 0)
            return judged + 1, True
        judged += len(events)
        for event in events:
            if type(event) is Data:
                taken[event.op] += len(event.content)
        assert len(model.wire._pending) < HELD_AT_MOST
        assert not taken or max(taken.values()) <= frames.OUTPUT_WINDOW_BYTES, (
            "no credit was ever returned"
        )
        if any(type(event) is Fatal for event in events):
            break
    return judged, False


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.promise("4.1")
def test_hostile_frames(pytestconfig: pytest.Config) -> None:
    """Only `ProtocolViolation` is ever raised, nothing stays held, memory stays."""
    wanted = FRAMES * (5 if pytestconfig.getoption("thorough") else 1)
    judged = sessions = violations = 0
    for number in range(200):
        _session(SEED + 1, number)  # what Python keeps for reuse is there before memory is measured
    before = _resident_bytes()
    while judged < wanted:
        try:
            count, violated = _session(SEED, sessions)
        except Exception as error:
            error.add_note(f"in session {sessions} of seed {SEED}")
            raise
        judged, sessions, violations = judged + count, sessions + 1, violations + violated
    assert violations > sessions * 0.9, "the mutations bite"
    assert judged / sessions > 20, "and the sessions go deep before they do"
    assert _resident_bytes() - before < GROWTH_AT_MOST


def test_an_honest_model_is_never_refused() -> None:
    """The model itself keeps the protocol, so what is refused above is refused for its mutation."""
    for number in range(200):
        model = Model(random.Random(number))  # noqa: S311
        for _ in range(300):
            assert len(model.wire.feed(model.next_frame())) == 1
