"""A real upstream: an ASGI application that forwards to one host.

A request is whole, and on record, before the owner dials.
Its bytes pass through a relay of the owner's, which counts each, TLS's too.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Iterable
from functools import cache, partial
from typing import Final
from urllib.parse import unquote_to_bytes

import h11

from belljar.network.decide import split_target
from belljar.network.gateway.context import Receive, RefusedRequestError, Scope, Send
from belljar.network.gateway.pipe import Pipe, TcpPipe, TlsPipe
from belljar.network.gateway.reporter import TooManyRequestsError, printable_text
from belljar.network.gateway.site import Site
from belljar.plan.network import StandInPlan

PIECE_BYTES: Final = 16 << 10
HANDSHAKE_BYTES: Final = 256 << 10
# Of an answer. h11 takes the square of this for blanks that a control character follows: 1 s.
MAX_HEAD_BYTES: Final = 16 << 10
# RFC 9110 section 7.6.1, and what would name a way around: Alt-Svc (RFC 7838).
HOP_BY_HOP: Final = frozenset(
    (
        b"alt-svc connection expect http2-settings keep-alive proxy-authenticate "
        b"proxy-authentication-info proxy-authorization proxy-connection te trailer "
        b"transfer-encoding upgrade"
    ).split()
)
_OURS: Final = frozenset({b"host", b"content-length"})  # Written anew, by what is sent
# Left out: they give a request another method than the one that was judged.
METHOD_OVERRIDES: Final = frozenset(
    (
        b"http-method-override method-override x-http-method x-http-method-override x-method "
        b"x-method-override x-original-method x-rewrite-method"
    ).split()
)
REWRITING: Final = frozenset(
    (
        b"forwarded request-uri x-host x-host-override x-http-destinationurl x-http-host-override "
        b"x-proxy-host x-proxy-url x-real-url x-request-uri"
    ).split()
)
# With `REWRITING`: refused, as front ends take them for another host or address.
_REWRITING_FAMILIES: Final = (b"x-forwarded-", b"x-original-", b"x-override-", b"x-rewrite-")
# By which frameworks take another method than the judged one: `_method` (Rails, Laravel) and the
# fields' names, of a query or form, in any case and with `_` for `-`. Searched for in what was
# sent, not in copies: a gateway has no memory for those of a large form.
_PARAMETER: Final = re.compile(
    rb"(?i)(?<![a-z0-9])(?:[-_]method|%s)(?![a-z0-9_-])"
    % b"|".join(name.replace(b"-", b"[-_]") for name in sorted(METHOD_OVERRIDES))
)
# A part's name that is encoded, which few clients do. Without a step back: a body of blanks, or of
# such names, would keep the gateway for half a minute.
_ENCODED_PART: Final = re.compile(rb"(?i)\bname\s*+=\s*+\"?+[^\";\r\n%]{0,63}+%")
# To decode one takes time in which the gateway does nothing else.
MAX_FORM_BYTES: Final = 1 << 20
Fields = Iterable[tuple[bytes, bytes]]


@cache
def client_context(authorities: str) -> ssl.SSLContext:
    """Verifies certificate and name by authorities (PEM). Raises `ssl.SSLError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if authorities:
        context.load_verify_locations(cadata=authorities)
    return context


class _UpstreamPipe(TcpPipe):
    """The owner's relay."""

    async def receive(self, max_bytes: int = PIECE_BYTES) -> bytes:
        """See `Pipe`."""
        data = await super().receive(max_bytes)
        if not data:
            # Raises where the relay has cut both ways, which is no answer's end.
            self.sock.send(b"")
        return data

    async def close(self) -> None:
        """At once: the rest is dropped."""
        self.sock.close()


class UpstreamApp:
    """The application: a budget and open connections."""

    def __init__(self, plan: StandInPlan, site: Site, authorities: str) -> None:
        self._id, self._host = plan.id, plan.names[0]
        self._encrypted = {port.number for port in plan.ports if port.protocol == "tls"}
        self._site, self._authorities = site, authorities
        self._open = asyncio.Semaphore(site.bounds.upstream_exchanges)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `RefusedRequestError`, also amid an answer."""
        message, pieces = await receive(), list[bytes]()
        while message["more_body"]:
            pieces.append(message["body"])
            message = await receive()
        body = b"".join([*pieces, message["body"]])
        try:
            request = self._request(scope, body)
            async with (
                self._open,
                asyncio.timeout(self._site.bounds.upstream_exchange_s),
                self._connected(int(scope["server"][1])) as pipe,
            ):
                await _talk(pipe, request, body, send)
        except TimeoutError:
            raise RefusedRequestError("the upstream took too long", 504) from None
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or "it failed"
            raise _refused("TLS with the upstream", why) from None
        except OSError as error:
            raise _refused("the upstream", error.strerror or type(error).__name__) from None
        except h11.RemoteProtocolError as error:
            raise _refused("the upstream's HTTP", str(error)) from None
        except h11.LocalProtocolError as error:
            raise _refused("not to be sent to an upstream", str(error), 400) from None

    @contextlib.asynccontextmanager
    async def _connected(self, port: int) -> AsyncIterator[Pipe]:
        try:
            sock = await self._site.reporter.dial(self._host, port, self._id)
        except TooManyRequestsError:
            self._site.hit("questions")
            raise RefusedRequestError("not dialled: too many are being dialled", 503) from None
        except ValueError as error:
            raise _refused("not dialled", str(error)) from None
        pipe: Pipe = _UpstreamPipe(sock)
        try:
            if port in self._encrypted:
                context = client_context(self._authorities)
                pipe = tls = TlsPipe(pipe, context, server_name=self._host)
                await tls.handshake(partial(asyncio.sleep, 0), HANDSHAKE_BYTES)
                tls.take_handshake_bytes()
            yield pipe
        finally:
            await pipe.close()

    def _request(self, scope: Scope, body: bytes) -> h11.Request:
        query = scope["query_string"]
        _, path, query = split_target(scope["raw_path"] + (b"?" + query if query else b""))
        if problem := rewritten(scope["headers"], query, body):
            raise RefusedRequestError(problem, 400)
        port, left_out = scope["server"][1], _OURS | METHOD_OVERRIDES
        host = self._host.encode() + (b"" if port in (80, 443) else b":%d" % port)
        headers = [(b"host", host)]
        headers += (
            pair
            for pair in end_to_end(scope["headers"])
            if canonical_field(pair[0]) not in left_out
        )
        if body or any(name == b"content-length" for name, _ in scope["headers"]):
            headers.append((b"content-length", b"%d" % len(body)))
        headers.append((b"connection", b"close"))
        target = path + (b"?" + query if query else b"")
        return h11.Request(method=scope["method"], target=target, headers=headers)


def _refused(what: str, why: str, status: int = 502) -> RefusedRequestError:
    return RefusedRequestError(f"{what}: {printable_text(why, 200)}", status)


def canonical_field(name: bytes) -> bytes:
    """As servers make variables of it (RFC 3875 section 4.1.18)."""
    return re.sub(rb"[^a-z0-9]", b"-", name.lower())


def end_to_end(headers: Fields) -> list[tuple[bytes, bytes]]:
    """Fields that are not the connection's."""
    lower = [(name.lower(), value) for name, value in headers]
    named = {
        canonical_field(word.strip())
        for name, value in lower
        if name == b"connection"
        for word in value.split(b",")
    }
    return [
        (name, value) for name, value in lower if canonical_field(name) not in HOP_BY_HOP | named
    ]


def rewritten(headers: Fields, query: bytes, body: bytes) -> str:
    """Why a front end may see another request, or "".

    Known limit: a method in a JSON body, or that one application looks for, is missed.
    """
    kinds: set[bytes] = set()
    for name, value in headers:
        field = canonical_field(name)
        if field in REWRITING or (
            field.startswith(_REWRITING_FAMILIES) and field not in METHOD_OVERRIDES
        ):
            return f"{printable_text(name, 64)} may make another request of it"
        kinds |= {value.strip().lower()} if field == b"content-type" else set()
    if any(kind.startswith(b"application/x-www-form-urlencoded") for kind in kinds):
        if len(body) > MAX_FORM_BYTES:
            return f"a form has at most {MAX_FORM_BYTES >> 20} MiB"
        query += b"&" + body
    texts = [unquote_to_bytes(query)]
    if any(kind.startswith(b"multipart/") for kind in kinds):
        if _ENCODED_PART.search(body):
            return "its form has a part whose name is encoded"
        texts.append(body)
    named = any(map(_PARAMETER.search, texts))
    return "its query or form has a parameter that names a method" if named else ""


async def _talk(pipe: Pipe, request: h11.Request, body: bytes, send: Send) -> None:
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    # All of it before the first byte leaves: h11 refuses here what HTTP forbids
    events = [request, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
    pieces = [piece for event in events if (piece := http.send(event))]

    async def send_all() -> None:
        with contextlib.suppress(OSError):  # the reader sees the same end, maybe behind an answer
            for piece in pieces:
                await pipe.send(piece)

    failed: Exception | None = None
    async with asyncio.TaskGroup() as group:
        # Beside the reading: an upstream may wait for its reader before it has read all
        sending = group.create_task(send_all())
        try:
            await _pass_answer(pipe, http, send)
        except Exception as exc:  # noqa: BLE001 - as itself, not as a group of the task group's
            failed = exc
        sending.cancel()
    if failed is not None:
        raise failed


async def _pass_answer(pipe: Pipe, http: h11.Connection, send: Send) -> None:
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await pipe.receive())
        elif isinstance(event, h11.Response):
            head = {"status": event.status_code, "headers": end_to_end(event.headers)}
            await send({"type": "http.response.start", **head})
        elif isinstance(event, h11.Data):
            await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        elif isinstance(event, h11.EndOfMessage):
            await send({"type": "http.response.body", "body": b""})
            return
