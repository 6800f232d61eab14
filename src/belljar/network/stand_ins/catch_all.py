"""The stand-in `catch_all`: plausible answers (`default: simulate`).

Nothing is remembered; what writes is on record as an attempt.
"""

from __future__ import annotations

import hashlib
import html
import re
from typing import Final

from belljar.capture import body_of
from belljar.events import JsonValue
from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES, StandInContext
from belljar.network.stand_ins.web import (
    Answer,
    App,
    Request,
    json_answer,
    text_answer,
    uuid_of,
)
from belljar.units import printable

_API: Final = re.compile(
    r"(^|/)(api|v\d{1,3}|graphql|rest|rpc|json|oauth2?|token|auth)(/|$)|\.json$", re.ASCII
)
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def make(context: StandInContext) -> App:
    """Return the application."""

    async def app(request: Request) -> Answer:
        if request.method in _WRITES:
            data: dict[str, JsonValue] = {
                "what": "send",
                "method": request.method,
                "url": printable(request.url, max_chars=1024),
                "body_bytes": len(request.body),
            }
            sent = body_of("request", request.body, MAX_KEPT_BODY_BYTES)
            await context.record("network.attempt", data, [sent] if request.body else [])
        return respond(request)

    return app


def respond(request: Request) -> Answer:
    """Return the answer, a pure function of the request."""
    is_json = "application/json" in request.header("accept").lower()
    is_json |= request.content_type.endswith("json") or request.host.startswith("api.")
    if is_json or _API.search(request.path.lower()):
        if request.method == "DELETE":
            return Answer(status=204)
        # The same at each path, as of something that is there.
        place = f"{request.host}{request.raw_path}".encode()
        found = {"id": uuid_of(hashlib.sha256(place).digest()[:16]), "status": "ok"}
        return json_answer(found, 201 if request.method == "POST" else 200)
    name = html.escape(request.host.removeprefix("www.").partition(".")[0].title()) or "Welcome"
    page = (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{name}</title>'
        f'</head>\n<body>\n<h1><a href="/">{name}</a></h1>\n<p>There is nothing here yet.</p>\n'
        "</body>\n</html>\n"
    )
    return text_answer(page, media="text/html; charset=utf-8")
