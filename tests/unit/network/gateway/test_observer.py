"""HTTP between cells, read as it passes."""

from __future__ import annotations

import contextlib
import re
import time

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
    PassingMessage,
)

GET = b"GET /a HTTP/1.1\r\nHost: shop.example\r\n\r\n"
POST = b"POST /b HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"PUT /c HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
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


# What is wrong within a message, of each way; parts of the right ones are cut out of them.
BAD = [
    CHUNKED.replace(b"2\r\n", b"2;x=secret\r\n"),
    CHUNKED.replace(b"2\r\n", b"0002\r\n"),
    CHUNKED.replace(b"2\r\n", b"fffffffffffffff\r\n"),
    CHUNKED.replace(b"0\r\n", b"0\r\nt: secret\r\n"),
    CHUNKED.replace(b"abc\r\n", b"abcd\r\n"),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nA\r\n1234567890\r\nno",
    b"HTTP/1.1 103 Hints\r\nLink: secret\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nall",
]
CHUNK_LINE = re.compile(
    rb"(?:\r\n)?(?=([0-9A-Fa-f]+))(?:(?:[1-9a-f][0-9a-f]*|[1-9A-F][0-9A-F]*)\r\n|0\r\n\r\n)"
)
PIECES = [GET, POST, CHUNKED, OK, CONTINUED, EMPTY, *BAD]


def unframed(messages: list[PassingMessage], fed: bytes) -> bytes:
    """What is fed behind these messages; of an open chunk, from its line on, but its data."""
    at = 0
    for message in messages:
        assert fed.startswith(message.raw_head, at)
        at += len(message.raw_head)
        body, chunked = message.body.kept, b"chunked" in message.raw_head
        while chunked and (body or message.is_complete):
            line = CHUNK_LINE.match(fed, at)
            assert line is not None
            at, size = line.end(), int(line[1], 16)
            data, body = body[:size], body[size:]
            assert fed.startswith(data, at)
            at += len(data)
            if len(data) < size:
                return line[0] + fed[at:]
            if not size:
                break
        if not chunked:
            assert fed.startswith(body, at)
            at += len(body)
    return fed[at:]


@pytest.mark.promise("5.4")
@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from(PIECES)
            | st.binary(max_size=40)
            | st.tuples(st.sampled_from(PIECES), st.integers(0, 120)).map(lambda x: x[0][: x[1]]),
        ),
        max_size=12,
    ),
    st.integers(1, 200),
)
def test_all_bytes_are_in_messages_or_the_rest(parts: list[tuple[bool, bytes]], size: int) -> None:
    """Whatever comes, in whatever pieces: heads, bodies and rest are all of it. Only a size of a
    whole chunk is in none; it has one form.
    """
    observer, asked, answered = Observer(1 << 20), [], []
    pieces = [
        (sent, data[at : at + size]) for sent, data in parts for at in range(0, len(data), size)
    ]
    fed = {True: b"", False: b""}
    try:
        for sent, data in pieces:
            fed[sent] += data
            if sent:
                answered += observer.feed_answer(data)
            else:
                asked += observer.feed_request(data, 0.0)
    except NotHttpError:
        pass
    begun = [*answered, *observer.unanswered]
    assert [exchange for exchange in begun if exchange in asked] == asked
    for sent, messages in (
        (True, [each.answer for each in begun if each.answer.head is not None]),
        (False, [each.request for each in begun]),
    ):
        assert unframed(messages, fed[sent]) == observer.rest(sent=sent)


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
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    ],
)
def test_what_is_no_http_or_costs_too_much_is_not_parsed(request_head: bytes) -> None:
    """Other protocols, heads beyond a bound, and those that two readers could read in two ways are
    a stream's bytes, all of them.
    """
    observer = Observer(1000)
    with pytest.raises(NotHttpError):
        observer.feed_request(request_head, 0.0)
    assert observer.rest(sent=False) == request_head


@pytest.mark.parametrize("length", [b"5\r\nContent-Length: 5", b"5\r\nTransfer-Encoding: chunked"])
def test_an_answer_with_two_lengths_is_no_http(length: bytes) -> None:
    """Its client may read another answer than the gateway."""
    observer = Observer(1000)
    observer.feed_request(GET, 0.0)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\nhello" % length
    with pytest.raises(NotHttpError):
        observer.feed_answer(answer)
    assert observer.rest(sent=True) == answer


@pytest.mark.parametrize("body", [b"1\r\na\r\n" * 40_000, b"1" + b" " * 240_000, b"0\r\n" * 60_000])
def test_a_body_is_read_in_linear_time(body: bytes) -> None:
    """Chunks of one byte, blanks behind a size, and trailers, piece by piece."""
    observer, start = Observer(1000), time.process_time()
    observer.feed_request(CHUNKED[: CHUNKED.index(b"3\r\n")], 0.0)
    with contextlib.suppress(NotHttpError):
        for at in range(0, len(body), 1000):
            observer.feed_request(body[at : at + 1000], 0.0)
    assert time.process_time() - start < 5


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


def test_what_comes_behind_an_answer_hides_nothing() -> None:
    """The answer is returned; the next bytes end the reading, and none is lost."""
    observer = Observer(1000)
    observer.feed_request(GET + GET, 0.0)
    (exchange,) = observer.feed_answer(OK + b"no answer\0")
    assert told(exchange)[2:] == (200, b"ok")
    assert not observer.is_whole(sent=True)
    with pytest.raises(NotHttpError):
        observer.feed_answer(b"\r\n\r\n")
    assert observer.rest(sent=True) == b"no answer\0\r\n\r\n"


def test_interim_answers_are_a_part_of_the_answer_s_head() -> None:
    """Each byte of them is on record with it, and no answer is whole before it has come."""
    observer = Observer(1000)
    observer.feed_request(GET, 0.0)
    hints = b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n"
    assert observer.feed_answer(hints) == []
    assert not observer.is_whole(sent=True)
    (exchange,) = observer.feed_answer(OK)
    assert exchange.answer.raw_head + b"ok" == hints + OK


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
