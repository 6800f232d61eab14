"""The types between the gateway and `belljar.network.stand_ins`.

A stand-in is a function of a request or of a connection. `make(context)` makes each once a range,
with all its state. It runs in the gateway's process, without any route and with its own files only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from belljar.dataclass import dataclass
from belljar.events import JsonValue
from belljar.plan.network import NetworkBounds


class Stream(Protocol):
    """Both ways of a connection, as its stand-in has them: counted, bounded and on record."""

    async def receive(self) -> bytes:
        """At most 64 KiB; empty at the end. Raises `OSError`."""
        ...

    async def send(self, data: bytes) -> None:
        """Return when the kernel has it. Raises `OSError`."""
        ...


# `(stream, cell)`. The connection is closed when it returns, raises or exceeds a bound.
StreamApp: TypeAlias = Callable[[Stream, str], Awaitable[None]]

# Beyond it a request is answered 413 and no stand-in is called.
MAX_BODY_BYTES: Final = NetworkBounds().body_bytes
MAX_KEPT_BODY_BYTES: Final = 64 << 10
MAX_ASKED_BYTES: Final = 4 << 20
MAX_ANSWER_BYTES: Final = 4 << 20  # Of a question to the owner, and of its answer.


class ClientGoneError(OSError):
    """The client has left, so that nothing more can be sent to it."""


class RefusedRequestError(Exception):
    """Ends an exchange or a connection with a status; a stand-in may raise it."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


# `(kind, data, bodies)`: put something on record for a stand-in. Returns when the event is in the
# ledger: await it before answering. Raises `ValueError` above 48 KiB of JSON or 8 bodies of 64 KiB.
# The process ends without its owner.
RecordEvent: TypeAlias = Callable[..., Awaitable[None]]
# `(kind, body)`: ask the range's owner (`openai` alone). Returns the reply; raises `ValueError` if
# refused or over `MAX_ASKED_BYTES`.
Ask: TypeAlias = Callable[[str, bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInContext:
    """What `make` is given.

    `names`: lower case, A-labels, `*.` of a wildcard. `settings`: checked before.
    `files`: read-only, may not exist. `clock`: Unix time.
    `random`: from the range's seed, not for keys.
    """

    id: str
    names: tuple[str, ...]
    settings: Mapping[str, JsonValue]
    files: Path
    clock: Callable[[], float]
    random: Callable[[int], bytes]
    record: RecordEvent
    ask: Ask
