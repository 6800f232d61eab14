"""The stand-in `har`: replays a recording (HTTP Archive 1.2).

A request is answered by an entry of the same method, host, path and query (fields in any order); of
several, by those with the same body when there are any; in the recorded order, the last again and
again. Anything else is 404, and on record as an attempt. What belonged to the recorded connection
(framing, compression, HTTP/2's pseudo fields) is left out.
"""

from __future__ import annotations

import base64
import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from belljar.network.gateway.context import StandInContext
from belljar.network.stand_ins.faults import MAX_FAULTS, Fault, Faults, read_file, refuse_faults
from belljar.network.stand_ins.web import (
    Answer,
    App,
    Request,
    header_text,
    http_app,
    parse_json,
    plain_error,
)
from belljar.units import printable

MAX_ENTRIES: Final = 20_000
MAX_RECORDING_BYTES: Final = 32 << 20
# Of the recorded connection; and the recorded body is unpacked and framed anew.
_DROPPED: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "upgrade", "alt-svc", "date"}
    | {"content-encoding", "content-length", "trailer", "transfer-encoding"}
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
Key: TypeAlias = tuple[str, str, str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class HarExchange:
    """`sent`: the request's body, None if not recorded."""

    key: Key
    sent: bytes | None
    answer: Answer


def check(settings: Mapping[str, Any], directory: Path | None) -> Faults:
    """Return what is wrong with the recording, each with its place."""
    return load(settings, directory)[1]


def load(
    settings: Mapping[str, Any], directory: Path | None
) -> tuple[tuple[HarExchange, ...], Faults]:
    """Return the exchanges of a recording, and what is wrong with it."""
    name = settings["recording"]
    data = read_file(directory, name, MAX_RECORDING_BYTES)
    if isinstance(data, Fault):
        return (), (data,)
    try:
        recording = parse_json(data.removeprefix(BOM_UTF8))
    except json.JSONDecodeError as error:
        return (), (Fault(f"not JSON: {error.msg}", (), name, error.lineno, error.colno),)
    except ValueError as error:
        return (), (Fault(f"not JSON: {error}", file=name),)
    entries: Any = None
    with suppress(LookupError, TypeError):
        entries = recording["log"]["entries"]
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_ENTRIES:
        needed = f"a recording has a list of 1 to {MAX_ENTRIES} entries here"
        return (), (Fault(needed, ("log", "entries"), name),)
    exchanges, faults = list[HarExchange](), list[Fault]()
    for index, entry in enumerate(entries):
        try:
            exchange = read_entry(entry)
            exchanges += [exchange] if exchange else []
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"not an entry as HAR 1.2 has it: {error}"
            faults.append(Fault(what, ("log", "entries", index), name))
    return tuple(exchanges), tuple(faults[:MAX_FAULTS])


def read_entry(value: Any) -> HarExchange | None:  # noqa: ANN401 - any JSON value
    """Return an entry's exchange, or None if it had no answer.

    Raises `ValueError`, and what Python raises where the shape is wrong.
    """
    request, response = value["request"], value["response"]
    status, content, post = response["status"], response.get("content", {}), request.get("postData")
    if status == 0:
        return None  # A browser's word for a request that had no answer.
    method, parts = request["method"], urlsplit(request["url"])
    if type(status) is not int or not 200 <= status <= 599 or not parts.hostname:
        raise ValueError(f"it has no final status ({status!r:.20}) or no whole URL")
    # Recorders join repeated fields by a line break.
    headers = tuple(
        (field["name"].lower(), header_text(part))
        for field in response.get("headers", [])
        if field["name"].lower() not in _DROPPED and _TOKEN.fullmatch(field["name"])
        for part in field["value"].split("\n")
    )
    text = content.get("text")
    if text is None and content.get("size", 0) not in (0, -1):
        raise ValueError("this body was not recorded (`size` without `text`): record with content")
    body = (text or "").encode("utf-8", "replace")
    if content.get("encoding"):
        body = base64.b64decode(body, validate=True)
    sent: bytes | None = b""
    if post is not None:
        sent = post["text"].encode("utf-8", "replace") if "text" in post else None
    key = key_of(method, parts.hostname, parts.path or "/", parts.query)
    return HarExchange(key, sent, Answer(status=status, headers=headers, body=body))


def key_of(method: str, host: str, path: str, query: str) -> Key:
    """Return what requests are compared by; the query's fields come in any order."""
    try:
        fields = parse_qsl(query, keep_blank_values=True, errors="replace", max_num_fields=1000)
    except ValueError:
        fields = [("", query)]
    return method.upper(), host.lower(), unquote(path, errors="replace"), tuple(sorted(fields))


def make(context: StandInContext) -> App:
    """Return the application. Raises `PolicyError` as `check` finds."""
    exchanges, problems = load(context.settings, context.files)
    refuse_faults(problems, context.id)
    return http_app(_Player(context, exchanges).handle)


class _Player:
    def __init__(self, context: StandInContext, exchanges: tuple[HarExchange, ...]) -> None:
        self.context = context
        self.recorded: dict[Key, list[HarExchange]] = {}
        self.given: dict[tuple[Key, bytes | None], int] = {}
        for exchange in exchanges:
            self.recorded.setdefault(exchange.key, []).append(exchange)

    async def handle(self, request: Request) -> Answer:
        key = key_of(request.method, request.host, request.raw_path, request.query_string)
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
