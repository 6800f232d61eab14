"""TLS on a connection: the ClientHello's name is judged, put on record, and answered with a
certificate or an alert.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from functools import partial

from belljar.events import JsonValue, Kind
from belljar.network.decide import HTTP, Verdict
from belljar.network.gateway.ca import Authority, server_context
from belljar.network.gateway.context import kept_body
from belljar.network.gateway.pipe import TcpPipe
from belljar.network.gateway.reporter import Item
from belljar.network.gateway.shown import shown
from belljar.network.gateway.site import RANGE_ENDED, Peer, Site
from belljar.network.gateway.tls_pipe import ServerTlsPipe

MAX_SHOWN_SNI_CHARS = 300


class Terminator:
    """Ends the TLS of all of a gateway's connections, with leaves of one authority."""

    def __init__(self, site: Site, authority: Authority) -> None:
        self._site, self._authority = site, authority
        self._contexts = {http: self._first_context(http=http) for http in (True, False)}

    async def shake_hands(self, pipe: TcpPipe, peer: Peer) -> tuple[ServerTlsPipe, Peer] | None:
        """The connection within TLS and what is known of it now; None when there is none, which is
        on record. The caller closes `pipe` then.
        """
        bounds = self._site.bounds
        http = self._site.judge(peer).protocol in HTTP
        secure = ServerTlsPipe(pipe, self._contexts[http])
        hello = _Hello(self._site, peer, secure)
        secure.engine.owner = hello  # type: ignore[attr-defined]
        try:
            async with asyncio.timeout(bounds.handshake_timeout_s):
                await secure.handshake(hello.before_words, bounds.handshake_bytes)
        except asyncio.CancelledError:
            hello.cut(RANGE_ENDED)
            raise
        except TimeoutError:
            await hello.failed("the handshake took too long")
        except ssl.SSLError as error:
            await hello.failed(getattr(error, "reason", None) or str(error.args[-1]))
        except OSError:
            await hello.failed("cut within the handshake")
        else:
            if await self._is_own(secure, hello, http=http):
                secure.shaken()
                return secure, hello.peer
        return None

    async def _is_own(self, secure: ServerTlsPipe, hello: _Hello, *, http: bool) -> bool:
        """Whether the name that was judged is this ClientHello's own.

        In a resumed session of TLS 1.2 OpenSSL tells the first one's, whatever stands in this one.

        Python can't switch OpenSSL's memory of sessions off: a context that has one is used for no
        further connection, and a connection that had begun before is refused.
        """
        if secure.engine.session_reused:
            await hello.failed("a resumed session")
            return False
        if secure.engine.version() != "TLSv1.3":
            self._contexts[http] = self._first_context(http=http)
        return True

    def _first_context(self, *, http: bool) -> ssl.SSLContext:
        """The context of a connection whose name is not known yet: it has no certificate, so
        without a judged name there is no handshake.
        """
        context = server_context(http=http)
        context.sni_callback = lambda engine, name, _: self._named(engine, name, http=http)
        return context

    def _named(
        self, engine: ssl.SSLObject | ssl.SSLSocket, name: str | None, *, http: bool
    ) -> int | None:
        hello: _Hello = engine.owner  # type: ignore[union-attr]
        verdict = hello.said(name)
        if not verdict.allowed:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        engine.context = self._authority.context(verdict.name, http=http)
        return None


class _Hello:
    """One connection's ClientHello."""

    def __init__(self, site: Site, peer: Peer, secure: ServerTlsPipe) -> None:
        self._site, self._secure = site, secure
        self.peer = peer
        self._verdict: Verdict | None = None
        self._recorded = False

    def said(self, name: str | None) -> Verdict:
        """Judges the name."""
        self.peer = replace(self.peer, sni=name, hello=True)
        self._verdict = self._site.judge(self.peer)
        return self._verdict

    async def before_words(self) -> None:
        """A refusal is on record before its alert leaves, a name that is taken before the
        certificate does.
        """
        if self._verdict is not None and not self._recorded:
            await self._record(self._verdict.reason)

    async def failed(self, problem: str) -> None:
        """What came of it, when it was not the refusal that is on record already."""
        if self._verdict is None or self._verdict.allowed:
            await self._record(problem)

    def cut(self, reason: str) -> None:
        """Puts on record that the range has ended it."""
        if self._verdict is None or self._verdict.allowed:
            self._site.tell(partial(self._item, reason))

    async def _record(self, reason: str) -> None:
        self._recorded = True
        await self._site.reporter.record(self._item(reason))

    def _item(self, reason: str) -> Item:
        peer = self.peer
        data: dict[str, JsonValue] = {
            "cell": peer.cell,
            "sni": None if peer.sni is None else shown(peer.sni, MAX_SHOWN_SNI_CHARS),
            "address": peer.address,
            "port": peer.port,
            "verdict": "refused" if reason else "allowed",
            "reason": shown(reason, 200),
            "stand_in": "" if self._verdict is None else self._verdict.stand_in,
            "connection": peer.account.number,
        }
        heard = self._secure.take_heard()
        return Item(Kind.NETWORK_TLS, data, (kept_body("hello", heard),) if heard else ())
