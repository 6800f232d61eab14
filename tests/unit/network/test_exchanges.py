"""HTTP out of what two cells said to each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from belljar.network import exchanges as module
from belljar.network.conversations import Conversation
from belljar.network.exchanges import MAX_BODY_BYTES, Exchange


def said(sent: bytes, received: bytes) -> Conversation:
    """A conversation of one cell with another."""
    return Conversation(
        client=("10.0.0.1", 1), server=("10.0.0.2", 80), began_s=1.0, ended_s=2.0, sent=sent, received=received
    )


def exchanges(conversation: Conversation) -> list[Exchange]:
    """What was read of it; and nothing that was said is lost: what was not read is an end of what was said."""
    found, rest = module.exchanges(conversation)
    assert conversation.sent.endswith(rest.sent)
    assert conversation.received.endswith(rest.received)
    assert found or (rest.sent, rest.received) == (conversation.sent, conversation.received)
    return found


def test_several_requests_of_one_connection() -> None:
    """Each with its answer and both bodies, chunked or counted."""
    first, second = exchanges(
        said(
            b"POST /a?x=1 HTTP/1.1\r\nHost: shop\r\nContent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\nHost: shop\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
            b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\n\r\n",
        )
    )
    assert (first.method, first.target, first.host, first.status) == ("POST", "/a?x=1", "shop", 200)
    assert first.request.kept == b"hello"
    assert first.response is not None
    assert first.response.kept == b"abc"
    assert (second.target, second.status) == ("/b", 404)
    assert second.response is not None
    assert second.response.kept == b"xyz"


def test_a_head_request_has_no_body() -> None:
    """Whatever its answer's length says; the next answer is read right."""
    found = list(
        exchanges(
            said(
                b"HEAD / HTTP/1.1\r\nHost: s\r\n\r\nGET /2 HTTP/1.1\r\nHost: s\r\n\r\n",
                b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nHTTP/1.1 201 OK\r\nContent-Length: 1\r\n\r\n!",
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
    (found,) = exchanges(said(b"PUT / HTTP/1.1\r\nHost: s\r\nContent-Length: %d\r\n\r\n" % len(body) + body, b""))
    assert (len(found.request.kept), found.request.total_bytes) == (MAX_BODY_BYTES, len(body))


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_bytes_are_read(sent: bytes, received: bytes) -> None:
    """What is no HTTP is no exchange, and never an error."""
    assert list(exchanges(said(sent, received))) is not None


@given(st.binary(max_size=200))
def test_any_answer_is_read(received: bytes) -> None:
    """A request is told whatever its answer was."""
    assert len(list(exchanges(said(b"GET / HTTP/1.1\r\nHost: s\r\n\r\n", received)))) == 1
