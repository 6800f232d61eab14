"""The stand-in `catch_all` answers plausibly; writes are attempts."""

from __future__ import annotations

import hashlib
import html
import re
from typing import Final

from belljar.events import JsonValue
from belljar.network.stand_ins import web

_API: Final = re.compile(r"/(api[./]|v\d|graphql|rest/|rpc|oauth|token|auth)|\.json$", re.ASCII)
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def make(context: web.StandInContext) -> web.App:
    async def app(request: web.Request) -> web.HttpAnswer:
        if request.method in _WRITES:
            data: dict[str, JsonValue] = {"what": "send", "method": request.method}
            data |= {"url": web.word(request.url, 1024), "body_bytes": len(request.body)}
            sent = [web.kept_body("request", request.body)] if request.body else []
            await context.record(data, *sent)
        if "json" in request.header("accept") + request.content_type or _API.search(request.url):
            if request.method == "DELETE":
                return web.HttpAnswer(status=204)
            place = f"{request.host}{request.raw_path}".encode()
            found = {"id": hashlib.sha256(place).hexdigest()[:16], "status": "ok"}
            return web.json_answer(found, 201 if request.method == "POST" else 200)
        name = html.escape(request.host.removeprefix("www.").partition(".")[0].title())
        page = f"<!doctype html>\n<title>{name}</title>\n<h1>{name}</h1>\n<p>Nothing here yet.\n"
        return web.text_answer(page, media="text/html; charset=utf-8")

    return app
