"""The stand-in `har`: replays a recording (HTTP Archive 1.2).

A request is answered by an entry of the same method, host, path and query (fields in any order); of
several, by those with the same body when there are any; in the recorded order, the last again and
again. Anything else is 404, and on record as an attempt. What belonged to the recorded connection
(framing, compression, HTTP/2's pseudo fields) is left out.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from belljar.network.gateway.context import App, StandInContext
from belljar.network.stand_ins.documents import Document, Faults, read_document, refuse_faults
from belljar.network.stand_ins.web import (
    Answer,
    Pairs,
    Request,
    header_text,
    http_app,
    plain_error,
)
from belljar.policy.yaml_tree import Path as FieldPath
from belljar.units import kind_of, printable, quoted

MAX_ENTRIES: Final = 20_000
_CONNECTION: Final = ("connection", "keep-alive", "proxy-connection", "upgrade", "alt-svc")
_FRAMING: Final = ("content-encoding", "content-length", "trailer", "transfer-encoding")
_DROPPED: Final = frozenset((*_CONNECTION, *_FRAMING, "date"))
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
Key: TypeAlias = tuple[str, str, str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Exchange:
    """`sent`: the request's body, None if not recorded."""

    key: Key
    sent: bytes | None
    answer: Answer


def check(settings: Mapping[str, Any], directory: Path | None) -> Faults:
    """What is wrong with the recording, each with its place."""
    return load(settings, directory)[1]


def load(
    settings: Mapping[str, Any], directory: Path | None
) -> tuple[tuple[Exchange, ...], Faults]:
    """The exchanges of a recording, and what is wrong with it."""
    document = read_document(directory, settings["recording"], what="a recording")
    if document.problems:
        return (), tuple(document.problems)
    log = document.value.get("log") if isinstance(document.value, dict) else None
    entries = log.get("entries") if isinstance(log, dict) else None
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_ENTRIES:
        needed = f"a recording has a list of 1 to {MAX_ENTRIES} entries here"
        document.problem(("log", "entries"), needed)
        return (), tuple(document.problems)
    reader = _RecordingReader(document, empty=settings.get("missing_bodies") == "empty")
    found = [reader.entry(entry, ("log", "entries", n)) for n, entry in enumerate(entries)]
    return tuple(exchange for exchange in found if exchange), tuple(document.problems)


