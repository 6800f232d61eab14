"""The live page's server: who may look, what it sees, and the kill switch for operators.

It speaks no TLS, so it is not for a network.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from belljar.errors import HostError
from belljar.isolation.hold import release
from belljar.isolation.kill import kill_now
from belljar.ledger.keys import write_once
from belljar.live.feed import Feed

# Of the store; who has its token may look.
VIEWER: Final = "live-token"
# Who has this token may stop runs and hold the store, too.
OPERATOR: Final = "live-operator-token"
# 32 random bytes.
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")
# The goal is a lag of half a second.
LOOK_INTERVAL_S: Final = 0.2
# Each look reads the journal and control groups of all cells.
STATE_INTERVAL_S: Final = 1.0
# Each has a queue of its own; twice as many as are promised.
MAX_BROWSERS: Final = 200
# An action names a run and a reason, and nothing that is larger.
_MAX_BODY_BYTES: Final = 4096
_HERE: Final = Path(__file__).parent
# uPlot 1.6.32 as its authors publish it (MIT); the build checks its digest.
_FILES: Final = ("live.js", "live.css", "uplot.js", "uplot.css")
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def load_token(home: Path, name: str) -> str:
    """Return the store's token, made if missing. Raises `HostError`."""
    path = home / "keys" / name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        write_once(path, secrets.token_urlsafe(32).encode())
    token = path.read_text(errors="replace")
    if _TOKEN.fullmatch(token) is None or path.stat().st_mode & 0o077:
        hint = "remove it: a new one is made"
        raise HostError("it is no token, or open to others", where=str(path), hint=hint)
    return token


