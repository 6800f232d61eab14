"""An application that forwards to one real host."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from functools import cache, partial
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import h11

from belljar.dataclass import replace
from belljar.network.gateway.reporter import TooManyRequestsError
from belljar.network.gateway.site import Site
from belljar.network.gateway.stream import Pipe, TcpPipe, TlsPipe
from belljar.network.stand_ins.web import HttpAnswer, RefusedRequestError, Request, word
from belljar.plan.network import StandInPlan

PIECE_BYTES: Final = 16 << 10
HANDSHAKE_BYTES: Final = 256 << 10
MAX_HEAD_BYTES: Final = 16 << 10  # h11 takes its square for blanks and a control: 1 s.
# RFC 9110 section 7.6.1, and what would name a way around: Alt-Svc (RFC 7838).
HOP_BY_HOP: Final = frozenset(
    b"alt-svc connection expect http2-settings keep-alive proxy-authenticate "
    b"proxy-authentication-info proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
_OURS: Final = frozenset({b"host", b"content-length"})  # Written anew, by what is sent
# By these front ends take another method, host or address than the judged one: refused.
REWRITING: Final = frozenset(
    b"forwarded http-method-override method-override request-uri x-host x-host-override "
    b"x-http-destinationurl x-http-host-override x-http-method x-http-method-override "
    b"x-method x-method-override x-proxy-host x-proxy-url x-real-url x-request-uri".split()
)
_REWRITING_FAMILIES: Final = (b"x-forwarded-", b"x-original-", b"x-override-", b"x-rewrite-")
# A method in a query or form, searched for in place: a gateway has no memory for copies.
_PARAMETER: Final = re.compile(
    rb"(?i)(?<![a-z0-9])(?:(?:x[-_])?(?:http[-_])?method[-_]override|"
    rb"(?:x[-_](?:http[-_]|original[-_]|rewrite[-_])?|[-_])method)(?![a-z0-9_-])"
)
# A part's encoded name, without a step back: blanks would keep the gateway for half a minute.
_ENCODED_PART: Final = re.compile(rb"(?i)\bname\s*+=\s*+\"?+[^\";\r\n%]{0,63}+%")
MAX_FORM_BYTES: Final = 1 << 20  # To decode one takes time in which the gateway does nothing else.
Fields = Iterable[tuple[bytes, bytes]]


@cache
def client_context(authorities: str) -> ssl.SSLContext:
    """Return a verifying context. Raises `ssl.SSLError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if authorities:
        context.load_verify_locations(cadata=authorities)
    return context


class _UpstreamPipe(TcpPipe):
    async def receive(self, max_bytes: int = PIECE_BYTES) -> bytes:
        data = await super().receive(max_bytes)
        if not data:
            # Raises where the relay has cut both ways, which is no answer's end.
            self.sock.send(b"")
        return data

    async def close(self) -> None:
        """Close at once; the rest is dropped."""
        self.sock.close()


class UpstreamApp:
    def __init__(self, plan: StandInPlan, site: Site, authorities: str) -> None:
        self._id, self._host = plan.id, plan.names[0]
        self._encrypted = {port.number for port in plan.ports if port.protocol == "tls"}
        self._site, self._authorities = site, authorities
        self._open = asyncio.Semaphore(site.bounds.upstream_exchanges)

    async def __call__(self, request: Request) -> HttpAnswer:
        """Raises `RefusedRequestError`, also amid an answer."""
        parts = self._parts(request)
        head: HttpAnswer = await anext(parts)
        return replace(head, stream=lambda: parts)

    async def _parts(self, request: Request) -> AsyncGenerator[Any]:
        until = asyncio.get_running_loop().time() + self._site.bounds.upstream_exchange_s
        try:
            sent = self._request(request)
            http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
            # All of it before the first byte leaves: h11 refuses here what HTTP forbids
            events = [sent, *([h11.Data(data=request.body)] if request.body else [])]
            pieces = [piece for e in (*events, h11.EndOfMessage()) if (piece := http.send(e))]
            async with self._connected(request.port, until) as pipe:
                # Beside the reading: an upstream may wait for its reader before it has read all
                sending = asyncio.create_task(_send_all(pipe, pieces))  # noqa: TID251 - ended below
                try:
                    while not isinstance(event := http.next_event(), h11.EndOfMessage):
                        if event is h11.NEED_DATA:
                            async with asyncio.timeout_at(until):
                                http.receive_data(await pipe.receive())
                        elif isinstance(event, h11.Response):
                            pairs = end_to_end(event.headers)
                            head = tuple((name.decode(), v.decode("latin-1")) for name, v in pairs)
                            yield HttpAnswer(status=event.status_code, headers=head, until=until)
                        elif isinstance(event, h11.Data):
                            yield bytes(event.data)
                finally:
                    sending.cancel()
        except TimeoutError:
            raise RefusedRequestError("the upstream took too long", 504) from None
        except OSError as error:  # TLS's among them
            why = getattr(error, "verify_message", "") or error.strerror or type(error).__name__
            raise _refused("the upstream", why) from None
        except h11.RemoteProtocolError as error:
            raise _refused("the upstream's HTTP", str(error)) from None
        except h11.LocalProtocolError as error:
            raise _refused("not to be sent to an upstream", str(error), 400) from None

    @contextlib.asynccontextmanager
    async def _connected(self, port: int, until: float) -> AsyncIterator[Pipe]:
        async with asyncio.timeout_at(until):
            await self._open.acquire()
        try:
            try:
                async with asyncio.timeout_at(until):
                    sock = await self._site.reporter.dial(self._host, port, self._id)
            except TooManyRequestsError:
                self._site.hit("questions")
                problem = "not dialled: too many are being dialled"
                raise RefusedRequestError(problem, 503) from None
            except ValueError as error:
                raise _refused("not dialled", str(error)) from None
            pipe: Pipe = _UpstreamPipe(sock)
            try:
                if port in self._encrypted:
                    context = client_context(self._authorities)
                    pipe = tls = TlsPipe(pipe, context, server_name=self._host)
                    async with asyncio.timeout_at(until):
                        await tls.handshake(partial(asyncio.sleep, 0), HANDSHAKE_BYTES)
                    tls.take_handshake_bytes()
                yield pipe
            finally:
                await pipe.close()
        finally:
            self._open.release()

    def _request(self, request: Request) -> h11.Request:
        path, query = request.raw_path.encode("latin-1"), request.query_string.encode("latin-1")
        fields = [(name.encode(), value.encode("latin-1")) for name, value in request.headers]
        if problem := rewritten(fields, query, request.body):
            raise RefusedRequestError(problem, 400)
        port = request.port
        host = self._host.encode() + (b"" if port in (80, 443) else b":%d" % port)
        headers = [(b"host", host)]
        headers += (pair for pair in end_to_end(fields) if canonical_field(pair[0]) not in _OURS)
        if request.body or any(name == b"content-length" for name, _ in fields):
            headers.append((b"content-length", b"%d" % len(request.body)))
        headers.append((b"connection", b"close"))
        target = path + (b"?" + query if query else b"")
        return h11.Request(method=request.method, target=target, headers=headers)


async def _send_all(pipe: Pipe, pieces: Iterable[bytes]) -> None:
    with contextlib.suppress(OSError):  # the reader sees the same end, maybe behind an answer
        for piece in pieces:
            await pipe.send(piece)


def _refused(what: str, why: str, status: int = 502) -> RefusedRequestError:
    return RefusedRequestError(f"{what}: {word(why)}", status)


def canonical_field(name: bytes) -> bytes:
    """Return the name as in RFC 3875 section 4.1.18."""
    return re.sub(rb"[^a-z0-9]", b"-", name.lower())


def end_to_end(headers: Fields) -> list[tuple[bytes, bytes]]:
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
    """Return why it is refused, or ""."""
    # Known limit: a method in a JSON body, or that one application looks for, is missed
    kinds: set[bytes] = set()
    for name, value in headers:
        field = canonical_field(name)
        if field in REWRITING or field.startswith(_REWRITING_FAMILIES):
            return f"{word(name, 64)} may make another request of it"
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
