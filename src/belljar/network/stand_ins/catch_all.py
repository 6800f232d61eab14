"""The stand-in `catch_all`: plausible answers (`default: simulate`).

Nothing is remembered; what writes is on record as an attempt.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from typing import Final

from belljar.capture import body_of
from belljar.events import JsonValue
from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES, App, StandInContext
from belljar.network.stand_ins.files import media_of
from belljar.network.stand_ins.web import (
    Answer,
    Request,
    header_text,
    http_app,
    json_answer,
    text_answer,
    uuid_of,
)
from belljar.units import printable

_API: Final = re.compile(
    r"(^|/)(api|v\d{1,3}|graphql|rest|rpc|json|oauth2?|token|auth)(/|$)|\.json$", re.ASCII
)
_TELEMETRY: Final = re.compile(
    r"(^|/|\.)(collect|telemetry|metrics|track(ing)?|beacon|analytics|events?|ping|log|logs|stats"
    r"|pixel)(/|\.|$)",
    re.ASCII,
)
_PICTURES: Final = frozenset({".ico", ".gif", ".png", ".jpg", ".jpeg", ".webp"})
_FILES: Final = frozenset({".js", ".css", ".txt", ".xml", ".svg"})
_PIXEL: Final = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"


def make(context: StandInContext) -> App:
    """The ASGI app."""

    async def attempt(request: Request, refused: str) -> None:
        if request.method in _WRITES:
            data: dict[str, JsonValue] = {
                "what": "send",
                "method": request.method,
                "url": printable(request.url, max_chars=1024),
                "body_bytes": len(request.body),
                **({"refused": refused} if refused else {}),
            }
            sent = [body_of("request", request.body, MAX_KEPT_BODY_BYTES)] if request.body else []
            await context.record("network.attempt", data, sent)

    async def handle(request: Request) -> Answer:
        await attempt(request, "")
        return respond(request)

    return http_app(handle, cut=attempt)


def respond(request: Request) -> Answer:
    """What is answered; a pure function of the request."""
    path, ending = request.path.lower(), "." + request.path.lower().rpartition(".")[2]
    if request.method == "OPTIONS":
        return Answer(status=204, headers=(("allow", _METHODS), *_cors(request)))
    if request.method not in _METHODS.split(", "):
        return text_answer("Method Not Allowed", 405, (("allow", _METHODS),))
    if ending in _PICTURES:
        return Answer(headers=(("content-type", "image/gif"),), body=_PIXEL)
    if ending in _FILES:
        return text_answer("\n", media=media_of(path))
    if _TELEMETRY.search(path) or _TELEMETRY.search(request.host.partition(".")[0]):
        return Answer(status=204, headers=_cors(request))
    accept = request.header("accept").lower()
    asks = "application/json" in accept and "text/html" not in accept
    is_json = asks or request.content_type.endswith("json")
    if is_json or _API.search(path) or request.host.startswith("api."):
        return _api(request)
    return _page(request)


def _cors(request: Request) -> tuple[tuple[str, str], ...]:
    origin = header_text(request.header("origin"), max_chars=256)
    if not origin:
        return ()
    return (
        ("access-control-allow-origin", origin),
        ("access-control-allow-methods", _METHODS),
        ("access-control-allow-headers", "*"),
    )


def _api(request: Request) -> Answer:
    if request.method == "DELETE":
        return Answer(status=204, headers=_cors(request))
    last = request.path.rstrip("/").rpartition("/")[2]
    is_list = last.endswith("s") and not any(char.isdigit() for char in last)
    if is_list and request.method in ("GET", "HEAD"):
        return json_answer({"data": [], "total": 0}, 200, _cors(request))
    identity = uuid_of(hashlib.sha256(f"{request.host}{request.raw_path}".encode()).digest()[:16])
    status = 201 if request.method == "POST" else 200
    return json_answer({"id": identity, "status": "ok"}, status, _cors(request))


def _page(request: Request) -> Answer:
    host = html.escape(request.host[:253])
    name = host.removeprefix("www.").partition(".")[0].replace("-", " ").title() or "Welcome"
    last = request.path.rstrip("/").rpartition("/")[2][:80]
    topic = html.escape(last.partition(".")[0].replace("-", " ").replace("_", " ").title())
    title = f"{topic} - {name}" if topic else name
    page = (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
        f'</head>\n<body>\n<header><a href="/">{name}</a></header>\n<h1>{title}</h1>\n'
        f"<p>There is nothing here yet.</p>\n</body>\n</html>\n"
    )
    return text_answer(page, media="text/html; charset=utf-8")
