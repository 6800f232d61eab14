"""The guest's messages as frozen data: checked for form, not to be believed."""

from __future__ import annotations

from typing import Final, NoReturn, TypeAlias

from belljar.channel.frames import (
    MAX_TEXT_BYTES,
    FrameType,
    Outcome,
    RenewedBit,
    ResultFlag,
    Stage,
    Stream,
)
from belljar.dataclass import dataclass
from belljar.errors import ProtocolViolation

# Linux's MAX_ERRNO.
MAX_ERRNO: Final = 4_095
# Linux's _NSIG.
MAX_SIGNAL: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The agent has booted."""

    version: int
    build: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The agent's limits: `max_ops` operations, and stdin bytes before a CREDIT."""

    version: int
    max_ops: int
    stdin_window_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The answer to CONFIG (the workload's container) or FREEZE; `errno` 0: it was done."""

    errno: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """What the restored guest says it has made new."""

    done: RenewedBit
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """The answer to the oldest PING."""

    cookie: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The guest agent's file watches: an errno each, 0 if watched. `errno`: of all."""

    errno: int
    errors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """A watched file, by its place in WATCH, was opened (`operation` 1) or read (2); 3: accesses of
    any of them were lost.
    """

    index: int
    operation: int
    count: int
    pid: int
    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal:
    """The guest can't go on. Later frames are not read."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The operation runs. `info`: a read file's size, else 0."""

    op: int
    info: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Bytes of an output stream, within the host's credit and cap."""

    op: int
    stream: Stream
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Eof:
    """An output stream has ended."""

    op: int
    stream: Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """The guest takes `granted_bytes` more of stdin."""

    op: int
    granted_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The operation's last frame."""

    op: int
    outcome: Outcome
    flags: ResultFlag
    stage: Stage
    code: int
    stdout_dropped_bytes: int
    stderr_dropped_bytes: int
    duration_ns: int
    detail: str


# fmt: off
GuestEvent: TypeAlias = (
    Ready | Welcome | Done | Renewed | Pong | Watched | Touched | Fatal
    | Started | Data | Eof | Credit | Result
)
# fmt: on
_NAMES: Final = {int(kind): kind.name for kind in FrameType}
_HINT: Final = "its cell is ended: open a new one; the run's ledger says what came before"


def violated(what: str, kind: int, op: int) -> NoReturn:
    """Raise `ProtocolViolation` for a frame of this operation."""
    name = _NAMES.get(kind, f"type {kind:#04x}")
    where = f"channel, {name} of operation {op}" if op else f"channel, {name}"
    raise ProtocolViolation(f"the guest broke the protocol: {what}", where=where, hint=_HINT)


class Payload:
    """A cursor over one frame's payload. `ProtocolViolation`: too short."""

    __slots__ = ("_at", "_kind", "_op", "_raw")

    def __init__(self, raw: bytes, *, kind: int, op: int) -> None:
        self._raw, self._kind, self._op = raw, kind, op
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        taken = self._raw[self._at : self._at + count]
        if len(taken) != count:
            self.violated(f"a payload of {len(self._raw)} bytes that should be longer")
        self._at += count
        return taken

    def number(self, size: int) -> int:
        """The next `size` bytes as a number."""
        return int.from_bytes(self.take(size), "little")

    def errno(self) -> int:
        """A 4-byte number that may be an errno, or 0."""
        code = self.number(4)
        if code > MAX_ERRNO:
            self.violated(f"errno {code}")
        return code

    def text(self) -> str:
        """A `str`; bytes that are no UTF-8 become `\\xNN`."""
        count = self.number(4)
        if count > MAX_TEXT_BYTES:
            self.violated(f"a text of {count} bytes; at most {MAX_TEXT_BYTES} are allowed")
        return self.take(count).decode("utf-8", "backslashreplace")

    def end(self) -> None:
        """Nothing may follow."""
        if self._at != len(self._raw):
            self.violated(f"a payload with {len(self._raw) - self._at} bytes too many")

    def violated(self, what: str) -> NoReturn:
        """Raise `ProtocolViolation` for this frame."""
        violated(what, self._kind, self._op)
