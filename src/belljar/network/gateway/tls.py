"""A range's certificate authority, and the end of its TLS."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from belljar.capture import body_of
from belljar.events import JsonValue, Kind
from belljar.network.decide import FlowVerdict
from belljar.network.gateway.site import RANGE_ENDED, Peer, Site, connection_item
from belljar.network.gateway.stream import TcpPipe, TlsPipe
from belljar.network.ipc import Item
from belljar.network.stand_ins.web import MAX_KEPT_BODY_BYTES, word

AUTHORITY_NAME: Final = "Internal Root CA"  # Says neither whose it is nor what for.
# From a month before the range to a year after: below the 398 days beyond which clients refuse.
LEAF_AGE: Final = dt.timedelta(days=30)
LEAF_LIFE: Final = dt.timedelta(days=390)
# HTTP/2 is not offered, and real clients fall back to this. One that asks for another protocol
# (mail's) gets none.
ALPN: Final = "http/1.1"
# Forward secrecy, no padding; the level refuses keys below 112 bits.
_TLS_1_2_SUITES: Final = "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20"
_NO_USES: Final = (
    *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("encipher_only", "decipher_only"),
)
# What Wireshark needs to decrypt a connection, by NSS's names for it.
_NEEDED_SECRETS: Final = {
    "TLSv1.2": {b"CLIENT_RANDOM"},
    "TLSv1.3": {b"CLIENT_HANDSHAKE_TRAFFIC_SECRET", b"SERVER_HANDSHAKE_TRAFFIC_SECRET"}
    | {b"CLIENT_TRAFFIC_SECRET_0", b"SERVER_TRAFFIC_SECRET_0"},
}


class Authority:
    """Issues leaves by name; `certificate` is its own, PEM."""

    def __init__(self, scratch: Path, now: dt.datetime, max_leaves: int) -> None:
        self._scratch, self._key_log = scratch, scratch / "secrets"
        self._now, self._max_leaves = now, max_leaves
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._builder(AUTHORITY_NAME, self._key).sign(self._key, hashes.SHA256())
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)
        self._leaves: OrderedDict[str, ssl.SSLContext] = OrderedDict()

    def context(self, name: str) -> ssl.SSLContext:
        found = self._leaves.pop(name, None)
        if found is None:
            found, file = server_context(), self._scratch / "leaf.pem"
            issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
            names = x509.SubjectAlternativeName([x509.DNSName(name)])
            made = self._builder(name, self._leaf_key)
            for each in (names, uses, issuer):
                made = made.add_extension(each, critical=False)
            leaf = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
            key = self._leaf_key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            try:
                file.write_bytes(key + leaf + self.certificate)
                found.load_cert_chain(file)
            finally:
                file.unlink(missing_ok=True)
            found.keylog_filename = str(self._key_log)
        self._leaves[name] = found
        if len(self._leaves) > self._max_leaves:
            # Each log of secrets is a descriptor, and a connection keeps its context
            _, oldest = self._leaves.popitem(last=False)
            oldest.keylog_filename = None  # type: ignore[assignment]
        return found

    def take_secrets(self) -> bytes:
        lines = self._key_log.read_bytes() if self._key_log.exists() else b""
        if lines:
            self._key_log.write_bytes(b"")
        return b"".join(line + b"\n" for line in lines.splitlines() if not line.startswith(b"#"))

    def _builder(self, subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        is_ca, public, age = key is self._key, key.public_key(), LEAF_AGE
        uses = dict.fromkeys(_NO_USES, False) | {"digital_signature": not is_ca}
        uses |= {"key_cert_sign": is_ca, "crl_sign": is_ca}
        constraints = x509.BasicConstraints(is_ca, 0 if is_ca else None)
        return (
            x509.CertificateBuilder()
            .subject_name(_named(subject))
            .issuer_name(_named(AUTHORITY_NAME))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - age * (1 + is_ca))
            .not_valid_after(self._now - age + LEAF_LIFE * (1 + is_ca))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(constraints, critical=True)
            .add_extension(x509.KeyUsage(**uses), critical=True)
        )


def warm_up() -> None:
    """Set up OpenSSL and `cryptography` before forking."""
    # No two forks draw the same keys: OpenSSL reseeds by process id (RAND(7))
    Authority(Path("/nonexistent"), dt.datetime.now(dt.UTC), 0)
    server_context()


def server_context(on_name: Callable[..., int | None] | None = None) -> ssl.SSLContext:
    """Return a context without renegotiation and resumption."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_TLS_1_2_SUITES)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0  # TLS 1.3's; the option ends 1.2's
    context.set_alpn_protocols([ALPN])
    context.sni_callback = on_name
    return context