class _RecordingReader:
    def __init__(self, document: Document, *, empty: bool) -> None:
        self.wrong, self.empty = document.problem, empty

    def mapping(self, value: object, path: FieldPath, name: str) -> dict[str, Any] | None:
        found = value.get(name) if isinstance(value, dict) else None
        if not isinstance(found, dict):
            self.wrong((*path, name), f"a mapping is needed, but this is {kind_of(found)}")
            return None
        return found

    def entry(self, value: object, path: FieldPath) -> Exchange | None:
        request = self.mapping(value, path, "request")
        response = self.mapping(value, path, "response")
        if request is None or response is None:
            return None
        status = response.get("status")
        if status == 0:
            # A browser's word for a request that had no answer.
            return None
        if type(status) is not int or not 200 <= status <= 599:
            self.wrong((*path, "response", "status"), f"{quoted(status)} is no final status")
            return None
        key = self.key(request, (*path, "request"))
        body = self.body(response.get("content", {}), (*path, "response", "content"))
        headers = self.headers(response.get("headers", []), (*path, "response", "headers"))
        if key is None or body is None:
            return None
        sent = self.sent(request.get("postData"), (*path, "request", "postData"))
        return Exchange(key, sent, Answer(status=status, headers=headers, body=body))

    def key(self, request: Mapping[str, Any], path: FieldPath) -> Key | None:
        method, url = request.get("method"), request.get("url")
        try:
            parts = urlsplit(url) if isinstance(url, str) else None
            host = parts.hostname if parts else None
        except ValueError:
            parts, host = None, None
        if not isinstance(method, str) or not method.isalpha():
            self.wrong((*path, "method"), f"{quoted(method)} is no method")
            return None
        if parts is None or not host or parts.scheme not in ("http", "https", "ws", "wss"):
            self.wrong((*path, "url"), f"{quoted(url)} is no whole URL")
            return None
        return key_of(method, host, parts.path or "/", parts.query)

    def headers(self, value: object, path: FieldPath) -> Pairs:
        found: list[tuple[str, str]] = []
        if not isinstance(value, list):
            self.wrong(path, f"a list is needed, but this is {kind_of(value)}")
            return ()
        for index, field in enumerate(value):
            known = field if isinstance(field, dict) else {}
            name, text = known.get("name"), known.get("value")
            if not isinstance(name, str) or not isinstance(text, str):
                self.wrong((*path, index), "a field has a name and a value, both text")
            elif name.lower() not in _DROPPED and _TOKEN.fullmatch(name):
                # Recorders join repeated fields by a line break.
                found += [(name.lower(), header_text(part)) for part in text.split("\n")]
        return tuple(found)

    def body(self, content: object, path: FieldPath) -> bytes | None:
        if not isinstance(content, dict):
            self.wrong(path, f"a mapping is needed, but this is {kind_of(content)}")
            return None
        text = content.get("text")
        if text is None:
            if content.get("size", 0) not in (0, -1) and not self.empty:
                what = "the recording lacks this body (`size` without `text`)"
                hint = "record with content, or write `missing_bodies: empty`"
                self.wrong(path, f"{what}: {hint}")
            return b""
        if not isinstance(text, str) or content.get("encoding", "") not in ("", "base64"):
            self.wrong(path, "a body's `text` is text, and its `encoding` nothing or `base64`")
            return None
        if content.get("encoding") != "base64":
            return text.encode("utf-8", "replace")
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            self.wrong((*path, "text"), "not base64")
            return None

    def sent(self, post: object, path: FieldPath) -> bytes | None:
        if post is None:
            return b""
        if not isinstance(post, dict) or not isinstance(post.get("text", ""), str):
            self.wrong(path, "a mapping with `text` is needed")
            return None
        return post["text"].encode("utf-8", "replace") if "text" in post else None


def key_of(method: str, host: str, path: str, query: str) -> Key:
    """The query's fields in any order."""
    try:
        fields = parse_qsl(query, keep_blank_values=True, errors="replace", max_num_fields=1000)
    except ValueError:
        fields = [("", query)]
    return method.upper(), host.lower(), unquote(path, errors="replace"), tuple(sorted(fields))


def make(context: StandInContext) -> App:
    """The ASGI app. Raises `PolicyError` as `check` finds."""
    exchanges, problems = load(context.settings, context.files)
    refuse_faults(problems, context.id)
    return http_app(_Player(context, exchanges).handle)


class _Player:
    def __init__(self, context: StandInContext, exchanges: tuple[Exchange, ...]) -> None:
        self.context = context
        self.any_host = bool(context.settings.get("any_host", False))
        self.recorded: dict[Key, list[Exchange]] = {}
        self.given: dict[tuple[Key, bytes | None], int] = {}
        for exchange in exchanges:
            self.recorded.setdefault(self.under(exchange.key), []).append(exchange)

    def under(self, key: Key) -> Key:
        return (key[0], "", key[2], key[3]) if self.any_host else key

    async def handle(self, request: Request) -> Answer:
        asked = (request.method, request.host, request.raw_path, request.query_string)
        key = self.under(key_of(*asked))
        found = self.recorded.get(key)
        if found is None and request.method == "HEAD":
            key = ("GET", *key[1:])
            found = self.recorded.get(key)
        if found is None:
            url = printable(request.url, max_chars=1024)
            data = {"what": "unrecorded", "method": request.method[:32], "url": url}
            await self.context.record("network.attempt", data)
            return plain_error(404)
        same = [exchange for exchange in found if exchange.sent == request.body]
        place, fitting = (key, request.body if same else None), same or found
        turn = self.given.get(place, 0)
        self.given[place] = turn + 1
        return fitting[min(turn, len(fitting) - 1)].answer
