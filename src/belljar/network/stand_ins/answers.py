"""Small parts that every registry answers with: requests read with bounds, answers sent whole,
files sent in ranges, credentials put on record.

HTTP semantics: RFC 9110.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final

from belljar.events import JsonValue
from belljar.network.gateway.context import Receive, Scope, Send
from belljar.network.stand_ins.conditions import Stored, share_of
from belljar.network.stand_ins.shelf import ShelfFile, pieces_of
from belljar.units import printable

MAX_WORD_CHARS: Final = 200
MAX_LIST_JSON_BYTES: Final = 8 << 10


class TooLong(ValueError):  # noqa: N818 - it is what happened
    """A request's body is longer than its bound; what is left of it was not read."""


class Interrupted(ConnectionError):  # noqa: N818 - it is what happened
    """The client went away before its body's end."""


@dataclass(frozen=True, slots=True)
class Request:
    """What an ASGI scope says.

    `path` is decoded; `headers` has lower-case names, repeated ones joined by `, `.
    """

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
    """Send an answer whole.

    With `head`, its body is left out and its length is told all the same.
    """
    fields = {"content-type": content_type, **(headers or {})}
    if status != 304:
        fields["content-length"] = str(len(body))
    await send({"type": "http.response.start", "status": status, "headers": _encoded(fields)})
    await send({"type": "http.response.body", "body": b"" if head else body})


async def answer_json(
    send: Send,
    value: object,
    *,
    status: int = 200,
    content_type: str = "application/json",
    head: bool = False,
) -> None:
    """Send a JSON document."""
    await answer(
        send,
        json.dumps(value, separators=(",", ":")).encode(),
        content_type,
        status=status,
        head=head,
    )


async def answer_file(
    request: Request, send: Send, file: ShelfFile, content_type: str, etag: str
) -> None:
    """Send a file: whole, one range of it, or why not (`conditions.share_of`).

    `etag` comes without quotes.
    """
    modified = {"last-modified": formatdate(file.mtime_s, usegmt=True)}
    fields = {
        "content-type": content_type,
        "accept-ranges": "bytes",
        "etag": f'"{etag}"',
        **modified,
    }
    stored = Stored(etag=etag, modified_s=file.mtime_s, size_bytes=file.size_bytes)
    share = share_of(request.method, request.headers, stored)
    if share.status in (304, 412, 416):
        if share.status == 416:
            fields["content-range"] = f"bytes */{file.size_bytes}"
        await answer(send, b"", content_type, status=share.status, headers=fields)
        return
    if share.status == 206:
        fields["content-range"] = f"bytes {share.start}-{share.end - 1}/{file.size_bytes}"
    fields["content-length"] = str(share.end - share.start)
    await send({"type": "http.response.start", "status": share.status, "headers": _encoded(fields)})
    if request.method != "HEAD":
        async for chunk in pieces_of(file, share.start, share.end):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def credentials(headers: Mapping[str, str]) -> dict[str, JsonValue]:
    """What an `Authorization` field gave away, for the record: scheme, user and the SHA-256 of the
    secret; never the secret.
    """
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


def presents(headers: Mapping[str, str], secret: str) -> bool:
    """Whether an `Authorization` field holds a secret: as a bearer's, or as the password of basic
    credentials.
    """
    return credentials(headers).get("secret_sha256") == hashlib.sha256(secret.encode()).hexdigest()


def word(text: str, max_chars: int = MAX_WORD_CHARS) -> str:
    """A guest's word for the record: bounded and made visible."""
    return printable(text, max_chars=max_chars)


def bounded(
    values: Iterable[JsonValue], max_json_bytes: int = MAX_LIST_JSON_BYTES
) -> list[JsonValue]:
    """As many of the values, from the first on, as fit so many bytes of JSON: a guest decides how
    many there are, an event has a bound.
    """
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