def _named(name: str) -> x509.Name:
    # X.520 has 64 characters for a common name; the SAN has the whole name.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


class Terminator:
    def __init__(self, site: Site, authority: Authority) -> None:
        self._site, self._authority = site, authority
        self._context = server_context(self._named)

    async def handshake(self, pipe: TcpPipe, peer: Peer) -> tuple[TlsPipe, Peer] | None:
        """Return connection and peer, or None."""
        bounds = self._site.bounds
        secure = TlsPipe(pipe, self._context)
        hello = _ClientHello(self._site, peer, secure, self._authority)
        secure.engine.owner = hello  # type: ignore[attr-defined]
        problem, has_alert = "", False
        try:
            try:
                async with asyncio.timeout(bounds.handshake_timeout_s):
                    await secure.handshake(hello.before_send, bounds.handshake_bytes)
                version = secure.engine.version() or ""
                # A resumed TLS 1.2 session shows the first ClientHello's name, and Python can't
                # disable the cache: such a context serves no further connection.
                if version != "TLSv1.3":
                    self._context = server_context(self._named)
                if secure.engine.session_reused:
                    problem = "a resumed session"
                elif not peer.labels >= _NEEDED_SECRETS[version]:
                    problem = "its secrets were not logged"
            except asyncio.CancelledError:
                if not hello.is_refused:
                    self._site.post(partial(hello.item, RANGE_ENDED))
                raise
            except TimeoutError:
                problem = "the handshake took too long"
            except ssl.SSLError as error:
                problem, has_alert = getattr(error, "reason", None) or str(error.args[-1]), True
            except OSError:
                problem = "cut within the handshake"
            if problem:
                # It takes the secrets of the step that failed, and records a refusal.
                await hello.before_send()
                if not hello.is_refused:
                    await self._site.record(partial(hello.item, problem))
        finally:
            # In order, so on record before anything that is answered on the connection.
            if peer.secrets:
                self._site.post(partial(connection_item, hello.peer))
        if problem:
            if has_alert:
                await secure.send_last()
            return None
        # A client without TCP_NODELAY sends nothing more before this is acknowledged (RFC 896),
        # which the kernel would put off for 40 ms.
        with contextlib.suppress(OSError):
            pipe.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        secure.take_handshake_bytes()  # the client's last: nobody reads them
        return secure, hello.peer

    def _named(
        self, engine: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext
    ) -> int | None:
        hello: _ClientHello = engine.owner  # type: ignore[union-attr]
        verdict = hello.judge(name)
        if not verdict.allowed:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        engine.context = self._authority.context(verdict.name)
        return None


class _ClientHello:
    def __init__(self, site: Site, peer: Peer, secure: TlsPipe, authority: Authority) -> None:
        self._site, self._secure, self._authority = site, secure, authority
        self.peer = peer
        self._verdict: FlowVerdict | None = None
        self._recorded = False

    def judge(self, name: str | None) -> FlowVerdict:
        # After a HelloRetryRequest a second one may have another name (RFC 8446, section 4.1.2
        # forbids it; OpenSSL lets it pass).
        self._recorded &= name == self.peer.sni
        self.peer = replace(self.peer, sni=name, hello=True)
        self._verdict = self._site.judge(self.peer)
        return self._verdict

    async def before_send(self) -> None:
        """Record the verdict before anything leaves."""
        secrets = self._authority.take_secrets()
        self.peer.secrets.extend(secrets)
        self.peer.labels.update(line.partition(b" ")[0] for line in secrets.splitlines())
        if self._verdict is not None and not self._recorded:
            self._recorded = True
            await self._site.record(partial(self.item, self._verdict.reason))

    @property
    def is_refused(self) -> bool:
        return self._verdict is not None and not self._verdict.allowed

    def item(self, reason: str) -> Item:
        peer = self.peer
        data: dict[str, JsonValue] = {
            **peer.place_fields(),
            "sni": None if peer.sni is None else word(peer.sni, 300),
            "verdict": "refused" if reason else "allowed",
            "reason": word(reason),
            "stand_in": "" if self._verdict is None else self._verdict.stand_in,
        }
        hello = self._secure.take_handshake_bytes()
        bodies = (body_of("hello", hello, MAX_KEPT_BODY_BYTES),) if hello else ()
        return Item(Kind.NETWORK_TLS, data, bodies)
