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
class Answer:
    """A frame of the connection itself.

    Attributes:
        errno, detail: of CONFIGURED, WATCHED and FROZEN; 0: it was done. FATAL has the detail.
        done: what a restored guest says it has made new.
        max_ops, stdin_window_bytes: WELCOME's limits: operations, and stdin before a CREDIT.
        errors: of each file of a WATCH, 0 if watched.
    """

    kind: FrameType
    errno: int = 0
    detail: str = ""
    done: RenewedBit = RenewedBit(0)
    max_ops: int = 0
    stdin_window_bytes: int = 0
    errors: tuple[int, ...] = ()


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
class Progress:
    """STARTED, with a read file's size or 0; an output stream's EOF, with its number; CREDIT, with
    the bytes of stdin that the guest takes.
    """

    kind: FrameType
    op: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Bytes of an output stream, within the host's credit and cap."""

    op: int
    stream: Stream
    content: bytes


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


GuestEvent: TypeAlias = Answer | Touched | Progress | Data | Result
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