class LiveServer:
    """The application of one store (design/live.md).

    `is_ending` is asked once a second at least; streams then end.
    `operator`: the token that may stop, hold and release, None for nobody's.
    `origins`: what a browser may name as this place (DNS rebinding); empty for a unix socket.
    """

    def __init__(
        self, home: Path, viewer: str, operator: str | None, *, origins: frozenset[str]
    ) -> None:
        self.home = home
        self.feed = Feed(home)
        self.is_ending: Callable[[], bool] = lambda: False
        self._tokens = {False: viewer, True: operator}
        self._origins = origins
        self._hosts = {origin.partition("://")[2] for origin in origins}
        self._name = secrets.token_hex(4)  # a cursor of another process means nothing here
        self._state = "{}"
        self._looked = anyio.Event()
        self._browsers = 0

    def app(self) -> ASGIApp:
        routes = [
            *(Route(f"/{name}", partial(self._file, name)) for name in _FILES),
            Route("/", partial(self._file, "live.html")),
            Route("/session", self._session, methods=["POST"]),
            Route("/events", self._events),
            Route("/actions/{action}", self._act, methods=["POST"]),
        ]
        return self._guarded(Starlette(routes=routes, lifespan=self._lifespan))

    def _secret(self, *, operator: bool = False) -> str:
        token = self._tokens[operator] or secrets.token_hex()  # nobody has it
        return hmac.new(token.encode(), b"page", hashlib.sha256).hexdigest()

    def _may(self, request: Request, *, operator: bool = False) -> bool:
        given = request.headers.get("x-belljar-secret", "")
        is_operator = _is_same(given, self._secret(operator=True))
        return is_operator or (not operator and _is_same(given, self._secret()))

    def _guarded(self, app: ASGIApp) -> ASGIApp:
        """Refuse foreign hosts and origins first, and add the headers."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            request = Request(scope)
            host, origin = request.headers.get("host", ""), request.headers.get("origin")
            if self._origins and (
                host not in self._hosts or (origin is not None and origin not in self._origins)
            ):
                await _refused("this address is not served here", 421)(scope, receive, send)
                return

            async def send_with_headers(message: Any) -> None:  # noqa: ANN401 - ASGI's
                if message["type"] == "http.response.start":
                    for name, value in _HEADERS.items():
                        MutableHeaders(scope=message).setdefault(name, value)
                await send(message)

            await app(scope, receive, send_with_headers)

        return guarded

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._look)
            tasks.start_soon(self._look_at_state)
            with self.feed:
                yield
                tasks.cancel_scope.cancel()

    async def _look(self) -> None:
        while True:
            before = self.feed.last
            with suppress(OSError):  # of the store itself: the state says so
                await anyio.to_thread.run_sync(self.feed.look)
            if self.feed.last != before:
                self._wake()
            await anyio.sleep(LOOK_INTERVAL_S)

    async def _look_at_state(self) -> None:
        while True:
            try:
                state = await anyio.to_thread.run_sync(self.feed.state)
            except (OSError, ValueError) as error:  # a page that stands still must not look alive
                state = {"runs": [], "held": f"this store can't be read: {error}", "cells": 0}
            self._state = json.dumps(state)
            self._wake()
            await anyio.sleep(STATE_INTERVAL_S)

    def _wake(self) -> None:
        woken, self._looked = self._looked, anyio.Event()
        woken.set()

    # --- requests

    async def _file(self, name: str, _request: Request) -> Response:
        # Not by the request's URL, which some versions of Starlette make of whatever Host says
        return FileResponse(_HERE / name)

    async def _session(self, request: Request) -> Response:
        """Trade a token, or an old secret, for its role's secret."""
        given = (await _body(request)).get("token", "")
        token = given if isinstance(given, str) else ""
        for operator in (True, False):
            known = self._tokens[operator]
            if (known and _is_same(token, known)) or self._may(request, operator=operator):
                secret = self._secret(operator=operator)
                return JSONResponse({"operator": operator, "secret": secret})
        return _refused("the token is wrong: `belljar serve` prints it", 401)

    async def _events(self, request: Request) -> Response:
        if not self._may(request):
            return _refused("no session", 401)
        if self._browsers >= MAX_BROWSERS:
            return _refused(f"{MAX_BROWSERS} browsers are watching already", 503)
        name, _, number = request.headers.get("last-event-id", "").partition("-")
        is_mine = name == self._name and number.isdecimal()
        cursor = int(number) if is_mine else self.feed.first
        return StreamingResponse(
            self._stream(min(cursor, self.feed.last), anew=not is_mine),
            media_type="text/event-stream",
        )

    async def _stream(self, cursor: int, *, anew: bool) -> AsyncIterator[bytes]:
        shown = ""
        self._browsers += 1
        try:
            while not self.is_ending():
                looked = self._looked
                lines, cursor, missed = self.feed.since(cursor)
                if lines or missed or anew:
                    flags = json.dumps({"missed": missed, "anew": anew})
                    data = f'{flags[:-1]}, "lines": [{",".join(lines)}]}}'
                    yield f"id: {self._name}-{cursor}\nevent: lines\ndata: {data}\n\n".encode()
                    anew = False
                if self._state != shown:
                    shown = self._state
                    yield f"event: state\ndata: {shown}\n\n".encode()
                if cursor == self.feed.last:
                    await looked.wait()
        finally:
            self._browsers -= 1

    async def _act(self, request: Request) -> Response:
        if not self._may(request, operator=True):
            return _refused("actions need the address that `belljar serve --operator` prints", 403)
        action, name = request.path_params["action"], (await _body(request)).get("name", "")
        if action == "release":
            await anyio.to_thread.run_sync(release, self.home)
            return JSONResponse({"ok": True})
        is_stop = action == "stop" and isinstance(name, str) and name
        if not (is_stop or action == "hold"):
            return _refused("there is no such action", 404)
        names, reason = [name] if is_stop else [], "stopped from the live page"
        act = partial(
            kill_now, self.home, names, everything=not is_stop, hold_too=not is_stop, reason=reason
        )

        try:
            with anyio.CancelScope(shield=True):
                report = await anyio.to_thread.run_sync(act)
        except LookupError:
            return _refused("there is no such run or cell any more", 404)
        return JSONResponse({"ok": report.ok, "cells": len(report.cells)})


def _is_same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "backslashreplace"), secret.encode())


async def _body(request: Request) -> dict[str, Any]:
    """Return a request's JSON object, {} for any other body."""
    if int(request.headers.get("content-length") or 0) > _MAX_BODY_BYTES:
        return {}
    content = b""
    async for piece in request.stream():
        content += piece
        if len(content) > _MAX_BODY_BYTES:
            return {}
    try:
        value = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _refused(why: str, status: int) -> Response:
    return JSONResponse({"error": why}, status_code=status)
