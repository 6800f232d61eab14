"""A client of an ASGI app in the same process, and a stand-in's context whose clock stands still
and whose randomness is a counter's."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import uvicorn

from belljar.events import Body, JsonValue
from belljar.network.gateway.context import App, Ask, StandInContext
from belljar.network.stand_ins.web import compact, parse_json

NOW = 1_800_000_000.0


@dataclass
class Reply:
    """One answer."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str:
        """The values of a field, joined."""
        return ", ".join(value for key, value in self.headers if key == name)

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def json(self) -> Any:  # noqa: ANN401 - any JSON value
        """The body as JSON."""
        return parse_json(self.body)


@dataclass
class Recorded:
    """What a stand-in has recorded."""

    events: list[tuple[str, dict[str, JsonValue], tuple[Body, ...]]] = field(default_factory=list)

    async def __call__(
        self, kind: str, data: Mapping[str, JsonValue], bodies: Sequence[Body] = ()
    ) -> None:
        """Keep it."""
        self.events.append((kind, dict(data), tuple(bodies)))

    def attempts(self) -> list[JsonValue]:
        """`what` of each attempt."""
        return [data["what"] for kind, data, _ in self.events if kind == "network.attempt"]


async def no_answer(kind: str, body: bytes) -> bytes:
    """An owner who refuses."""
    raise ValueError("nobody to ask")


def context(
    settings: Mapping[str, Any] | None = None,
    files: Path | None = None,
    *,
    names: tuple[str, ...] = ("shop.example",),
    seed: bytes = b"seed",
    ask: Ask = no_answer,
    record: Recorded | None = None,
) -> StandInContext:
    """A context whose every answer is the same in each run."""
    count = itertools.count()

    def random(size: int) -> bytes:
        return hashlib.shake_256(seed + next(count).to_bytes(8)).digest(size)

    return StandInContext(
        id="it",
        names=names,
        settings=dict(settings or {}),
        files=files or Path("/nonexistent"),
        clock=lambda: NOW,
        random=random,
        record=record or Recorded(),
        ask=ask,
    )


@dataclass
class Client:
    """Calls an app; keeps cookies as a browser would."""

    app: App
    host: str = "shop.example"
    cookies: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, url: str, **how: Any) -> Reply:  # noqa: ANN401 - as `send` has it
        """One request and the whole answer."""
        return anyio.run(lambda: self.send(method, url, **how))

    def get(self, url: str, **headers: str) -> Reply:
        """A GET; names of headers with `_` for `-`."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("GET", url, headers=fields)

    def scope(self, kind: str, method: str, url: str, headers: Mapping[str, str]) -> dict[str, Any]:
        """The scope of a request."""
        parts = urlsplit(url)
        fields = {"host": parts.netloc or self.host, **headers}
        if self.cookies:
            fields.setdefault("cookie", "; ".join(f"{k}={v}" for k, v in self.cookies.items()))
        return {
            "type": kind,
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": parts.scheme or "http",
            "path": parts.path,
            "raw_path": parts.path.encode("latin-1", "replace"),
            "query_string": parts.query.encode("latin-1", "replace"),
            "headers": [
                (k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in fields.items()
            ],
            "state": {"cell": "agent", "name": self.host},
        }

    async def send(
        self,
        method: str,
        url: str,
        *,
        body: bytes | str = b"",
        json: object = None,
        headers: Mapping[str, str] | None = None,
        chunks: Iterable[bytes] | None = None,
    ) -> Reply:
        """As `ask`, inside an event loop."""
        fields = {k.lower(): v for k, v in (headers or {}).items()}
        if json is not None:
            body, fields = compact(json), {"content-type": "application/json", **fields}
        parts = list(chunks or [body.encode() if isinstance(body, str) else body])
        incoming = deque(
            {"type": "http.request", "body": p, "more_body": n + 1 < len(parts)}
            for n, p in enumerate(parts)
        )
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            if not incoming:  # as the gateway: nobody leaves before the answer
                await anyio.sleep_forever()
            return incoming.popleft()

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self.app(self.scope("http", method, url, fields), receive, send)
        return self._reply(sent, method)

    def _reply(self, sent: list[MutableMapping[str, Any]], method: str) -> Reply:
        start, *rest = sent
        assert start["type"] == "http.response.start"
        assert [m.get("more_body", False) for m in rest] == [True] * (len(rest) - 1) + [False]
        body = b"".join(m.get("body", b"") for m in rest)
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in start["headers"]]
        reply = Reply(start["status"], headers, body)
        assert all("\n" not in v and "\r" not in v and k == k.lower() for k, v in reply.headers)
        is_stream = "event-stream" in reply.header("content-type")
        if method != "HEAD" and reply.status not in (204, 304) and not is_stream:
            assert int(reply.header("content-length")) == len(body)
        for name, value in reply.headers:
            if name == "set-cookie":
                key, _, text = value.partition(";")[0].partition("=")
                self.cookies[key] = text
                if "Max-Age=0" in value:
                    del self.cookies[key]
        return reply


async def serve(app: App, listener: socket.socket, stop: Callable[[], Awaitable[object]]) -> None:
    """Serve an application by uvicorn until `stop` returns."""
    config = uvicorn.Config(cast("Any", app), lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve([listener]))
        await stop()
        server.should_exit = True
