"""Each byte that a cell sends within TLS can be decrypted offline."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.gateway import Gateway, read_all, running
from tests.fakes.pcapng import IN, INTERFACE, SECTION, block

from belljar.events import Kind
from belljar.network.gateway.config import Bounds

pytestmark = pytest.mark.root
HIDDEN = b"s3cr3t-" + bytes(range(65, 91))
POST = b"POST /x HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 33\r\n\r\n"
_HOST = 0  # PACKET_HOST: loopback shows each frame as sent and as received


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """One that keeps next to nothing of bodies."""
    if shutil.which("tshark") is None:
        pytest.skip("tshark isn't installed: apt-get install tshark")
    with running(tmp_path, bounds=Bounds(kept_body_bytes=1)) as found:
        yield found


@contextlib.contextmanager
def captured(file: Path) -> Iterator[None]:
    """Write the frames of loopback to a packet record meanwhile."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
        tap.bind(("lo", 0))
        tap.settimeout(0.2)
        over = threading.Event()
        found: list[bytes] = []

        def read() -> None:
            while True:
                try:
                    frame, address = tap.recvfrom(1 << 17)
                except TimeoutError:
                    if over.is_set():
                        return
                    continue
                if address[2] == _HOST:
                    found.append(block(len(found) * 1000, frame, IN))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield
        finally:
            over.set()
            reader.join()
    section = struct.pack("=IHHq", 0x1A2B3C4D, 1, 0, -1)
    interface = struct.pack("=HHI", 1, 0, 65536) + struct.pack("=HHB3xHH", 9, 1, 9, 0, 0)
    heads = [
        struct.pack("=II", kind, len(body) + 12) + body + struct.pack("=I", len(body) + 12)
        for kind, body in ((SECTION, section), (INTERFACE, interface))
    ]
    file.write_bytes(b"".join([*heads, *found]))


def decrypted(packets: Path, secrets: bytes, port: int) -> bytes:
    """What Wireshark decrypts of the only connection to this port, sent by either side."""
    keys = packets.with_name("keys.log")
    keys.write_bytes(secrets)
    argv = ["tshark", "-n", "-r", str(packets), "-d", f"tcp.port=={port},tls", "-q"]
    argv += ["-o", f"tls.keylog_file:{keys}", "-Y", f"tcp.port=={port}"]
    stream = subprocess.run(
        [*argv[:-2], "-Y", f"tcp.port=={port}", "-T", "fields", "-e", "tcp.stream"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout.split()
    number = stream[0] if stream else "0"
    shown = subprocess.run(
        [*argv[:-2], "-z", f"follow,tls,raw,{number}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    lines = [line.strip() for line in shown.splitlines()]
    return b"".join(
        bytes.fromhex(line) for line in lines if line and not set(line) - set("0123456789abcdef")
    )


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_wireshark_decrypts_all_that_was_sent(
    gateway: Gateway, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """Request and body, and what followed that no stand-in got and no body of an event has."""
    context = ssl.create_default_context(cafile=str(gateway.authority))
    context.minimum_version = context.maximum_version = version
    with captured(tmp_path / "packets.pcapng"):
        with context.wrap_socket(gateway.connect("tls"), server_hostname="shop.example") as sock:
            sock.sendall(POST + HIDDEN + b"junk: " + HIDDEN[::-1] + b"\0\r\n\r\n")
            read_all(sock)
        gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED)
    events = gateway.owner.events
    kinds = [event.kind for event in events]
    told = [event for event in events if any(body.name == "secrets" for body in event.bodies)]
    assert [event.kind for event in told] == [Kind.NETWORK_CONNECTION]
    assert events.index(told[0]) < kinds.index(Kind.NETWORK_HTTP)
    kept = [(body.name, body.content) for event in events for body in event.bodies]
    assert not any(HIDDEN in content for _, content in kept)
    secrets = b"".join(content for name, content in kept if name == "secrets")
    sent = decrypted(tmp_path / "packets.pcapng", secrets, gateway.ports["tls"])
    assert POST + HIDDEN + b"junk: " + HIDDEN[::-1] in sent
    assert b"HTTP/1.1 200 OK" in sent


@pytest.mark.promise("5.4")
def test_without_secrets_a_connection_is_not_served(gateway: Gateway, tmp_path: Path) -> None:
    """Where their file can't be written, no connection is decrypted for a stand-in either."""
    scratch = tmp_path / "secrets"
    context = ssl.create_default_context(cafile=str(gateway.authority))
    with context.wrap_socket(gateway.connect("tls"), server_hostname="shop.example") as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")
        assert b" 200 " in read_all(sock)
    gateway.owner.events.clear()
    scratch.unlink()  # what OpenSSL writes from now on is nowhere
    with (
        contextlib.suppress(OSError),
        context.wrap_socket(gateway.connect("tls"), server_hostname="shop.example") as sock,
    ):
        sock.sendall(b"GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")
        assert read_all(sock) == b""
    gateway.owner.first(Kind.NETWORK_TLS, reason="its secrets were not logged")
    assert gateway.owner.of(Kind.NETWORK_HTTP) == []
