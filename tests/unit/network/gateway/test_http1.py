"""HTTP/1.1 and WebSocket: where each byte of a connection is on record."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, cast

import pytest
import wsproto
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.gateway import SHOP
from tests.fakes.http_connection import SUMMED, Outcome, talk
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, Request, TextMessage

from belljar.events import Kind
from belljar.network.ipc import Item

HOST = b"Host: shop.example\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST
CHUNKED = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
SECRET = b"s3cr3t-" + bytes(range(65, 91)) + b"-end"


def check(outcome: Outcome, sent: bytes) -> None:
    """The invariant: nothing is missing, and the sums are those of the events."""
    end = outcome.end
    assert end["received_bytes"] == len(sent) == sum(end[name] for name in SUMMED)
    assert (end["missing_bytes"], end["accounted"]) == (0, True)
    assert end["recorded_bytes"] == outcome.recorded_bytes
    assert end["remainder_bytes"] == sum(end.get("remainder", {}).values())


ATTACKS = {
    "chunk extension": CHUNKED + b"1;x=" + SECRET + b"\r\nA\r\n0\r\n\r\n",
    "last chunk's extension": CHUNKED + b"0;" + SECRET + b"\r\n\r\n",
    "trailer": CHUNKED + b"1\r\nA\r\n0\r\nX-T: " + SECRET + b"\r\n\r\n",
    "end of a long field": GET + b"X-Long: " + b"a" * 20_000 + SECRET + b"\r\n\r\n",
    "field beyond those shown": GET
    + b"".join(b"X-%d: v\r\n" % n for n in range(90))
    + b"X: "
    + SECRET
    + b"\r\n\r\n",
    "folded field": GET + b"X-Fold: a\r\n " + SECRET + b"\r\n\r\n",
    "field twice": GET + b"X: a\r\nX: " + SECRET + b"\r\n\r\n",
    "long target": b"GET /" + b"a" * 3000 + SECRET + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "absolute target": b"GET http://shop.example/" + SECRET + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "method": SECRET.replace(b"-", b"") + b" / HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/1.0 body": b"POST / HTTP/1.0\r\n"
    + HOST
    + b"Content-Length: %d\r\n\r\n" % len(SECRET)
    + SECRET,
    "behind the body": b"POST / HTTP/1.0\r\n" + HOST + b"Content-Length: 1\r\n\r\nA" + SECRET,
    "half a head": GET + b"X-Half: " + SECRET,
    "half a second head": GET + b"\r\nGET /" + SECRET,
    "half a body": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 999\r\n\r\n" + SECRET,
    "half a chunk": CHUNKED + b"ff\r\n" + SECRET,
    "half an extension": CHUNKED + b"ff;" + SECRET,
    "malformed head": b"GET / HTTP/1.1\r\nbad field " + SECRET + b"\r\n\r\n",
    "behind a malformed head": b"GET / HTTP/1.1\r\nbad field\r\n\r\n" + SECRET,
    "malformed chunk": CHUNKED + b"zz" + SECRET + b"\r\n",
    "behind Connection: close": GET + b"Connection: close\r\n\r\n" + SECRET,
    "refused upgrade": GET
    + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: "
    + SECRET
    + b"\r\n\r\n",
    "preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SECRET,
    "refused framing": CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\nX: ")
    + SECRET
    + b"\r\n\r\n",
    "no WebSocket": GET
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\nX: "
    + SECRET
    + b"\r\n\r\n",
    "expectation": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Expect: 100-continue\r\nContent-Length: 40\r\n\r\n"
    + SECRET,
    "unread body": b"POST /early HTTP/1.1\r\n" + HOST + b"Content-Length: 999\r\n\r\n" + SECRET,
    "TLS on a port without": b"\x16\x03\x01\x00\xff" + SECRET,
}


def test_answers_have_the_reason_phrase_of_servers() -> None:
    """The interim answer and the last one: botocore takes `100` without a word for the answer."""
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    outcome = talk([head, b"abc"])
    assert b"HTTP/1.1 100 Continue\r\n" in outcome.answer
    assert b"HTTP/1.1 200 OK\r\n" in outcome.answer


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("size", [1 << 16, 7])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_what_is_hidden_is_on_record(attack: bytes, size: int) -> None:
    """Wherever a request has room for bytes that no stand-in gets, they are in a body, and every
    byte is accounted for."""
    outcome = talk([attack[at : at + size] for at in range(0, len(attack), size)])
    check(outcome, attack)
    if size > len(attack):  # else it may stand in two bodies, a part in each
        assert SECRET in outcome.kept or SECRET.replace(b"-", b"") in outcome.kept


@pytest.mark.promise("5.4")
def test_an_ordinary_request_leaves_no_remainder() -> None:
    """Heads, bodies by length and in chunks, and pipelining: all is in requests, or follows from
    them."""
    sent = (
        GET
        + b"User-Agent: x/1\r\nAccept: */*\r\n\r\n"
        + CHUNKED
        + b"a\r\n0123456789\r\n1\r\n0\r\n0\r\n\r\n"
    )
    outcome = talk([sent])
    check(outcome, sent)
    assert outcome.end["remainder_bytes"] == 0
    assert not any(body.name == "head" for item in outcome.items for body in item.bodies)


TOKENS = st.text("aAbB!-.", min_size=1, max_size=4).map(str.encode)
TEXTS = st.text("aA1.\\x/-", max_size=6).map(str.encode)


def long(texts: st.SearchStrategy[bytes], most: int) -> st.SearchStrategy[bytes]:
    """Short ones, and some beyond what an event shows."""
    return st.builds(
        lambda text, size: text + text[:1] * size, texts, st.sampled_from([0, 0, most])
    )


@pytest.mark.promise("5.4")
@settings(max_examples=300, deadline=None)
@given(
    long(TOKENS, 70),
    st.builds(
        lambda *parts: b"".join(parts),
        st.sampled_from([b"/", b"", b"?", b"http://a/"]),
        long(TEXTS, 2100),
    ),
    long(TEXTS, 600),
    st.lists(st.tuples(TOKENS, TEXTS), max_size=3),
)
def test_the_event_determines_the_head(
    method: bytes, target: bytes, host: bytes, more: list[tuple[bytes, bytes]]
) -> None:
    """The bytes of a head can be made again from its event, or are a body of it."""
    fields = [(b"Host", host), *more]
    sent = b"%s %s HTTP/1.1\r\n" % (method, target)
    sent += b"".join(b"%s: %s\r\n" % field for field in fields) + b"\r\n"
    for event in talk([sent]).items:
        if "head_bytes" in event.data:
            assert text_head(event) == sent


def text_head(event: Item) -> bytes:
    """The head of HTTP/1.1 as someone reads it who has the event alone."""
    data = cast("Any", event.data)
    kept = [body.content for body in event.bodies if body.name == "head"]
    if kept:
        return kept[0]
    fields = [(str(name).encode(), str(value).encode()) for name, value in data["headers"]]
    host = next(value for name, value in fields if name.lower() == b"host") or f"{SHOP}:80".encode()
    target = data["url"].encode().removeprefix(b"http://" + host)
    line = b"%s %s HTTP/%s\r\n" % (data["method"].encode(), target, data["version"].encode())
    return line + b"".join(b"%s: %s\r\n" % field for field in fields) + b"\r\n"


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    ("pieces", "remains"),
    [
        ((b"b\r\n01234567890\r\n", b"c\r\n012345678901\r\n", b"0\r\n\r\n"), b""),
        ((b"B\r\n01234567890\r\n", b"C\r\n012345678901\r\n", b"0\r\n\r\n"), b""),
        ((b"a\r\n0123456789\r", b"\n", b"1\r", b"\n", b"0", b"\r", b"\n0\r\n\r\n"), b""),
        ((b"b\r\n01234567890\r\nC\r\n012345678901\r\n0\r\n\r\n",), b"\r\nC\r\n"),
        ((b"03\r\nabc\r\n0\r\n\r\n",), b"03\r\n"),
        ((b"1aB\r\n" + bytes(0x1AB) + b"\r\n0\r\n\r\n",), b"1aB\r\n"),
        ((b"3\r\nabc\r\n00\r\n\r\n",), b"\r\n00\r\n\r\n"),
        ((b"3\r\nabc\r\n0\r\n", b"\n"), b"\n"),
        ((b"5ec4e7\r\n", b"abc"), b"5ec4e7\r\n"),
        ((b"5ec4e7\r\n",), b"5ec4e7\r\n"),
    ],
)
def test_what_a_chunks_length_leaves_open_remains(
    pieces: tuple[bytes, ...], remains: bytes
) -> None:
    """The case of a size's letters, leading zeros, a bare LF, and the size of a chunk that never
    ends."""
    outcome = talk([CHUNKED, *pieces])
    check(outcome, CHUNKED + b"".join(pieces))
    assert outcome.end.get("remainder", {}).get("chunked", 0) == len(remains)
    assert remains in outcome.kept


@pytest.mark.promise("5.4")
def test_too_much_beside_requests_ends_the_connection() -> None:
    """Chunk extensions over the bound: refused on record, and what came until then is kept."""
    piece = b"1;" + b"x" * 4000 + b"\r\nA\r\n"
    outcome = talk([CHUNKED, *[piece] * 40])
    assert outcome.end["reason"].startswith("too many bytes")
    assert (outcome.end["missing_bytes"], outcome.end["accounted"]) == (0, True)
    assert outcome.end["remainder"]["chunked"] < 30_000


def websocket(*events: wsproto.events.Event) -> tuple[bytes, bytes]:
    """A handshake, and what a client says after it."""
    engine = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
    hello = engine.send(Request(host="shop.example", target="/ws"))
    plain = wsproto.connection.Connection(wsproto.ConnectionType.CLIENT)
    return hello, b"".join(plain.send(event) for event in events)


WEBSOCKET_ATTACKS = {
    "ping": websocket(Ping(SECRET)),
    "pong": websocket(Pong(SECRET)),
    "reason of a close": websocket(CloseConnection(1000, SECRET.decode())),
    "message": websocket(TextMessage(SECRET.decode())),
    "half a message": websocket(BytesMessage(SECRET, message_finished=False)),
    "behind the close": (
        websocket()[0],
        websocket(CloseConnection(1000))[1] + websocket(BytesMessage(SECRET))[1],
    ),
    "no frame": (websocket()[0], b"\xff\xff" + SECRET),
    "not masked": (websocket()[0], b"\x82" + bytes([len(SECRET)]) + SECRET),
}


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("size", [1 << 16, 3])
@pytest.mark.parametrize("attack", WEBSOCKET_ATTACKS.values(), ids=WEBSOCKET_ATTACKS)
def test_what_a_websocket_hides_is_on_record(attack: tuple[bytes, bytes], size: int) -> None:
    """Control frames, masks, half messages, and what is no frame."""
    hello, frames = attack
    outcome = talk([hello, *[frames[at : at + size] for at in range(0, len(frames), size)]])
    check(outcome, hello + frames)
    if size > len(frames):  # else what comes after the end is kept as it came, masked
        assert SECRET in outcome.kept


PIECES = st.sampled_from(
    [
        GET + b"\r\n",
        CHUNKED,
        b"3\r\nabc\r\n",
        b"3;ext\r\nabc\r\n",
        b"0\r\n\r\n",
        b"0\r\nT: x\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhello",
        b"POST /early HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\nhel",
        b"\r\n",
        b"\x00\xff",
        websocket()[0],
        websocket(Ping(b"x"), TextMessage("hello"))[1],
    ]
)


@pytest.mark.promise("5.4")
@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(PIECES, st.binary(max_size=12)), max_size=8), st.integers(1, 400))
def test_every_byte_is_accounted_for(pieces: list[bytes], size: int) -> None:
    """Whatever comes, in whatever pieces: received is recorded, framing and remainder, exactly."""
    sent = b"".join(pieces)
    check(talk([sent[at : at + size] for at in range(0, len(sent), size)]), sent)


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("no_memory_at", [{0}, {1}, {2}, range(9)], ids=repr)
@pytest.mark.parametrize("path", [b"/", b"/early"])
def test_an_exchange_without_an_event_is_counted(no_memory_at: Container[int], path: bytes) -> None:
    """Memory that does not suffice for an event of it, at whatever time, leaves a count, which
    voids the sample."""
    head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\n"
    outcome = talk([head + b"A" * 9], no_memory_at=no_memory_at)
    kinds = [item.kind for item in outcome.items]
    whole = {Kind.NETWORK_HTTP, Kind.NETWORK_HTTP_ANSWERED} <= set(kinds)
    assert whole or outcome.unreported
    assert talk([head + b"A" * 9]).unreported == 0
