"""What is a request, in whatever pieces its bytes come, and what could be two."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.gateway.config import Bounds
from belljar.network.gateway.http1 import RequestParser
from belljar.network.stand_ins.web import RefusedRequestError

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
SMALL = Bounds(head_bytes=400, headers=20)


def parsed(data: bytes, size: int, bounds: Bounds = SMALL) -> tuple[list[tuple[bytes, bytes]], str]:
    """The heads and bodies of the requests in these bytes, in pieces, and the refusal or ""."""
    parser = RequestParser(bounds)
    found: list[tuple[bytes, bytes]] = []
    is_open = False
    for at in range(0, len(data), size):
        parser.held += data[at : at + size]
        try:
            while True:
                if not is_open and (request := parser.next_request()) is not None:
                    found.append((request[1], b""))
                    is_open = True
                if not is_open or (body := parser.next_data()) is None:
                    break
                found[-1] = (found[-1][0], found[-1][1] + body)
                is_open = not parser.is_body_over
        except RefusedRequestError as refused:
            return found, refused.reason
    return found, ""


BODIES = st.binary(max_size=40)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """A head, its body, and the body as it is sent."""
    body = draw(BODIES)
    if draw(st.booleans()):
        return HEAD + b"Content-Length: %d\r\n\r\n" % len(body), body, body
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=4)))
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True) if a < b]
    sent = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n", body, sent


@settings(max_examples=100, deadline=None)
@given(st.lists(requests(), max_size=4), st.integers(1, 200))
def test_requests_are_the_same_in_whatever_pieces(
    sent: list[tuple[bytes, bytes, bytes]], size: int
) -> None:
    """Each head and body is found exactly, pipelined, with no byte of its neighbour."""
    data = b"".join(head + coded for head, _, coded in sent)
    assert parsed(data, size) == ([(head, body) for head, body, _ in sent], "")


PIECES = st.one_of(
    st.sampled_from(
        [
            HEAD, b"\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"3\r\nabc",
            b"0\r\n\r\n",
        ]
    ),
    st.binary(max_size=6),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=8).map(b"".join), st.integers(1, 60))
def test_whatever_comes_the_pieces_change_nothing(data: bytes, size: int) -> None:
    """The requests found and whether the bytes are refused do not depend on how they are cut, and
    nothing but a refusal is raised."""
    found, refusal = parsed(data, max(1, len(data)))
    again, refused = parsed(data, size)
    assert (bool(refusal), [head for head, _ in found]) == (
        bool(refused),
        [head for head, _ in again],
    )


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\nHost: a\n\n", b"POST / HTTP/1.1\r\nHost: a\r\n\n",
        HEAD + b"X: a\rb\r\n\r\n", HEAD + b"X: a\r\n b\r\n\r\n", HEAD + b"X: a\0b\r\n\r\n",
        HEAD + b"X: a\x0bb\r\n\r\n", HEAD + b"X: a\x7fb\r\n\r\n", b" " + HEAD + b"\r\n",
        b"\r\n" + HEAD + b"\r\n", HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        HEAD + b"Content-Length: 3, 3\r\n\r\nabc",
        HEAD + b"content-LENGTH: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n\r\n1\r\na\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 27 + b"\r\n",
        HEAD + b"Upgrade: h2c\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n",
        HEAD + b"X: y\r\n" * 20 + b"\r\n", HEAD + b"X: " + b"y" * 500,
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 1000])
def test_what_could_be_read_in_two_ways_is_refused(head: bytes, size: int) -> None:
    """A line's end that is none, folded lines, control characters, two lengths, a length and a
    coding, and what is over a bound: in whatever pieces."""
    found, refusal = parsed(head, size)
    assert refusal
    assert b"".join(body for _, body in found) in (b"", b"a")


@pytest.mark.promise("4.5")
def test_blanks_take_time_by_their_number_alone() -> None:
    """Three million of them, and a NUL, are refused at once."""
    bounds = Bounds(head_bytes=8 << 20)
    blanks = HEAD + b"X:" + b" " * 3_000_000
    start = time.monotonic()
    assert parsed(blanks + b"\0\r\n\r\n", 1 << 16, bounds)[1]
    assert parsed(blanks + b"\r\n\r\n", 1 << 16, bounds)[1] == ""
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    for line in (b"1;" + b" " * 60_000 + b"\n\r\n", b"0\r\nX:" + b" " * 60_000 + b"\0\r\n\r\n"):
        assert parsed(chunked + line, 1 << 16, bounds)[1]
    assert time.monotonic() - start < 60
