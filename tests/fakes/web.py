"""A client of an application in the same process, and a stand-in's context whose clock stands still
and whose randomness is a counter's."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import anyio

from belljar.events import Body, JsonValue
from belljar.network.stand_ins.web import App, Ask, Request, StandInContext, compact, parse_json

NOW = 1_800_000_000.0


@dataclass
class Reply:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        return ", ".join(value for key, value in self.headers if key == name)

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:  # noqa: ANN401 - any JSON value
        return parse_json(self.body)


@dataclass
class Recorded:
    events: list[tuple[dict[str, JsonValue], tuple[Body, ...]]] = field(default_factory=list)

    async def __call__(self, data: Mapping[str, JsonValue], *bodies: Body) -> None:
        self.events.append((dict(data), bodies))

    def attempts(self) -> list[JsonValue]:
        return [data["what"] for data, _ in self.events]


async def no_answer(body: bytes) -> bytes:
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
    app: App
    host: str = "shop.example"
    cookies: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, url: str, **how: Any) -> Reply:  # noqa: ANN401 - as `send` has it
        return anyio.run(lambda: self.send(method, url, **how))

    def get(self, url: str, **headers: str) -> Reply:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("GET", url, headers=fields)

    async def send(
        self,
        method: str,
        url: str,
        *,
        body: bytes | str = b"",
        json: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        parts, fields = urlsplit(url), {k.lower(): v for k, v in (headers or {}).items()}
        if json is not None:
            body, fields = compact(json), {"content-type": "application/json", **fields}
        fields = {"host": parts.netloc or self.host, **fields}
        if self.cookies:
            fields.setdefault("cookie", "; ".join(f"{k}={v}" for k, v in self.cookies.items()))
        sent = body.encode() if isinstance(body, str) else body
        request = request_to(method, parts.path, parts.query, fields, sent)
        reply = await answered(self.app, request)
        assert all("\n" not in v and "\r" not in v and k == k.lower() for k, v in reply.headers)
        for name, value in reply.headers:
            if name == "set-cookie":
                key, _, text = value.partition(";")[0].partition("=")
                self.cookies[key] = text
                if "Max-Age=0" in value:
                    del self.cookies[key]
        return reply


def request_to(
    method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
) -> Request:
    raw = path.encode("latin-1", "replace")
    return Request(
        method=method,
        path=unquote_to_bytes(raw).decode("utf-8", "replace"),
        raw_path=raw.decode("latin-1"),
        query_string=query.encode("latin-1", "replace").decode("latin-1"),
        headers=tuple(headers.items()),
        body=body,
        cell="agent",
    )


async def answered(app: App, request: Request) -> Reply:
    answer = await app(request)
    body = answer.body
    if answer.stream is not None and request.method != "HEAD":
        async with aclosing(answer.stream()) as parts:
            body = b"".join([part async for part in parts])
    return Reply(answer.status, answer.headers, body)
