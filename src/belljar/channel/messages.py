"""What the guest can say, as frozen data.

Everything in here was checked for form; none of it is to be believed.
"""

from __future__ import annotations

from typing import TypeAlias

from belljar.channel.frames import Outcome, RenewedBit, ResultFlag, Stage, Stream
from belljar.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The agent has booted."""

    version: int
    build: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The agent answers HELLO: at most `max_ops` operations at once, `stdin_window_bytes` of stdin
    each before a CREDIT.
    """

    version: int
    max_ops: int
    stdin_window_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """The workload's container stands (`errno` 0), or does not."""

    errno: int
    detail: str


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
    """The guest agent watches files: an errno for each, 0 where it does. `errno`: of all."""

    errno: int
    errors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """A watched file, by its place in WATCH, was opened (`operation` 1) or read (2)."""

    index: int
    operation: int
    count: int
    pid: int
    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal:
    """The guest can't go on. Nothing after this frame is read."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The operation runs. `info` is a read file's size, else 0."""

    op: int
    info: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Bytes of an output stream, within the credit and the cap that the host gave."""

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


GuestEvent: TypeAlias = (
    Ready
    | Welcome
    | Configured
    | Renewed
    | Pong
    | Watched
    | Touched
    | Fatal
    | Started
    | Data
    | Eof
    | Credit
    | Result
)
