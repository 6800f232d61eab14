"""HTTP out of the bytes of two cells' connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.capture import exchanges as module
from belljar.network.capture.conversations import Conversation
from belljar.network.capture.exchanges import (
    MAX_BLANKS,
    MAX_BODY_BYTES,
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    MAX_STEPS,
    Exchange,
    Rest,
)


def said(sent: bytes, received: bytes) -> Conversation:
    """A conversation of one cell with another."""
    return Conversation(
        client=("10.0.0.1", 1),
        server=("10.0.0.2", 80),
        began_s=1.0,
        ended_s=2.0,
        sent=sent,
        received=received,
    )


def exchanges(conversation: Conversation) -> list[Exchange]:
    """What was read; no byte is lost: the unread ones are the streams' ends."""
    found, rest = module.exchanges(conversation)
    assert conversation.sent.endswith(rest.sent)
    assert conversation.received.endswith(rest.received)
    assert found or (rest.sent, rest.received) == (conversation.sent, conversation.received)
    return found


def test_several_requests_of_one_connection() -> None:
    """Each with its answer and both bodies, chunked or counted."""
    first, second = exchanges(
        said(
            b"POST /a?x=1 HTTP/1.1\r\nHost: shop\r\nContent-Length: 5\r\n\r\nhelloGET /b"
            b" HTTP/1.1\r\nHost: shop\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
            b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\n\r\n",
        )
    )
    assert (first.method, first.target, first.host, first.status) == ("POST", "/a?x=1", "shop", 200)
    assert first.request.content == b"hello"
    assert first.response is not None
    assert first.response.content == b"abc"
    assert (second.target, second.status) == ("/b", 404)
    assert second.response is not None
    assert second.response.content == b"xyz"


def test_a_head_request_has_no_body() -> None:
    """Whatever its response's length is; the next response is read correctly."""
    found = list(
        exchanges(
            said(
                b"HEAD / HTTP/1.1\r\nHost: s\r\n\r\nGET /2 HTTP/1.1\r\nHost: s\r\n\r\n",
                b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nHTTP/1.1 201 OK\r\nContent-Length:"
                b" 1\r\n\r\n!",
            )
        )
    )
    assert [each.status for each in found] == [200, 201]


def test_a_request_without_an_answer_is_told() -> None:
    """Status 0."""
    (found,) = exchanges(said(b"GET / HTTP/1.1\r\nHost: s\r\n\r\n", b""))
    assert found.status == 0


def test_bodies_are_bounded_and_counted() -> None:
    """The rest is in the digest and the count."""
    body = b"x" * (MAX_BODY_BYTES + 10)
    (found,) = exchanges(
        said(b"PUT / HTTP/1.1\r\nHost: s\r\nContent-Length: %d\r\n\r\n" % len(body) + body, b"")
    )
    assert (len(found.request.content), found.request.total_bytes) == (MAX_BODY_BYTES, len(body))


GET = b"GET / HTTP/1.1\r\nHost: s\r\n"
PUT = b"PUT / HTTP/1.1\r\nHost: s\r\nTransfer-Encoding: chunked\r\n\r\n"


def rest_of(sent: bytes, received: bytes = b"", most_steps: int = MAX_STEPS) -> Rest:
    """What was not read."""
    return module.exchanges(said(sent, received), most_steps)[1]


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    ("head", "bound"),
    [
        (GET + b"a: " + b"x" * MAX_HEAD_BYTES, f"more than {MAX_HEAD_BYTES} bytes"),
        (GET + b"a:\r\n" * MAX_FIELDS, f"more than {MAX_FIELDS} fields"),
        (
            GET + b"a:" + b" " * (MAX_BLANKS + 1) + b"\0\r\n",
            f"more than {MAX_BLANKS} blanks in a row",
        ),
    ],
)
@pytest.mark.parametrize("is_answer", [False, True])
def test_no_head_over_the_bounds_is_parsed(head: bytes, bound: str, is_answer: bool) -> None:
    """Of a request or a response: it takes no step, the reason is given, and its bytes are left."""
    whole = (
        head.replace(GET, b"HTTP/1.1 200 OK\r\nHost: s\r\n") + b"\r\n"
        if is_answer
        else head + b"\r\n"
    )
    asked = GET + b"\r\n"
    before = rest_of(asked).steps
    rest = rest_of(asked, whole) if is_answer else rest_of(whole)
    assert rest.steps == (before if is_answer else 0)
    assert rest.reason.startswith(module.NOT_FURTHER)
    assert bound in rest.reason
    assert whole in (rest.sent, rest.received)


def test_as_much_as_the_bounds_allow_is_read() -> None:
    """A head of the most fields and of nearly the most bytes."""
    (found,) = exchanges(said(GET + b"a:\r\n" * (MAX_FIELDS - 1) + b"\r\n", b""))
    assert len(found.request_headers) == MAX_FIELDS
    assert (
        len(
            exchanges(
                said(GET + b"a: " + b"x" * (MAX_HEAD_BYTES - len(GET) - 7) + b"\r\n\r\n", b"")
            )
        )
        == 1
    )


