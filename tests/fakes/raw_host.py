"""The host's end of a channel, one raw frame at a time: for asking a real guest agent what a client
would never ask.

Written from `design/channel.md`, as `tests.fakes.guest` is; neither shares code with the host's wire.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass, field

from tests.fakes.guest import CREDIT, DATA, PART, RENEW, RENEWED, RESULT, START, STARTED, text

KIB, MIB = 1 << 10, 1 << 20
EXEC, WRITE = 1, 3
NO_CAP = 1 << 40


def exec_body(
    argv: list[str],
    *,
    flags: int = 0,
    timeout_ms: int = 0,
    caps: tuple[int, int] = (NO_CAP, NO_CAP),
    user: str = "",
    cwd: str = "/",
) -> bytes:
    head = struct.pack("<IQQQHH", flags, timeout_ms, *caps, 24, 80) + text(user) + text(cwd)
    return head + struct.pack("<I", len(argv)) + b"".join(map(text, argv)) + struct.pack("<I", 0)


@dataclass
class Ended:
    types: list[int] = field(default_factory=list)
    output: dict[int, bytearray] = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    outcome: int = -1
    flags: int = 0
    stage: int = 0
    code: int = 0
    dropped: tuple[int, int] = (0, 0)
    info: int = 0


class Wire:
    """The host's end, one frame at a time. Gives credit only when told to."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = bytearray()
        self.last_op = 0

    def send(self, kind: int, op: int = 0, payload: bytes = b"") -> None:
        self.sock.sendall(struct.pack("<IBBHI", len(payload), kind, 0, 0, op) + payload)

    def frame(self, timeout_s: float = 60) -> tuple[int, int, bytes]:
        self.sock.settimeout(timeout_s)
        while len(self.buffer) < 12 + struct.unpack("<I", self.buffer[:4].ljust(4, b"\0"))[0]:
            got = self.sock.recv(MIB)
            if not got:
                raise EOFError
            self.buffer += got
        length, kind, flags, reserved, op = struct.unpack_from("<IBBHI", self.buffer)
        assert length <= 65536
        assert (flags, reserved) == (0, 0)
        payload = bytes(self.buffer[12 : 12 + length])
        del self.buffer[: 12 + length]
        return kind, op, payload

    def expect(self, kind: int) -> bytes:
        """The payload of the next frame, which must be of this kind."""
        got, _, payload = self.frame()
        assert got == kind, (got, payload)
        return payload

    def start(self, kind: int, body: bytes) -> int:
        """Starts an operation, in as many parts as it takes."""
        self.last_op += 1
        while len(body) > 65000:
            self.send(PART, self.last_op, body[:65000])
            body = body[65000:]
        self.send(START, self.last_op, bytes([kind]) + body)
        return self.last_op

    def absorb(self, ended: Ended, kind: int, payload: bytes) -> None:
        ended.types.append(kind)
        if kind == DATA:
            ended.output[payload[0]] += payload[1:]
        elif kind == STARTED:
            ended.info = struct.unpack("<Q", payload)[0]
        elif kind == RESULT:
            ended.outcome, ended.flags, ended.stage, ended.code, out, err = struct.unpack_from(
                "<BBHiQQ", payload
            )
            ended.dropped = (out, err)

    def finish(self, op: int, *, credit: bool = True) -> Ended:
        ended = Ended()
        while ended.outcome < 0:
            kind, whose, payload = self.frame()
            assert whose == op, (kind, whose, payload)
            self.absorb(ended, kind, payload)
            if kind == DATA and credit:
                self.send(CREDIT, op, struct.pack("<I", len(payload) - 1))
        return ended

    def finish_all(self, ops: dict[int, Ended]) -> None:
        while any(one.outcome < 0 for one in ops.values()):
            kind, op, payload = self.frame()
            self.absorb(ops[op], kind, payload)

    def run(self, script: str, **rest: int) -> Ended:
        return self.finish(self.start(EXEC, exec_body(["sh", "-c", script], **rest)))  # type: ignore[arg-type]

    def renew(self) -> bytes:
        ids = text("0" * 32) + text("0" * 36) + text("machine")
        self.send(RENEW, 0, struct.pack("<Q", time.time_ns()) + text(os.urandom(64)) + ids)
        return self.expect(RENEWED)
