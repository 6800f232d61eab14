"""One HTTP connection: requests one after the other, each an exchange."""

from __future__ import annotations

import asyncio
import contextlib
from email.utils import formatdate
from functools import partial

import h11

from belljar.capture import body_of
from belljar.events import JsonValue, Kind
from belljar.network.gateway.context import ClientGoneError, RefusedRequestError
from belljar.network.gateway.exchange import PHRASES, Exchange
from belljar.network.gateway.http1 import RequestParser
from belljar.network.gateway.pipe import Pipe
from belljar.network.gateway.reporter import printable_text
from belljar.network.gateway.site import RANGE_ENDED, Peer, Site, postpone
from belljar.network.ipc import Item


class HttpConnection:
    """One connection, until a side or a bound ends it."""

    def __init__(self, site: Site, peer: Peer, pipe: Pipe) -> None:
        self._site, self._pipe = site, pipe
        self.peer = peer
        self.parser = RequestParser(site.bounds)
        self._requests = 0
        self._has_ended = False

    async def run(self) -> None:
        """Serve requests, and close the pipe. Raises only what cancels it."""
        try:
            async with asyncio.timeout(self._site.bounds.connection_timeout_s):
                while (found := await self._next_request()) is not None:
                    self._requests += 1
                    await Exchange(self._site, self, *found).run()
                    is_done = self.parser.is_body_over and self.parser.http.our_state is h11.DONE
                    if not is_done or self._has_ended:
                        break
                if self.parser.has_rest:
                    await self._refuse("bytes behind the last request", 0)
        except asyncio.CancelledError:
            if self.parser.held:
                self._site.post(partial(self._refusal, RANGE_ENDED, self._take_held()))
            raise
        except TimeoutError:
            if self.parser.held:
                await self._refuse("the request's head took too long", 0)
        except RefusedRequestError as refused:
            await self._refuse(refused.reason, refused.status)
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001
            # Hostile bytes in libraries: whatever they raise ends this connection only.
            await self._refuse(f"protocol error: {type(error).__name__}", 0)
        finally:
            self._site.idle.discard(asyncio.current_task())
            await self._pipe.close()

    async def _next_request(self) -> tuple[h11.Request, bytes] | None:
        """Return a request and its head; None when none has begun. A head has one deadline."""
        bounds, task, held = self._site.bounds, asyncio.current_task(), self.parser.held
        async with asyncio.timeout(
            bounds.head_timeout_s if held else bounds.idle_timeout_s
        ) as deadline:
            while (found := self.parser.next_request()) is None:
                if not held:
                    self._site.idle.add(task)
                data = await self.receive()
                self._site.idle.discard(task)
                if not data and held:
                    raise RefusedRequestError("the connection ended within a head", 400)
                if not data:
                    return None
                if not held:
                    postpone(deadline, bounds.head_timeout_s)
                held += data
        return found

    @property
    def is_last(self) -> bool:
        """Return whether no request may follow this one."""
        return self._requests >= self._site.bounds.requests_per_connection

    async def receive(self) -> bytes:
        """Return what comes next, or b"" at the end, which a cut is, too."""
        data = b""
        with contextlib.suppress(OSError):
            data = await self._pipe.receive()
        self._has_ended = not data
        return data

    async def write(self, *pieces: bytes) -> None:
        """Return when the kernel has the pieces. Raises `ClientGoneError`."""
        if self._site.is_ending:
            raise ClientGoneError(RANGE_ENDED)
        try:
            for piece in pieces:
                await self._pipe.send(piece)
        except OSError as error:
            self._has_ended = True
            raise ClientGoneError("the connection ended") from error

    def _take_held(self) -> bytes:
        held = bytes(self.parser.held)
        self.parser.held.clear()
        return held

    async def _refuse(self, reason: str, status: int) -> None:
        """Record why the connection is ended, then answer, unless the status is 0."""
        await self._site.record(partial(self._refusal, reason, self._take_held()))
        if status:
            fields = (
                f"Date: {formatdate(usegmt=True)}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            line = b"HTTP/1.1 %d %b\r\n" % (status, PHRASES.get(status, b""))
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(self._site.bounds.idle_timeout_s):
                    await self.write(line + fields.encode())

    def _refusal(self, reason: str, received: bytes) -> Item:
        peer = self.peer
        place = f"{peer.sni or peer.address}:{peer.port}"
        data: dict[str, JsonValue] = {
            **peer.connection_fields(),
            "exchange": next(self._site.numbers),
            "stand_in": self._site.judge(peer).stand_in,
            "method": "",
            "url": printable_text(f"{'https' if peer.hello else 'http'}://{place}", 300),
            "verdict": "refused",
            "reason": printable_text(reason, 200),
            "bytes": 0,
        }
        kept_bytes = self._site.bounds.kept_body_bytes
        bodies = (body_of("request", received, kept_bytes),) if received else ()
        return Item(Kind.NETWORK_HTTP, data, bodies)
