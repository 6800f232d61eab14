"""The world outside of a range, on this host's loopback: a certification authority, and web servers
that stand where a real upstream would."""

from __future__ import annotations

import datetime as dt
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LARGE_BYTES = 64 << 10


class Authority:
    def __init__(self, directory: Path, name: str = "Public CA") -> None:
        self._directory, self._key = directory, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._sign(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), True
        )
        self.pem = (
            made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
        )

    def server(self, host: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        leaf = self._sign(subject, key).add_extension(
            x509.SubjectAlternativeName([x509.DNSName(host)]), False
        )
        pem = leaf.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        form = serialization.PrivateFormat.PKCS8
        pem += key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        path = self._directory / f"{x509.random_serial_number()}.pem"
        path.write_bytes(pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=2))
            .not_valid_after(now + dt.timedelta(days=1))
        )


@dataclass
class WebServer:
    port: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        told = {
            "method": self.command,
            "path": self.path,
            "headers": self.headers.items(),
            "body": body.decode(),
        }
        self.server.told.requests.append(told)
        if self.path.startswith("/drip"):
            self._drip()
            return
        content = b"x" * LARGE_BYTES if self.path == "/large" else json.dumps(told).encode()
        self.send_response(200)
        for name, value in (
            ("Content-Length", str(len(content))),
            ("Alt-Svc", 'h3=":443"'),
            ("X-Own", "1"),
            ("X-Hop", "1"),
            ("Connection", "close, x-hop"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _drip(self) -> None:
        """A byte now and then, for a minute or until nobody listens."""
        head = b"HTTP/1.1 200 OK\r\n" + (b"\r\n" if self.path == "/drip" else b"x-long: ")
        with suppress(OSError):
            self.wfile.write(head)
            for _ in range(600):
                self.wfile.write(b"x")
                if self.server.told.ended.wait(0.1):
                    return

    do_GET = do_POST = do_HEAD = do_PUT = _answer  # noqa: N815 - the library's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the library's signature
        """Says nothing."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, told: WebServer, context: ssl.SSLContext | None) -> None:
        self.told, self._context = told, context
        super().__init__(("127.0.0.1", 0), _Answers)

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the library's signature
        """In the connection's own thread: it may wait for the handshake."""
        if self._context is not None:
            request = self._context.wrap_socket(request, server_side=True)
        with request:
            super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the library's signature
        """A connection that was cut is what tests do."""


@contextmanager
def web_server(context: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    """Tells what it was asked; `/large` has 64 KiB, `/drip…` comes byte by byte."""
    told = WebServer()
    server = _Server(told, context)
    told.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield told
    finally:
        told.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
