"""Every plaintext byte that reaches a gateway's process is on record, wherever in TLS, HTTP or
WebSocket it was hidden."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator

import pytest
import wsproto
from tests.fakes.gateway import MAIL, SHOP, Gateway, read_all, running
from tests.fakes.gateway_clients import H2Client, raw_frame
from tests.fakes.http_connection import SUMMED, recorded_bytes
from wsproto.events import BytesMessage, CloseConnection, Ping, Request, TextMessage

from belljar.events import Kind
from belljar.network.ipc import GatewayEvent

SECRET = b"s3cr3t-" + bytes(range(65, 91)) + b"-end"
HOST = b"Host: shop.example\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n"
CHUNKED = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all of these, with the bounds of every range."""
    with running(tmp_path_factory.mktemp("gateway")) as found:
        yield found


@pytest.fixture(autouse=True)
def _fresh(gateway: Gateway) -> None:
    gateway.owner.events.clear()


def secure(gateway: Gateway, *, alpn: str = "http/1.1", version: str = "1.3") -> ssl.SSLSocket:
    """TLS to the shop."""
    context = ssl.create_default_context(cafile=str(gateway.authority))
    context.set_alpn_protocols([alpn])
    context.maximum_version = ssl.TLSVersion.TLSv1_2 if version == "1.2" else ssl.TLSVersion.TLSv1_3
    return context.wrap_socket(gateway.connect("tls"), server_hostname="shop.example")


def end(gateway: Gateway) -> GatewayEvent:
    """The last event of the only connection, whose sums are those of its events."""
    event = gateway.owner.first(Kind.NETWORK_CONNECTION, phase="closed")
    data = event.data
    own = [e for e in gateway.owner.events if e.data.get("connection") == data["connection"]]
    assert (data["missing_bytes"], data["unread_bytes"], data["accounted"]) == (0, 0, True)
    assert data["received_bytes"] == sum(int(str(data[name])) for name in SUMMED)
    assert data["recorded_bytes"] == recorded_bytes([(e.kind, dict(e.data), e.bodies) for e in own])
    return event


def kept(gateway: Gateway) -> bytes:
    """All bodies, and all texts."""
    events = gateway.owner.events
    return b"\0".join(
        [b.content for e in events for b in e.bodies]
        + [repr(dict(e.data)).encode() for e in events]
    )


def over_tls(gateway: Gateway, *pieces: bytes, version: str = "1.3") -> GatewayEvent:
    """One HTTP/1.1 connection within TLS, until the gateway ends it."""
    with secure(gateway, version=version) as sock, contextlib.suppress(OSError):
        for piece in pieces:
            sock.sendall(piece)
        read_all(sock)
    return end(gateway)


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize(
    "attack",
    [
        (CHUNKED + b"1;x=" + SECRET + b"\r\nA\r\n0\r\n\r\n",),
        (CHUNKED + b"1\r\nA\r\n0\r\nX-T: " + SECRET + b"\r\n\r\n",),
        (GET + b"X-Long: " + b"a" * 20_000 + SECRET + b"\r\n\r\n",),
        (GET + b"\r\n", SECRET),
        (b"GET / HTTP/1.1\r\nbad field\r\n\r\n", SECRET),
        (GET + b"Upgrade: h2c\r\nHTTP2-Settings: " + SECRET + b"\r\n\r\n",),
    ],
    ids=[
        "extension",
        "trailer",
        "end of a field",
        "behind the end",
        "behind a 400",
        "refused upgrade",
    ],
)
def test_what_http_1_hides_within_tls(
    gateway: Gateway, attack: tuple[bytes, ...], version: str
) -> None:
    """In a body of this connection, decrypted; each byte on the wire is accounted for."""
    over_tls(gateway, *attack, version=version)
    assert SECRET in kept(gateway)


H2_ATTACKS = {
    "unknown frame": raw_frame(0xBB, SECRET),
    "pings": b"".join(
        raw_frame(6, SECRET[at : at + 8].ljust(8)) for at in range(0, len(SECRET), 8)
    ),
    "GOAWAY": raw_frame(7, bytes(8) + SECRET),
    "padding": raw_frame(0, bytes([len(SECRET)]) + b"A" + SECRET, 8, 1),
    "unknown settings": raw_frame(4, b"\xf0\x01" + SECRET[:4] + b"\xf0\x02" + SECRET[4:8]),
    "priority": raw_frame(2, SECRET[:5], 0, 1),
}


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("attack", H2_ATTACKS.values(), ids=H2_ATTACKS)
def test_what_http_2_hides(gateway: Gateway, attack: bytes) -> None:
    """Frames that carry no request, and what is around those that do."""
    client = H2Client(gateway)
    client.engine.send_headers(
        1,
        [(":method", "POST"), (":scheme", "https"), (":authority", "shop.example"), (":path", "/")],
    )
    client.send()
    client.send(attack + raw_frame(0, b"", 1, 1) + raw_frame(7, bytes(8)))
    client.events()
    end(gateway)
    found = kept(gateway)
    assert SECRET in found or all(part in found for part in (SECRET[:4], SECRET[4:5]))


