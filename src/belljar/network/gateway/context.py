"""What a stand-in is given, and what it is: the types between the gateway and
`belljar.network.stand_ins`.

A stand-in of an HTTP kind is an ASGI 3 application (scopes `http` and `websocket`, no lifespan);
one of a stream kind is a function of a connection. Each is made once a range by `make(context)`;
all its state hangs on what `make` returned. It runs in the gateway's process: no route anywhere, no
file but its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from belljar.events import Body, JsonValue
from belljar.plan.network import NetworkBounds

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
"""ASGI 3.

`scope["headers"]` holds exactly one `host`, which the gateway has compared with the address, the
SNI and the policy; `scope["state"]["cell"]` is the name of the cell that asks,
`scope["state"]["name"]` the name it asked for, in lower case, without a port.
"""

StreamApp: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]
"""`(reader, writer, cell)`.

The gateway closes the connection when it returns, raises, or has used up the bounds of a stream.
"""

MAX_BODY_BYTES: Final = NetworkBounds().body_bytes
"""Of a request.

The gateway answers 413 above it; to the stand-in it has broken off (`http.disconnect`).
"""
MAX_KEPT_BODY_BYTES: Final = 64 << 10
MAX_QUESTION_BYTES: Final = 4 << 20
MAX_ANSWER_BYTES: Final = 4 << 20  # Of a question to the owner, and of its answer.


class Record(Protocol):
    """How a stand-in puts something on record."""

    async def __call__(
        self, kind: str, data: Mapping[str, JsonValue], bodies: Sequence[Body] = ()
    ) -> None:
        """Returns when the event is in the ledger: await it before answering.

        `kind` is one of `events.Kind`. Raises `ValueError` above 48 KiB of JSON `data` or 8 bodies
        of 64 KiB kept each. When the owner is gone the process ends.
        """
        ...


class Ask(Protocol):
    """A question to the owner of the range (`openai` alone)."""

    async def __call__(self, kind: str, body: bytes) -> bytes:
        """The owner's reply. Raises `ValueError` for its refusal, or above `MAX_QUESTION_BYTES`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInContext:
    """What `make` is given.

    `names`: lower case, A-labels, `*.` in front of a wildcard. `settings`: checked while planning.
    `files`: its read-only directory, which may not exist. `clock`: seconds since the epoch.
    `random`: bytes from the range's seed; not for keys.
    """

    id: str
    names: tuple[str, ...]
    settings: Mapping[str, JsonValue]
    files: Path
    clock: Callable[[], float]
    random: Callable[[int], bytes]
    record: Record
    ask: Ask
