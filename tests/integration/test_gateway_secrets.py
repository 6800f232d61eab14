"""Each byte that a cell sends within TLS can be decrypted offline."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.gateway import Gateway, read_all, running
from tests.integration.processes import wait_for

from belljar.events import Kind
from belljar.network.gateway.config import Bounds

pytestmark = pytest.mark.root
HIDDEN = b"s3cr3t-" + bytes(range(65, 91))
POST = b"POST /x HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 33\r\n\r\n"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    if None in (shutil.which("tshark"), shutil.which("tcpdump")):
        pytest.skip("apt-get install tshark tcpdump")
    with running(tmp_path, bounds=Bounds(kept_body_bytes=1)) as found:
        yield found


@contextlib.contextmanager
def captured(file: Path, port: int) -> Iterator[None]:
    """Write the packets from and to a port of loopback to a file meanwhile."""
    argv = ["tcpdump", "-i", "lo", "-Z", "root", "-U", "--immediate-mode", "-w", str(file)]
    words = [*argv, "-B65536", f"tcp port {port} or udp port 9"]  # its own buffer holds 16 packets
    with subprocess.Popen(words, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"listening" in process.stderr.readline()
        try:
            yield
            with socket.socket(type=socket.SOCK_DGRAM) as last:
                last.sendto(b"the last packet", ("127.0.0.1", 9))
            wait_for(lambda: b"the last packet" in file.read_bytes(), "all packets in the file")
        finally:
            process.terminate()


def decrypted(packets: Path, secrets: bytes, port: int) -> bytes:
    """What Wireshark decrypts of the only connection in a capture, sent by either side."""
    keys = packets.with_name("keys.log")
    keys.write_bytes(secrets)
    argv = ["tshark", "-n", "-q", "-r", str(packets), "-d", f"tcp.port=={port},tls"]
    argv += ["-o", f"tls.keylog_file:{keys}", "-z", "follow,tls,raw,0"]
    shown = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout
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
    with captured(tmp_path / "packets.pcap", gateway.ports["tls"]):
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
    sent = decrypted(tmp_path / "packets.pcap", secrets, gateway.ports["tls"])
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