@pytest.mark.promise("5.4")
def test_trailers_of_http_2_are_decoded(gateway: Gateway) -> None:
    """As text: what is on the wire is Huffman's."""
    client = H2Client(gateway)
    head = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "shop.example"),
        (":path", "/"),
    ]
    client.engine.send_headers(1, head)
    client.engine.send_headers(1, [("x-t", SECRET.decode())], end_stream=True)
    client.send(raw_frame(7, bytes(8)))
    client.events()
    assert [body.content for body in end(gateway).bodies if body.name == "fields"] == [
        b"x-t: " + SECRET + b"\r\n"
    ]


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    "event",
    [
        Ping(SECRET),
        CloseConnection(1000, SECRET.decode()),
        BytesMessage(SECRET, message_finished=False),
    ],
    ids=["ping", "close", "half a message"],
)
def test_what_a_websocket_hides_within_tls(gateway: Gateway, event: wsproto.events.Event) -> None:
    """Control frames and messages that do not end, without their masks."""
    engine = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
    with secure(gateway) as sock:
        sock.sendall(engine.send(Request(host="shop.example", target="/ws")))
        engine.receive_data(sock.recv(65536))
        list(engine.events())
        sock.sendall(engine.send(TextMessage("hello")) + engine.send(event))
        sock.shutdown(socket.SHUT_WR)
        read_all(sock)
    end(gateway)
    assert SECRET in kept(gateway)


@pytest.mark.promise("5.4")
def test_what_the_client_hello_hides(gateway: Gateway) -> None:
    """Names of protocols that nobody knows: the first flight is on record before it is answered,
    whole."""
    context = ssl.create_default_context(cafile=str(gateway.authority))
    context.set_alpn_protocols([SECRET.decode(), "http/1.1"])
    with context.wrap_socket(gateway.connect("tls"), server_hostname="shop.example") as sock:
        sock.sendall(GET + b"\r\n")
        read_all(sock)
    end(gateway)
    (hello,) = gateway.owner.first(Kind.NETWORK_TLS).bodies
    assert (hello.name, hello.total_bytes) == ("hello", len(hello.content))
    assert SECRET in hello.content


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    ("behind", "kind"),
    [
        pytest.param(b"\x17\x03\x03\x00\x40" + SECRET.ljust(64), "tls", id="record"),
        pytest.param(b"\x17\x03\x03\x40\x00" + SECRET, "after_end", id="cut record"),
    ],
)
def test_what_tls_does_not_decrypt(gateway: Gateway, behind: bytes, kind: str) -> None:
    """Bytes behind a whole handshake that are no record of this connection are kept as they
    came. A record that the connection's end cut short, which is also what a refused upload
    leaves, counts as what came after the end."""
    sock = secure(gateway)
    with socket.socket(fileno=sock.detach()) as raw:
        raw.settimeout(20)
        raw.sendall(behind)
        raw.shutdown(socket.SHUT_WR)
        read_all(raw)
    event = end(gateway)
    assert SECRET in kept(gateway)
    assert event.data["eof"] is True
    assert event.data["remainder"] == {kind: len(behind)}


