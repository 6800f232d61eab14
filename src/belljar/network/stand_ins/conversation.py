"""Decoy services on a stream: recorded, then answered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from belljar.dataclass import dataclass
from belljar.events import Body, JsonValue
from belljar.network.stand_ins import web

MAX_NAMES: Final = 32  # In one event; the others are counted, and all are in its body.


class Presented(NamedTuple):
    user: str
    credential: bytes  # Empty for a wrong proof.
    ok: bool


@dataclass(frozen=True, slots=True)
class ServiceStep:
    name: str
    raw: bytes
    reply: bytes = b""
    presented: Presented | None = None
    close: bool = False


class Conversation:
    """`rest` has the bytes of an incomplete step."""

    def __init__(self) -> None:
        self.rest = bytearray()

    def feed(self, data: bytes) -> Iterator[ServiceStep]:
        """Yield complete steps; no bytes raise."""
        self.rest += data
        while (step := self.next_step()) is not None:
            yield step
            if step.close:
                return

    def next_step(self) -> ServiceStep | None:
        """Answer the next step; return None where bytes lack."""
        raise NotImplementedError

    def take(self, count: int | None = None) -> bytes:
        raw = bytes(self.rest[:count])
        del self.rest[:count]
        return raw


def stream_app(
    context: web.StandInContext, service: str, start: Callable[[], Conversation]
) -> web.StreamApp:
    async def serve(stream: web.ClientStream, cell: str) -> None:
        session, broken = start(), b""
        try:
            while data := await stream.receive():
                # Where a session breaks, all that it was given is recorded.
                broken = bytes(session.rest) + data
                taken = list(session.feed(data))
                broken = b""
                for steps in _groups(taken):
                    await record(context, service, steps, cell)
                    # The steps of a client that has left are recorded all the same.
                    with contextlib.suppress(OSError):
                        await stream.send(b"".join(step.reply for step in steps))
                    if steps[-1].close:
                        return
        finally:
            if rest := broken or bytes(session.rest):
                await record(context, service, [ServiceStep("unfinished", rest)], cell)

    return serve


def _groups(steps: Iterable[ServiceStep]) -> Iterator[list[ServiceStep]]:
    """Yield logins alone and other steps together."""
    group, size = list[ServiceStep](), 0
    for step in steps:
        size += len(step.raw)
        if group and (step.presented or group[-1].presented or size > web.MAX_KEPT_BODY_BYTES):
            yield group
            group, size = [], len(step.raw)
        group.append(step)
    if group:
        yield group


async def record(
    context: web.StandInContext, service: str, steps: list[ServiceStep], cell: str
) -> None:
    data: dict[str, JsonValue] = {"cell": cell}
    bodies = list[Body]()
    if presented := steps[0].presented:
        user = web.word(presented.user)
        if user != presented.user:
            whole = presented.user.encode("utf-8", "replace")
            bodies.append(web.kept_body("user", whole))
        data |= {"what": "login", "operation": f"{service}.{steps[0].name}"}
        data |= {"user": user, "ok": presented.ok}
        body = web.kept_body("credential", presented.credential)
    else:
        data |= {"what": "command", "operation": f"{service}.command", "count": len(steps)}
        data["names"] = [web.word(step.name, 64) for step in steps[:MAX_NAMES]]
        body = web.kept_body("command", b"".join(step.raw for step in steps))
    await context.record(data, body, *bodies)
