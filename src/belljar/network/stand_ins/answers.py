"""Small parts that every registry answers with: requests read with bounds, answers sent whole, files sent in ranges, credentials put on record.

HTTP semantics: RFC 9110 (ranges: section 14, preconditions: section 13).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from email.utils import formatdate, mktime_tz, parsedate_tz
from typing import Final

from belljar.events import JsonValue
from belljar.network.gateway.context import Receive, Scope, Send
from belljar.network.stand_ins.shelf import ShelfFile, chunks_of
from belljar.units import printable

MAX_WORD_CHARS: Final = 200
MAX_LIST_JSON_BYTES: Final = 8 << 10
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


class TooLong(ValueError):  # noqa: N818 - it is what happened
    """A request's body is longer than its bound; what is left of it was not read."""


class Interrupted(ConnectionError):  # noqa: N818 - it is what happened
    """The client went away before its body's end."""


@dataclass(frozen=True, slots=True)
class Request:
    """What an ASGI scope says. `path` is decoded; `headers` has lower-case names, repeated ones joined by `, `."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    cell: str
    base_url: str

    @classmethod
    def of(cls, scope: Scope) -> Request:
        """Read a scope of the type `http`."""
        headers: dict[str, str] = {}
        for raw_name, raw_value in scope["headers"]:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return cls(
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"].decode("latin-1"),
            headers=headers,
            cell=str((scope.get("state") or {}).get("cell", "")),
            base_url=f"{scope.get('scheme', 'http')}://{headers.get('host', 'localhost')}",
        )


async def body_pieces(receive: Receive) -> AsyncIterator[bytes]:
    """The pieces of a request's body. Raises `Interrupted`."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Interrupted("the client went away")
        if message.get("body"):
            yield bytes(message["body"])
        if not message.get("more_body"):
            return


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """A request's whole body. Raises `TooLong` and `Interrupted`."""
    pieces, size = [], 0
    async for piece in body_pieces(receive):
        size += len(piece)
        if size > max_bytes:
            raise TooLong(f"more than {max_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def answer(
    send: Send,
    body: bytes,
    content_type: str = "text/plain; charset=utf-8",
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    head: bool = False,
) -> None:
    """Send an answer whole. With `head`, its body is left out and its length is told all the same."""
    fields = {"content-type": content_type, **(headers or {})}
    if status != 304:
        fields["content-length"] = str(len(body))
    await send({"type": "http.response.start", "status": status, "headers": _encoded(fields)})
    await send({"type": "http.response.body", "body": b"" if head else body})


async def answer_json(
    send: Send, value: object, *, status: int = 200, content_type: str = "application/json", head: bool = False
) -> None:
    """Send a JSON document."""
    await answer(send, json.dumps(value, separators=(",", ":")).encode(), content_type, status=status, head=head)


async def answer_file(request: Request, send: Send, file: ShelfFile, content_type: str, etag: str) -> None:
    """Send a file: whole, one range of it, or 304. `etag` comes without quotes. Several ranges in one request are answered by the whole, as RFC 9110 allows."""
    modified = {"last-modified": formatdate(file.mtime_s, usegmt=True)}
    fields = {"content-type": content_type, "accept-ranges": "bytes", "etag": f'"{etag}"', **modified}
    if is_fresh(request.headers, etag, file.mtime_s):
        await send({"type": "http.response.start", "status": 304, "headers": _encoded(fields)})
        await send({"type": "http.response.body", "body": b""})
        return
    bounds = byte_range(request.headers, file.size_bytes, etag)
    if bounds is None:
        fields["content-range"] = f"bytes */{file.size_bytes}"
        await answer(send, b"", content_type, status=416, headers=fields)
        return
    start, end = bounds
    partial = (start, end) != (0, file.size_bytes)
    if partial:
        fields["content-range"] = f"bytes {start}-{end - 1}/{file.size_bytes}"
    fields["content-length"] = str(end - start)
    await send({"type": "http.response.start", "status": 206 if partial else 200, "headers": _encoded(fields)})
    if request.method != "HEAD":
        async for chunk in chunks_of(file.path, start, end):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def is_fresh(headers: Mapping[str, str], etag: str, modified_s: int) -> bool:
    """Whether the client's copy is the newest: by `If-None-Match`, or, without it, by `If-Modified-Since` (RFC 9110, 13.2.2)."""
    if "if-none-match" in headers:
        return etag_matches(headers["if-none-match"], etag)
    since = parsedate_tz(headers.get("if-modified-since", "")[:64])
    try:
        return since is not None and mktime_tz(since) >= modified_s
    except (ValueError, OverflowError):
        return False


def etag_matches(stated: str, etag: str) -> bool:
    """Whether `If-None-Match` names this entity (weak comparison)."""
    return any(part.strip().removeprefix("W/") in {f'"{etag}"', "*"} for part in stated.split(","))


def byte_range(headers: Mapping[str, str], size_bytes: int, etag: str) -> tuple[int, int] | None:
    """`[start, end)` that a request asks for; the whole where it asks for none that can be meant; `None` where it lies beyond the end."""
    match = _RANGE.fullmatch(headers.get("range", "").replace(" ", ""))
    condition = headers.get("if-range", f'"{etag}"')
    if match is None or match[1] == match[2] == "" or condition != f'"{etag}"':
        return 0, size_bytes
    if match[1] == "":
        return (max(0, size_bytes - int(match[2])), size_bytes) if int(match[2]) and size_bytes else None
    start, end = int(match[1]), min(int(match[2]) + 1 if match[2] else size_bytes, size_bytes)
    if match[2] and int(match[2]) < start:
        return 0, size_bytes
    return (start, end) if start < size_bytes else None


def credentials(headers: Mapping[str, str]) -> dict[str, JsonValue]:
    """What an `Authorization` field gave away, for the record: scheme, user and the SHA-256 of the secret; never the secret."""
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if not scheme:
        return {"credentials": "none"}
    user, secret = "", rest.strip().encode("latin-1", "replace")
    if scheme.lower() == "basic":
        user, secret = _basic(rest.strip())
    return {
        "credentials": word(scheme.lower(), 20),
        "user": word(user),
        "secret_sha256": hashlib.sha256(secret).hexdigest(),
    }


def word(text: str, max_chars: int = MAX_WORD_CHARS) -> str:
    """A guest's word for the record: bounded and made visible."""
    return printable(text, max_chars=max_chars)


def bounded(values: Iterable[JsonValue], max_json_bytes: int = MAX_LIST_JSON_BYTES) -> list[JsonValue]:
    """As many of the values, from the first on, as fit so many bytes of JSON: a guest decides how many there are, an event has a bound."""
    kept, size = list[JsonValue](), 0
    for value in values:
        size += len(json.dumps(value)) + 2
        if size > max_json_bytes:
            break
        kept.append(value)
    return kept


async def refuse_websocket(scope: Scope, send: Send) -> bool:
    """Whether the scope was something other than a request; it is then closed."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
    return bool(scope["type"] != "http")


def _basic(encoded: str) -> tuple[str, bytes]:
    try:
        user, _, secret = base64.b64decode(encoded, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return "", encoded.encode("latin-1", "replace")
    return user.decode("utf-8", "replace"), secret


def _encoded(fields: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