@pytest.mark.parametrize("pieces", [1, 2])
def test_what_stands_behind_the_client_hello(gateway: Gateway, pieces: int) -> None:
    """Early data that was not agreed to, and a handshake that is not gone on with: with the hello
    or after its answer."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=str(gateway.authority))
    engine = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="shop.example")
    with pytest.raises(ssl.SSLWantReadError):
        engine.do_handshake()
    early = b"\x17\x03\x03" + len(SECRET).to_bytes(2, "big") + SECRET
    with gateway.connect("tls") as sock:
        sock.sendall(out.read() + (early if pieces == 1 else b""))
        if pieces == 2:
            sock.recv(65536)
            sock.sendall(early)
        sock.shutdown(socket.SHUT_WR)
        read_all(sock)
    end(gateway)
    assert SECRET in kept(gateway)


@pytest.mark.promise("5.4")
def test_a_handshake_that_is_none(gateway: Gateway) -> None:
    """Plain HTTP on a TLS port: refused, and all of it on record."""
    gateway.exchange(GET + b"X: " + SECRET + b"\r\n\r\n", "tls")
    end(gateway)
    assert SECRET in kept(gateway)


@pytest.mark.promise("5.4")
def test_streams_and_the_sink_are_accounted_for(gateway: Gateway) -> None:
    """What a stand-in of a stream kind got, what came after its end, and what nobody answers."""
    with gateway.connect("smtp", MAIL) as sock:
        sock.sendall(b"EHLO x\r\nQUIT\r\n")
        read_all(sock)
        with contextlib.suppress(OSError):
            sock.sendall(SECRET)
        sock.shutdown(socket.SHUT_WR)
    assert end(gateway).data["recorded_bytes"] == 14
    gateway.owner.events.clear()
    with gateway.connect("sink") as sock:
        sock.sendall(SECRET)
        sock.shutdown(socket.SHUT_WR)
        read_all(sock)
    assert end(gateway).data["recorded_bytes"] == len(SECRET)


def test_urgent_bytes_are_part_of_the_stream(gateway: Gateway) -> None:
    """TCP's urgent pointer hides no byte: each is read in its place."""
    with gateway.connect("http") as sock:
        sock.sendall(GET + b"X: ")
        for byte in SECRET:
            sock.send(bytes([byte]), socket.MSG_OOB)
        sock.sendall(b"\r\n\r\n")
        read_all(sock)
    assert end(gateway).data["received_bytes"] == len(GET) + 3 + len(SECRET) + 4
    assert SECRET in kept(gateway)


@pytest.mark.promise("5.4")
def test_a_refused_connection_and_one_that_says_nothing(gateway: Gateway) -> None:
    """A port that the name does not have, and a connection without a byte: both have their
    event."""
    with contextlib.suppress(OSError), gateway.connect("http", MAIL) as sock:
        sock.sendall(SECRET)
        read_all(sock)
    refused = gateway.owner.first(Kind.NETWORK_CONNECTION, phase="closed")
    assert refused.data["reason"]
    gateway.owner.events.clear()
    gateway.connect("http", SHOP).close()
    assert end(gateway).data["received_bytes"] == 0


@pytest.mark.promise("5.4")
def test_the_five_tuple_and_the_offset_are_those_of_the_socket(gateway: Gateway) -> None:
    """By which a connection is found in the packet record."""
    with gateway.connect("http") as sock:
        port = sock.getsockname()[1]
        sock.sendall(GET + b"\r\n")
        read_all(sock)
    data = end(gateway).data
    assert (data["cell"], data["address"], data["source_port"]) == ("agent", SHOP, port)
    assert (data["port"], data["received_bytes"]) == (gateway.ports["http"], len(GET) + 2)


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("kind", ["extension", "unknown frame", "empty TLS records"])
def test_too_much_ends_the_connection_on_record(gateway: Gateway, kind: str) -> None:
    """Over the bound: closed, the reason and what came until then in the event."""
    if kind == "extension":
        event = over_tls(gateway, CHUNKED, *[b"1;" + SECRET * 100 + b"\r\nA\r\n"] * 20)
    elif kind == "unknown frame":
        client = H2Client(gateway)
        client.send(raw_frame(0xBB, bytes(15_000)) * 3)
        client.events()
        event = end(gateway)
    else:
        with secure(gateway, version="1.3") as sock:
            raw = socket.socket(fileno=sock.detach())
            with raw, contextlib.suppress(OSError):
                raw.sendall(b"\x14\x03\x03\x00\x01\x01" * 4000)
                read_all(raw)
        event = end(gateway)
    assert str(event.data["reason"]).startswith("too many bytes") or kind == "empty TLS records"
    assert int(str(event.data["remainder_bytes"])) < 400_000


def test_an_upload_that_is_refused_is_refused_once(gateway: Gateway) -> None:
    """A client that sends on until it hears of the 413 is no cause of another refusal, and its
    bytes are on record."""
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999\r\n\r\n"
    with secure(gateway) as sock, contextlib.suppress(OSError):
        sock.sendall(head)
        for _ in range(64):
            sock.sendall(bytes(1 << 16))
        read_all(sock)
    data = gateway.owner.first(Kind.NETWORK_CONNECTION, phase="closed").data
    assert data["missing_bytes"] == 0
    assert [item["reason"] for item in gateway.owner.of(Kind.NETWORK_HTTP)] == [""]


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("options", [["--http1.1"], ["--http2"], ["--http2", "--tls-max", "1.2"]])
def test_an_ordinary_client_comes_nowhere_near_the_bound(
    gateway: Gateway, options: list[str]
) -> None:
    """curl: an upload in chunks and a download of 8 MiB, within 1 KiB."""
    assert gateway.curl(*options, "-o", "/dev/null", path="/big")[0] == 0
    data = end(gateway).data
    assert (data["reason"], int(str(data["remainder_bytes"])) < 1024) == ("", True)
