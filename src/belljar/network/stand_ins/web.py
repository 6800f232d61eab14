"""Types and toolkit of stand-ins."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from asyncio import Lock
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from belljar.capture import body_of
from belljar.dataclass import dataclass
from belljar.events import Body, JsonValue
from belljar.units import printable

_T = TypeVar("_T")
Pairs: TypeAlias = tuple[tuple[str, str], ...]

MAX_FIELDS: Final = 1000  # Parsing costs as many objects as there are fields, whatever their size.
MAX_JSON_DEPTH: Final = 128  # Walks are recursive; Python's limit is near 1,000.
_UNSAFE: Final = re.compile(r"[^\t\x20-\x7e\x80-\xff]")


class ClientStream(Protocol):
    async def receive(self) -> bytes:
        """Return at most 64 KiB. Raises `OSError`."""
        ...

    async def send(self, data: bytes) -> None:
        """Return when the kernel has it. Raises `OSError`."""
        ...


# `(stream, cell)`. The connection is closed when it returns, raises or exceeds a bound.
StreamApp: TypeAlias = Callable[[ClientStream, str], Awaitable[None]]

MAX_BODY_BYTES: Final = 64 << 20  # Beyond it a request is answered 413 and no stand-in is called.
MAX_KEPT_BODY_BYTES: Final = 64 << 10
MAX_ASKED_BYTES: Final = 4 << 20
MAX_ANSWER_BYTES: Final = 4 << 20  # Of a question to the owner, and of its answer.


class ClientGoneError(OSError):
    """The client has left; nothing more can be sent."""


class RefusedRequestError(Exception):
    """It ends an exchange or connection with a status."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


# `(data, *bodies)`: put an attempt on record. Returns when the event is in the ledger: await it
# before answering. Raises `ValueError` above 48 KiB of JSON or 8 bodies of 64 KiB.
RecordAttempt: TypeAlias = Callable[..., Awaitable[None]]
# Ask the range's owner (`openai` alone). Raises `ValueError` if refused or over `MAX_ASKED_BYTES`.
Ask: TypeAlias = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInContext:
    id: str
    names: tuple[str, ...]  # Lower case, A-labels.
    settings: Mapping[str, JsonValue]
    files: Path  # Read-only; it may not exist.
    clock: Callable[[], float]  # Unix time.
    random: Callable[[int], bytes]
    record: RecordAttempt
    ask: Ask


@dataclass(frozen=True, kw_only=True)
class Request:
    """Its header names are lower-case; its `host` was judged."""

    method: str
    path: str
    raw_path: str
    query_string: str = ""
    headers: Pairs = ()
    body: bytes = b""
    scheme: str = "http"
    port: int = 80
    cell: str = ""

    def header(self, name: str) -> str:
        """Return "" or all values, joined (RFC 9110, 5.3)."""
        return ", ".join(value for key, value in self.headers if key == name)

    @property
    def host(self) -> str:
        return re.sub(r":\d*$", "", self.header("host")).lower()

    @property
    def base_url(self) -> str:
        return f"{self.scheme}://{self.header('host')}"

    @property
    def content_type(self) -> str:
        return self.header("content-type").partition(";")[0].strip().lower()

    @property
    def url(self) -> str:
        query = f"?{self.query_string}" if self.query_string else ""
        return f"{self.base_url}{self.raw_path}{query}"

    @cached_property
    def query(self) -> Pairs:
        return _fields(self.query_string)

    @cached_property
    def form(self) -> Pairs:
        if self.content_type != "application/x-www-form-urlencoded":
            return ()
        return _fields(self.body.decode("utf-8", "replace"))

    @cached_property
    def cookies(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for part in self.header("cookie").replace(",", ";").split(";")[:MAX_FIELDS]:
            name, _, value = part.strip().partition("=")
            found.setdefault(name, value.strip('"'))
        return found

    @cached_property
    def json(self) -> Any:  # noqa: ANN401 - any JSON value
        try:
            return parse_json(self.body)
        except ValueError:
            return None


@dataclass(frozen=True, kw_only=True)
class HttpAnswer:
    """An answer; `stream` replaces `body`, until `until` (loop time)."""

    status: int = 200
    headers: Pairs = ()
    body: bytes = b""
    stream: Callable[[], AsyncGenerator[bytes]] | None = None
    length: int = -1
    until: float | None = None


App: TypeAlias = Callable[[Request], Awaitable[HttpAnswer]]


def _fields(text: str) -> Pairs:
    try:
        found = parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=MAX_FIELDS)
        return tuple(found)
    except ValueError:
        return ()