@pytest.mark.promise("5.4")
def test_chunks_take_steps_which_are_bounded() -> None:
    """Of one byte each, as many as the bound are read; one more is not, with a reason. A response
    is reported as far as it was read."""
    head = rest_of(PUT + b"0\r\n\r\n").steps - 1
    most = PUT + b"1\r\nx\r\n" * (MAX_STEPS - head - 1) + b"0\r\n\r\n"
    (found,) = exchanges(said(most, b""))
    assert found.request.total_bytes == MAX_STEPS - head - 1
    rest = rest_of(most.replace(b"0\r\n\r\n", b"1\r\nx\r\n0\r\n\r\n"))
    assert (rest.steps, rest.is_out_of_steps) == (MAX_STEPS, True)
    assert rest.reason.startswith(module.NOT_FURTHER)
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50
    (cut,), rest = module.exchanges(said(GET + b"\r\n", answer), 40)
    assert (cut.status, cut.is_cut, rest.is_out_of_steps) == (200, True, True)
    assert cut.response is not None
    assert 0 < cut.response.total_bytes == 50 - len(rest.received) // len(b"1\r\nx\r\n")


def test_many_requests_take_steps_each() -> None:
    """Ten and one for each line of every head: what is read ends where they end."""
    each = rest_of(GET + b"\r\n").steps
    assert each == 10 + 3
    many = (GET + b"\r\n") * 9, b"HTTP/1.1 204 N\r\n\r\n" * 9
    both = rest_of(GET + b"\r\n", b"HTTP/1.1 204 N\r\n\r\n").steps
    found, rest = module.exchanges(said(*many), 5 * both)
    assert (len(found), rest.steps, rest.is_out_of_steps) == (5, 5 * both, True)
    assert (rest.sent, rest.received) == (
        many[0][5 * len(GET + b"\r\n") :],
        b"HTTP/1.1 204 N\r\n\r\n" * 4,
    )


def test_informational_responses_take_steps_too() -> None:
    """A target that sends status 100 without end."""
    rest = rest_of(GET + b"\r\n", b"HTTP/1.1 100 C\r\n\r\n" * 100, 200)
    assert (rest.is_out_of_steps, len(rest.received)) == (True, 1800)


def test_a_chunk_with_an_extension_is_not_passed_over() -> None:
    """Its text would be in no event."""
    rest = rest_of(PUT + b"1;secret\r\nx\r\n0\r\n\r\n")
    assert (b"secret" in rest.sent, rest.reason.startswith(module.NOT_FURTHER)) == (True, True)


def test_trailers_are_told_with_the_headers() -> None:
    """Last."""
    (found,) = exchanges(said(PUT + b"1\r\nx\r\n0\r\nX-Sum: 9\r\n\r\n", b""))
    assert found.request_headers[-1] == (b"X-Sum", b"9")
    assert not exchanges(said(PUT + b"0\r\nGET /hidden HTTP/1.1\r\n\r\n", b""))


def test_a_switch_of_protocols_is_told_and_ends_it() -> None:
    """101, and CONNECT: what follows is no HTTP."""
    upgraded = said(GET + b"Upgrade: x\r\n\r\nGET", b"HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\nabc")
    (found,), rest = module.exchanges(upgraded)
    assert (found.status, rest.sent, rest.received) == (101, b"GET", b"abc")
    tunnel = said(
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n" + GET + b"\r\n", b"HTTP/1.1 200 OK\r\n\r\nabc"
    )
    (found,), rest = module.exchanges(tunnel)
    assert (found.status, rest.sent, rest.received) == (200, GET + b"\r\n", b"abc")


def test_a_response_without_an_end_is_marked() -> None:
    """It is reported as far as it came."""
    (found,) = exchanges(said(GET + b"\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"))
    assert found.response is not None
    assert (found.response.content, found.is_cut) == (b"abc", True)
    (found,) = exchanges(said(GET + b"\r\n", b"HTTP/1.0 200 OK\r\n\r\nabc"))
    assert not found.is_cut


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=10))
def test_a_body_is_what_its_chunks_were(pieces: list[bytes]) -> None:
    """However it was cut."""
    body = b"".join(b"%x \r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    asked, answered = (
        PUT + body + b"0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body,
    )
    for found in exchanges(said(2 * asked, 2 * (answered + b"0\r\n\r\n"))):
        assert found.response is not None
        assert (found.request.content, found.response.content) == (
            b"".join(pieces),
            b"".join(pieces),
        )


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 200))
def test_any_bytes_are_read(sent: bytes, received: bytes, most_steps: int) -> None:
    """What is no HTTP is no exchange, and never an error; and no more steps are taken than may
    be."""
    assert list(exchanges(said(sent, received))) is not None
    assert rest_of(sent, received, most_steps).steps <= most_steps


PIECES = [
    GET,
    PUT,
    b"\r\n",
    b"\n",
    b"HTTP/1.1 200 OK\r\n",
    b"Content-Length: 3\r\n",
    b"1\r\nx\r\n",
    b"0\r\n",
    b"a: b\r\n",
    b"Connection: close\r\n",
    b"abc",
]


@given(
    st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join),
    st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join),
)
def test_almost_http_is_read(sent: bytes, received: bytes) -> None:
    """Nearly correct bytes in any order: unread ones are left, and steps are counted."""
    exchanges(said(sent, received))
    assert rest_of(sent, received).steps <= 30 * (len(sent) + len(received) + 1)


@given(st.binary(max_size=200))
def test_any_response_is_read(received: bytes) -> None:
    """A request is reported whatever its response was."""
    assert len(list(exchanges(said(b"GET / HTTP/1.1\r\nHost: s\r\n\r\n", received)))) == 1
