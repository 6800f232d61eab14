"""PostgreSQL's messages from a client that may send anything."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.postgres import wire

letters = st.characters(min_codepoint=32, max_codepoint=126)


def begun(*, anonymous: bool = False) -> wire.Reader:
    """Behind the startup message."""
    reader = wire.Reader()
    reader.is_begun, reader.is_anonymous = True, anonymous
    return reader


@given(st.lists(st.tuples(letters, st.binary(max_size=60)), max_size=6), st.integers(1, 7))
def test_messages_are_read_in_any_pieces(sent: list[tuple[str, bytes]], size: int) -> None:
    """Letters and bodies come out as they went in, and nothing is left."""
    data = b"".join(wire.message(kind, body) for kind, body in sent)
    reader = begun()
    found = [
        message for at in range(0, len(data), size) for message in reader.feed(data[at : at + size])
    ]
    assert [(message.kind, message.body) for message in found] == sent
    assert b"".join(message.raw for message in found) == data
    assert reader.rest == b""


@given(st.binary(max_size=300), st.booleans(), st.integers(1, 50))
def test_any_bytes_end_in_messages_or_a_problem(data: bytes, is_begun: bool, size: int) -> None:
    """Nothing raises, no byte is lost before a problem, and after it nothing comes."""
    reader = begun() if is_begun else wire.Reader()
    found = [
        message for at in range(0, len(data), size) for message in reader.feed(data[at : at + size])
    ]
    assert [bool(message.problem) for message in found[:-1]] == [False] * len(found[:-1])
    assert data.startswith(b"".join(message.raw for message in found) + reader.rest)


@pytest.mark.parametrize(
    ("reader", "length"),
    [
        (wire.Reader(), wire.MAX_STARTUP_BYTES + 1),
        (wire.Reader(), -1),
        (begun(anonymous=True), wire.MAX_PASSWORD_BYTES + 1),
        (begun(), wire.MAX_MESSAGE_BYTES + 1),
        (begun(), 3),
    ],
)
def test_a_length_beyond_its_bound_is_a_problem_at_once(reader: wire.Reader, length: int) -> None:
    """Before a byte of its body is held."""
    kind = b"Q" if reader.is_begun else b""
    (message,) = reader.feed(kind + struct.pack("!i", length) + b"more")
    assert message.problem
    assert reader.rest == b""
    assert not list(reader.feed(b"x" * 100))