def parse_json(
    data: bytes | str, max_depth: int = MAX_JSON_DEPTH, *, max_commas: int | None = None
) -> Any:  # noqa: ANN401 - any
    """Return a JSON value of bounded depth. Raises `ValueError`."""
    try:
        # Python would guess at UTF-16 and UTF-32, which another reader of the same bytes does not.
        text = data.decode() if isinstance(data, bytes) else data
        if max_commas is not None and sum(map(text.count, "[{,")) > max_commas:
            raise ValueError(f"more than {max_commas} commas and brackets")
        value = json.loads(text, parse_constant=int)  # `int` refuses NaN and Infinity
    except RecursionError:
        raise ValueError(f"nested deeper than {max_depth} levels") from None
    # Below the parser's own limit a value may still be too deep for whatever walks it next.
    level = [value]
    for _ in range(max_depth + 1):
        outer = [each for each in level if isinstance(each, (dict, list))]
        if not outer:
            return value
        level = [x for each in outer for x in (each.values() if isinstance(each, dict) else each)]
    raise ValueError(f"nested deeper than {max_depth} levels")


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_answer(
    value: object, status: int = 200, headers: Pairs = (), *, media: str = "application/json"
) -> HttpAnswer:
    return text_answer(compact(value), status, headers, media=media)


def text_answer(
    text: str, status: int = 200, headers: Pairs = (), *, media: str = "text/plain; charset=utf-8"
) -> HttpAnswer:
    headers = (("content-type", media), *headers)
    return HttpAnswer(status=status, headers=headers, body=text.encode("utf-8", "replace"))


def plain_error(status: int, headers: Pairs = ()) -> HttpAnswer:
    title = f"{status} {HTTPStatus(status).phrase}"
    page = (
        f"<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{title}</h1>"
        "</center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
    )
    return text_answer(page, status, headers, media="text/html")


def header_text(text: str) -> str:
    """Return Latin-1 without controls (RFC 9110, 5.5)."""
    return _UNSAFE.sub("", text[:4096]).strip()


class HttpService:
    max_body_bytes, writes_wait = 1 << 20, False

    def __init__(self, context: StandInContext) -> None:
        self.context, self._turn = context, Lock()

    async def __call__(self, request: Request) -> HttpAnswer:
        if len(request.body) > self.max_body_bytes:
            return plain_error(413)
        async with self._turn if self.writes_wait and writes(request) else nullcontext():
            return await self.handle(request)

    async def handle(self, request: Request) -> HttpAnswer:
        """Answer a request; its changes are recorded first."""
        raise NotImplementedError


def writes(request: Request) -> bool:
    return request.method not in {"GET", "HEAD"}


def credentials(authorization: str) -> dict[str, JsonValue]:
    """Return a record of credentials, never the secret itself."""
    scheme, _, rest = authorization.partition(" ")
    if not scheme:
        return {"credentials": "none"}
    user, secret = "", rest.strip().encode("latin-1", "replace")
    if scheme.lower() == "basic":
        with suppress(binascii.Error, ValueError):
            name, _, secret = base64.b64decode(rest.strip(), validate=True).partition(b":")
            user = name.decode("utf-8", "replace")
    digest = hashlib.sha256(secret).hexdigest()
    return {"credentials": word(scheme.lower(), 20), "user": word(user), "secret_sha256": digest}


def word(text: str | bytes, max_chars: int = 200) -> str:
    """Return a guest's text, bounded and visible."""
    return printable(text, max_chars=max_chars)


def kept_body(name: str, content: bytes) -> Body:
    return body_of(name, content, MAX_KEPT_BODY_BYTES)


def bounded(values: Iterable[_T], max_json_bytes: int) -> list[_T]:
    kept, size = list[_T](), 0
    for value in values:
        size += len(json.dumps(value)) + 2
        if size > max_json_bytes:
            break
        kept.append(value)
    return kept
