"""HTTP/1.1: what the events of a connection hold."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.gateway import SHOP
from tests.fakes.http_connection import talk

from belljar.events import Kind
from belljar.network.gateway import site
from belljar.network.gateway.config import Bounds
from belljar.network.ipc import Item

HOST = b"Host: shop.example\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST
CHUNKED = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
SECRET = b"s3cr3t-" + bytes(range(65, 91)) + b"-end"

END = b"\r\n\r\n"
POST = b"POST / HTTP/1.1\r\n" + HOST
POST10 = b"POST / HTTP/1.0\r\n" + HOST
MANY = b"".join(b"X-%d: v\r\n" % n for n in range(90))
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: "
WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\nX: "
EXPECTS = b"Expect: 100-continue\r\nContent-Length: 40\r\n\r\n"
ATTACKS = {
    "malformed chunk": CHUNKED + b"zz" + SECRET + b"\r\n",
    "end of a long field": GET + b"X-Long: " + b"a" * 20_000 + SECRET + END,
    "field beyond those shown": GET + MANY + b"X: " + SECRET + END,
    "folded field": GET + b"X-Fold: a\r\n " + SECRET + END,
    "field twice": GET + b"X: a\r\nX: " + SECRET + END,
    "long target": b"GET /" + b"a" * 3000 + SECRET + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "absolute target": b"GET http://shop.example/" + SECRET + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "method": SECRET.replace(b"-", b"") + b" / HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/1.0 body": POST10 + b"Content-Length: %d\r\n\r\n" % len(SECRET) + SECRET,
    "behind the body": POST10 + b"Content-Length: 1\r\n\r\nA" + SECRET,
    "half a head": GET + b"X-Half: " + SECRET,
    "half a second head": GET + b"\r\nGET /" + SECRET,
    "half a body": POST + b"Content-Length: 999\r\n\r\n" + SECRET,
    "half a chunk": CHUNKED + b"ff\r\n" + SECRET,
    "malformed head": b"GET / HTTP/1.1\r\nbad field " + SECRET + END,
    "behind a malformed head": b"GET / HTTP/1.1\r\nbad field\r\n\r\n" + SECRET,
    "behind Connection: close": GET + b"Connection: close\r\n\r\n" + SECRET,
    "refused upgrade": GET + H2C + SECRET + END,
    "preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SECRET,
    "refused framing": CHUNKED.replace(END, b"\r\nContent-Length: 3\r\nX: ") + SECRET + END,
    "no WebSocket": GET + WEBSOCKET + SECRET + END,
    "expectation": POST + EXPECTS + SECRET,
    "unread body": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 999\r\n\r\n" + SECRET,
    "TLS on a port without": b"\x16\x03\x01\x00\xff" + SECRET,
}


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_what_a_request_hides_is_in_an_event(attack: bytes) -> None:
    """Heads, bodies, what is refused and what stands behind, whether a stand-in got it or not."""
    outcome = talk([attack])
    assert SECRET in outcome.kept or SECRET.replace(b"-", b"") in outcome.kept


TOKENS = st.text("aAbB!-.", min_size=1, max_size=4).map(str.encode)
TEXTS = st.text("aA1.\\x/-", max_size=6).map(str.encode)


def long(texts: st.SearchStrategy[bytes], most: int) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda text, size: text + text[:1] * size, texts, st.sampled_from([0, 0, most])
    )


@pytest.mark.promise("5.4")
@settings(max_examples=100, deadline=None)
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
        if "version" in event.data:
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


@pytest.mark.promise("8.3")
@pytest.mark.parametrize(("path", "status"), [(b"/never", 504), (b"/endless", 200)])
def test_a_client_that_reads_nothing_keeps_no_exchange(path: bytes, status: int) -> None:
    """A request that took too long, or an answer, is over in time, though nobody takes it."""
    bounds = Bounds(request_timeout_s=0.05 if status == 504 else 300, idle_timeout_s=0.05)
    outcome = talk([b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n"], bounds, takes=False)
    answered = [item.data for item in outcome.items if item.kind == Kind.NETWORK_HTTP_ANSWERED]
    assert [(data["status"], data["reason"]) for data in answered] == [(status, "took too long")]


@pytest.mark.promise("5.4")
def test_without_memory_for_an_event_the_gateway_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes on whose record has a gap: the range ends, and the sample is void."""
    monkeypatch.setattr(site, "die_without_memory", partial(sys.exit, 70))
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\n"
    with pytest.raises(SystemExit):
        talk([head + b"A" * 9], has_memory=False)
    assert talk([head + b"A" * 9]).unreported == 0
