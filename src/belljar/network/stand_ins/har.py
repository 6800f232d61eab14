"""The stand-in `har` replays a recording (HTTP Archive 1.2)."""

from __future__ import annotations

import base64
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from belljar.network.stand_ins import web
from belljar.network.stand_ins.files import Fault, Faults, read_file

MAX_ENTRIES: Final = 20_000
MAX_RECORDING_BYTES: Final = 32 << 20
# Of the recorded connection; and the recorded body is unpacked and framed anew.
_DROPPED: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "upgrade", "alt-svc", "date"}
    | {"content-encoding", "content-length", "trailer", "transfer-encoding"}
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
Key: TypeAlias = tuple[str, str, str, tuple[str, ...]]
# A request's key and body (None: not recorded), and its answer.
HarEntry: TypeAlias = tuple[Key, bytes | None, web.HttpAnswer]


def check(settings: Mapping[str, Any], directory: Path | None) -> Faults:
    try:
        load(settings, directory)
    except ValueError as error:
        return (Fault(str(error), file=settings["recording"]),)
    return ()


def load(settings: Mapping[str, Any], directory: Path | None) -> list[HarEntry]:
    """Return exchanges. Raises `ValueError`."""
    data = read_file(directory, settings["recording"], MAX_RECORDING_BYTES)
    recording, place = web.parse_json(data.removeprefix(BOM_UTF8)), "log.entries"
    try:
        entries, exchanges = recording["log"]["entries"], list[HarEntry]()
        if not 0 < len(entries) <= MAX_ENTRIES:
            raise ValueError(f"a list of 1 to {MAX_ENTRIES} is needed")
        for index, entry in enumerate(entries):
            place = f"log.entries[{index}]"
            if entry["response"]["status"] != 0:  # A browser's word for no answer.
                exchanges.append(read_entry(entry))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{place}: not as HAR 1.2 has it: {error}") from None
    return exchanges


def read_entry(value: Any) -> HarEntry:  # noqa: ANN401 - any JSON value
    request, response = value["request"], value["response"]
    status, content, post = response["status"], response.get("content", {}), request.get("postData")
    method, parts = request["method"], urlsplit(request["url"])
    if type(status) is not int or not 200 <= status <= 599 or not parts.hostname:
        raise ValueError(f"it has no final status ({status!r:.20}) or no whole URL")
    # Recorders join repeated fields by a line break.
    headers = tuple(
        (field["name"].lower(), web.header_text(part))
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
    return key, sent, web.HttpAnswer(status=status, headers=headers, body=body)


def key_of(method: str, host: str, path: str, query: str) -> Key:
    fields = tuple(sorted(query.split("&")))
    return method.upper(), host.lower(), unquote(path, errors="replace"), fields


def make(context: web.StandInContext) -> web.App:
    recorded = dict[tuple[Key, bytes | None], list[web.HttpAnswer]]()
    for known, sent, answer in load(context.settings, context.files):
        for place in {(known, sent), (known, None)}:
            recorded.setdefault(place, []).append(answer)
    given = Counter[tuple[Key, bytes | None]]()

    async def handle(request: web.Request) -> web.HttpAnswer:
        key = key_of(request.method, request.host, request.raw_path, request.query_string)
        place: tuple[Key, bytes | None] = (key, request.body)
        if place not in recorded:
            place = key, None  # Those with any body.
        if (found := recorded.get(place)) is None:
            url = web.word(request.url, 1024)
            await context.record({"what": "unrecorded", "method": request.method[:32], "url": url})
            return web.plain_error(404)
        given[place] += 1
        return found[min(given[place], len(found)) - 1]

    return handle
