"""The protocol's numbers and the host's encoders, as in `design/channel.md`.

Encoders raise `ValueError` for what has no encoding and `OSError(E2BIG)` for a request that is too
long: errors of the caller, not of the guest.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum, IntFlag
from typing import Final, NoReturn, TypeAlias

from belljar.dataclass import dataclass
from belljar.errors import ProtocolViolation

# A guest agent of another one is refused: templates hold the agent they were made with.
PROTOCOL_VERSION: Final = 1
# A frame is held whole on both sides.
MAX_PAYLOAD_BYTES: Final = 65_536
MAX_DATA_BYTES: Final = MAX_PAYLOAD_BYTES - 1  # a DATA payload begins with its stream number
# The agent holds a request whole; a command line of Linux has at most 2 MiB.
MAX_REQUEST_BYTES: Final = 4 << 20
MAX_TEXT_BYTES: Final = 4_096  # every string that the guest sends
# Of an operation's output, this much at most is in the host's memory and untaken.
OUTPUT_WINDOW_BYTES: Final = 1 << 20
# Each is an inotify watch of the guest's kernel, which has a limited number.
MAX_WATCHED_FILES: Final = 256
# TASK_COMM_LEN is 16; each byte may come as an escape of four.
MAX_PROCESS_NAME_BYTES: Final = 64
# A guest that grants more would have the host buffer it.
MAX_STDIN_WINDOW_BYTES: Final = 16 << 20
# No mode has these bits.
KEEP_MODE: Final = 0xFFFF_FFFF
# 128 bits: no answer of an earlier cell fits.
NONCE_BYTES: Final = 16

# Payload's length, type, flags, reserved, operation; little-endian, without padding.
HEADER: Final = struct.Struct("<IBBHI")
_U32: Final = struct.Struct("<I")
# Memory, disk, inodes, processes, capabilities, flags.
_CONFIG_HEAD: Final = struct.Struct("<QQQIQI")


class FrameType(IntEnum):
    READY = 0x01
    HELLO = 0x02
    WELCOME = 0x03
    CONFIG = 0x04
    CONFIGURED = 0x05
    RENEW = 0x06
    RENEWED = 0x07
    PING = 0x08
    PONG = 0x09
    FATAL = 0x0A
    WATCH = 0x0B
    WATCHED = 0x0C
    TOUCHED = 0x0D
    FREEZE = 0x0E
    FROZEN = 0x0F
    PART = 0x10
    START = 0x11
    DATA = 0x12
    EOF = 0x13
    CREDIT = 0x14
    SIGNAL = 0x15
    RESIZE = 0x16
    STARTED = 0x17
    RESULT = 0x18


class OpKind(IntEnum):
    EXEC = 1
    READ = 2
    WRITE = 3
    WALK = 5
    PUT = 6
    REMOVE = 7


class Outcome(IntEnum):
    """It gives RESULT's `code` its meaning."""

    EXITED = 0
    SIGNALED = 1
    NOT_STARTED = 2
    IO_FAILED = 3


class ResultFlag(IntFlag):
    TIMED_OUT = 1
    KILLED = 2
    OUT_OF_MEMORY = 4
    OUTPUT_CAP_REACHED = 8
    PROCESSES_FULL = 16
    DISK_FULL = 32
    RUNS_ON = 64
    PROGRAM_ENDED = 128


class Stage(IntEnum):
    NONE = 0
    USER = 1
    CWD = 2
    EXEC = 3
    FORK = 4
    OPEN = 5
    READ = 6
    WRITE = 7
    RENAME = 8
    REQUEST = 9
    CREDENTIALS = 10


class RenewedBit(IntFlag):
    RNG = 1
    CLOCK = 2
    MACHINE_ID = 4
    BOOT_ID = 8
    HOSTNAME = 16
    NETWORK = 32


# Without these it is a copy. Not every kernel renews the boot id.
NEEDED_OF_CLONE: Final = (
    RenewedBit.RNG | RenewedBit.CLOCK | RenewedBit.MACHINE_ID | RenewedBit.HOSTNAME
)
# Its kernel has its own randomness and clock.
NEEDED_OF_CONTAINER: Final = RenewedBit.HOSTNAME


class Stream(IntEnum):
    STDIN = 0
    STDOUT = 1
    STDERR = 2


class SignalScope(IntEnum):
    MAIN_PROCESS = 0
    WHOLE_TREE = 1
    LEAVE = 2
    """None: a service's program runs on after its operation."""


def frame(kind: FrameType, op: int, payload: bytes | memoryview = b"") -> bytes:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"a payload of {len(payload)} bytes; a frame holds at most {MAX_PAYLOAD_BYTES}"
        )
    return b"".join((HEADER.pack(len(payload), kind, 0, 0, op), payload))


def check_size(rows: int, cols: int) -> None:
    if not (1 <= rows <= 0xFFFF and 1 <= cols <= 0xFFFF):
        raise ValueError(f"{rows} rows and {cols} columns; 1 to 65535 are allowed")


