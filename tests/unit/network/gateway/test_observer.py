"""HTTP between cells, read as it passes."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.gateway.observer import (
    MAX_BLANKS,
    MAX_HEAD_BYTES,
    NotHttpError,
    Observer,
    PassingExchange,
)

GET = b"GET /a HTTP/1.1\r\nHost: shop.example\r\n\r\n"
POST = b"POST /b HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"PUT /c HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nt: u\r\n\r\n"
)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + OK
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


def told(exchange: PassingExchange) -> tuple[bytes, bytes, int, bytes]:
    """Method, body, status and answer."""
    status = exchange.answer.head
    code = status.status_code if isinstance(status, h11.Response | h11.InformationalResponse) else 0
    return exchange.method, exchange.request.body.kept, code, exchange.answer.body.kept


PAIRS = [
    (GET, OK, (b"GET", b"", 200, b"ok")),
    (POST, CONTINUED, (b"POST", b"hello", 200, b"ok")),
    (CHUNKED, EMPTY, (b"PUT", b"abcde", 204, b"")),
]


@pytest.mark.promise("5.4")
@settings(deadline=None)
@given(st.lists(st.sampled_from(PAIRS), max_size=8), st.integers(1, 200))
def test_exchanges_are_found_whatever_the_pieces(
    pairs: list[tuple[bytes, bytes, tuple[bytes, bytes, int, bytes]]], size: int
) -> None:
    """In order, with whole bodies; between messages, and only there, a direction is whole."""
    observer, found = Observer(1000), []
    for request, answer, _ in pairs:
        asked = []
        for at in range(0, len(request), size):
            assert observer.is_whole(sent=False) == (at == 0)
            asked += observer.feed_request(request[at : at + size], 0.0)
        assert len(asked) == 1
        for at in range(0, len(answer), size):
            found += observer.feed_answer(answer[at : at + size])
        assert observer.is_whole(sent=True)
    assert [told(exchange) for exchange in found] == [expected for _, _, expected in pairs]
    assert observer.feed_answer(b"") == []


@pytest.mark.promise("5.4")
@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.binary(max_size=40) | st.sampled_from([GET, POST, CHUNKED, OK, EMPTY, GET[:20]]),
        ),
        max_size=12,
    )
)
def test_no_bytes_are_lost_by_what_is_no_http(pieces: list[tuple[bool, bytes]]) -> None:
    """Whatever comes: nothing else is raised, and what is in no message is given back."""
    observer = Observer(1000)
    fed = {True: b"", False: b""}
    try:
        for sent, data in pieces:
            fed[sent] += data
            if sent:
                observer.feed_answer(data)
            elif data:
                observer.feed_request(data, 0.0)
    except NotHttpError:
        pass
    for sent, data in fed.items():
        assert data.endswith(observer.rest(sent=sent))


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    "request_head",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"\x16\x03\x01",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b" " * (MAX_BLANKS + 1) + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"GET /" + b"a" * MAX_HEAD_BYTES,
    ],
)
def test_what_is_no_http_or_costs_too_much_is_not_parsed(request_head: bytes) -> None:
    """Other protocols, and heads beyond a bound, are a stream's bytes, all of them."""
    observer = Observer(1000)
    with pytest.raises(NotHttpError):
        observer.feed_request(request_head, 0.0)
    assert observer.rest(sent=False) in (request_head, b"")


def test_a_server_that_speaks_first_speaks_no_http() -> None:
    """Its greeting is a stream's."""
    observer = Observer(1000)
    with pytest.raises(NotHttpError):
        observer.feed_answer(b"220 mail.example\r\n")
    assert observer.rest(sent=True) == b"220 mail.example\r\n"


def test_a_switch_of_protocols_ends_the_reading() -> None:
    """The exchange is complete; what follows, either way, is a stream's."""
    observer = Observer(1000)
    upgrade = b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    (exchange,) = observer.feed_request(upgrade + b"early", 0.0)
    switched = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nframe"
    with pytest.raises(NotHttpError):
        observer.feed_answer(switched)
    assert list(observer.unanswered) == [exchange]
    assert told(exchange)[2] == 101
    assert exchange.answer.is_complete
    assert (observer.rest(sent=False), observer.rest(sent=True)) == (b"early", b"frame")


def test_an_answer_before_the_request_s_end_ends_the_reading() -> None:
    """What still comes of the request is a stream's, as no event would have it."""
    observer = Observer(1000)
    observer.feed_request(POST[:-2], 0.0)
    with pytest.raises(NotHttpError):
        observer.feed_answer(OK)
    (exchange,) = observer.unanswered
    assert told(exchange) == (b"POST", b"hel", 200, b"ok")


@pytest.mark.parametrize("more", [b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n", b"no answer"])
def test_what_comes_behind_an_answer_hides_nothing(more: bytes) -> None:
    """The answer is returned; the next bytes end the reading, and none is lost."""
    observer = Observer(1000)
    observer.feed_request(GET + GET, 0.0)
    (exchange,) = observer.feed_answer(OK + more)
    assert told(exchange)[2:] == (200, b"ok")
    assert not observer.is_whole(sent=True)
    with pytest.raises(NotHttpError):
        observer.feed_answer(b"\r\n\r\n")
    assert observer.rest(sent=True) == more + b"\r\n\r\n"


def test_an_answer_until_the_end_is_complete_at_the_end() -> None:
    """Without a length its end is the connection's; with one, an early end is none."""
    observer = Observer(1000)
    observer.feed_request(GET, 0.0)
    assert observer.feed_answer(b"HTTP/1.0 200 OK\r\n\r\nall") == []
    (exchange,) = observer.feed_answer(b"")
    assert told(exchange) == (b"GET", b"", 200, b"all")
    observer = Observer(1000)
    observer.feed_request(GET, 0.0)
    observer.feed_answer(OK[:-1])
    with pytest.raises(NotHttpError):
        observer.feed_answer(b"")
    assert not observer.unanswered[0].answer.is_complete