def text_bytes(value: str | bytes, what: str) -> bytes:
    """Return the text as bytes. Raise `ValueError` for a NUL."""
    # Names that Python read from a file system may hold bytes that are no UTF-8 (PEP 383).
    raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    if b"\0" in raw:
        raise ValueError(f"{what} holds a NUL byte")
    return raw


def counted(value: bytes) -> bytes:
    """Return the protocol's `str`: a length and that many bytes."""
    return _U32.pack(len(value)) + value


def counted_list(values: Iterable[bytes]) -> bytes:
    items = [counted(value) for value in values]
    return _U32.pack(len(items)) + b"".join(items)


def config_payload(
    *,
    memory_max_bytes: int,
    disk_bytes: int,
    disk_inodes: int,
    processes: int,
    hostname: str,
    warm_paths: Sequence[str] = (),
    capabilities: int = 0,
    debugger_calls: bool = False,
    setuid_programs: bool = False,
) -> bytes:
    """Return CONFIG's payload; the last three are extra rights."""
    flags = debugger_calls | setuid_programs << 1
    limits = (memory_max_bytes, disk_bytes, disk_inodes, processes)
    head = pack(_CONFIG_HEAD, *limits, capabilities, flags)
    paths = counted_list(text_bytes(path, "warm path") for path in warm_paths)
    return head + counted(text_bytes(hostname, "hostname")) + paths


def request_frames(op: int, kind: OpKind, body: bytes) -> bytes:
    """Return PARTs as needed, then START. Raise `OSError(E2BIG)`."""
    if len(body) > MAX_REQUEST_BYTES:
        raise OSError(
            errno.E2BIG, f"a request of {len(body)} bytes; at most {MAX_REQUEST_BYTES} fit"
        )
    # START's payload begins with the kind: one byte less of the body fits in it.
    view, last = memoryview(body), max(0, len(body) - MAX_DATA_BYTES)
    parts = [
        frame(FrameType.PART, op, view[at : min(at + MAX_PAYLOAD_BYTES, last)])
        for at in range(0, last, MAX_PAYLOAD_BYTES)
    ]
    return b"".join((*parts, frame(FrameType.START, op, bytes((kind,)) + view[last:])))


def pack(layout: struct.Struct, *values: int) -> bytes:
    """Pack the numbers. Raise `ValueError` for an overflow."""
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise ValueError(f"a number does not fit the protocol: {error}") from error


def place(user: str, cwd: str, path: str, flags: int = 0) -> bytes:
    if not path:
        raise ValueError("the path is empty")
    return _U32.pack(flags) + b"".join(
        counted(text_bytes(text, what))
        for text, what in ((user, "user"), (cwd, "cwd"), (path, "path"))
    )


# ---- the guest's frames as frozen data: checked for form, not to be believed

# Linux's MAX_ERRNO.
MAX_ERRNO: Final = 4_095
# Linux's _NSIG.
MAX_SIGNAL: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A frame of the connection itself.

    CONFIGURED, WATCHED and FROZEN have `errno`, 0 for success; `errors` has one for each file
    of a WATCH. `max_ops` and `stdin_window_bytes` are WELCOME's.
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
    """File `index` was opened (1) or read (2), or touches were lost (3)."""

    index: int
    operation: int
    count: int
    pid: int
    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """STARTED has a file's size, EOF a stream, CREDIT granted bytes."""

    kind: FrameType
    op: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    op: int
    stream: Stream
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
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
    name = _NAMES.get(kind, f"type {kind:#04x}")
    where = f"channel, {name} of operation {op}" if op else f"channel, {name}"
    raise ProtocolViolation(f"the guest broke the protocol: {what}", where=where, hint=_HINT)


class Payload:
    """A cursor over one payload; a short one is a `ProtocolViolation`."""

    __slots__ = ("_at", "_kind", "_op", "_raw")

    def __init__(self, raw: bytes, *, kind: int, op: int) -> None:
        self._raw, self._kind, self._op = raw, kind, op
        self._at = 0

    def take(self, count: int) -> bytes:
        taken = self._raw[self._at : self._at + count]
        if len(taken) != count:
            self.violated(f"a payload of {len(self._raw)} bytes that should be longer")
        self._at += count
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def errno(self) -> int:
        code = self.number(4)
        if code > MAX_ERRNO:
            self.violated(f"errno {code}")
        return code

    def text(self) -> str:
        """Return a `str`; bytes that are no UTF-8 become `\\xNN`."""
        count = self.number(4)
        if count > MAX_TEXT_BYTES:
            self.violated(f"a text of {count} bytes; at most {MAX_TEXT_BYTES} are allowed")
        return self.take(count).decode("utf-8", "backslashreplace")

    def end(self) -> None:
        """Raise `ProtocolViolation` if anything follows."""
        if self._at != len(self._raw):
            self.violated(f"a payload with {len(self._raw) - self._at} bytes too many")

    def violated(self, what: str) -> NoReturn:
        violated(what, self._kind, self._op)
