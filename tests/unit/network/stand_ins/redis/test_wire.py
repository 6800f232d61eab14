"""RESP from a client that may send anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.redis.wire import (
    MAX_ARGUMENT_BYTES,
    MAX_COMMAND_BYTES,
    MAX_LINE_BYTES,
    Command,
    Error,
    Reader,
    Status,
    render,
    split_line,
)

words = st.lists(st.binary(max_size=40), min_size=1, max_size=8)
junk = st.lists(
    st.sampled_from(
        [
            b"*",
            b"$",
            b"1",
            b"-1",
            b"3",
            b"99999999",
            b"\r\n",
            b"\n",
            b" ",
            b'"',
            b"'",
            b"\\x4",
            b"GET",
        ]
    )
    | st.binary(max_size=12),
    max_size=40,
).map(b"".join)


def read(data: bytes, *, anonymous: bool = False, size: int = 0) -> tuple[list[Command], Reader]:
    """The commands, fed in pieces of this size (0: whole)."""
    reader = Reader()
    reader.is_anonymous = anonymous
    pieces = [data[at : at + size] for at in range(0, len(data), size)] if size else [data]
    return [command for piece in pieces for command in reader.feed(piece)], reader


@given(st.lists(words, max_size=4), st.integers(0, 5))
def test_arrays_are_read_in_any_pieces(commands: list[list[bytes]], size: int) -> None:
    """Words and raw bytes come out as they went in, and nothing is left."""
    raws = [render(command) for command in commands]
    found, reader = read(b"".join(raws), size=size)
    assert [list(command.words) for command in found] == commands
    assert [command.raw for command in found] == raws
    assert reader.rest == b""


@given(junk, st.booleans(), st.integers(0, 3))
def test_any_bytes_end_in_commands_or_a_problem(data: bytes, anonymous: bool, size: int) -> None:
    """Nothing raises; no byte is in nothing but the ends of empty lines; after a problem comes
    nothing."""
    found, reader = read(data, anonymous=anonymous, size=size)
    problems = [index for index, command in enumerate(found) if command.problem]
    assert problems in ([], [len(found) - 1])
    assert all(command.words or command.problem for command in found)
    if not problems:
        assert data.endswith(reader.rest)


@pytest.mark.parametrize(
    ("data", "anonymous", "problem"),
    [
        (b"*11\r\n", True, b"unauthenticated multibulk length"),
        (b"*1\r\n$16385\r\n", True, b"unauthenticated bulk length"),
        (b"*1025\r\n", False, b"invalid multibulk length"),
        (b"*x\r\n", False, b"invalid multibulk length"),
        (b"*1\r\n:1\r\n", False, b"expected '$', got ':'"),
        (b"*1\r\n$-1\r\n", False, b"invalid bulk length"),
        (b"*1\r\n$%d\r\n" % (MAX_ARGUMENT_BYTES + 1), False, b"invalid bulk length"),
        (b"a" * (MAX_LINE_BYTES + 1), False, b"too big inline request"),
        (b"*2\r\n" + b"a" * (MAX_LINE_BYTES + 1), False, b"too big bulk count string"),
        (b'get "a\r\n', False, b"unbalanced quotes in request"),
    ],
)
def test_what_goes_beyond_a_bound_is_the_protocols_error(
    data: bytes, anonymous: bool, problem: bytes
) -> None:
    """In the words of the real server; all that came is kept for the record, and nothing after
    it."""
    (command,), reader = read(data, anonymous=anonymous)
    assert command.problem == b"ERR Protocol error: " + problem
    assert command.raw == data
    assert not list(reader.feed(b"PING\r\n"))
    assert reader.rest == b""


def test_a_command_that_never_ends_is_bounded() -> None:
    """However it is sent, what is held is no more than a command and the next argument."""
    reader = Reader()
    reader.is_anonymous = False
    argument = b"$60000\r\n" + b"x" * 60_000 + b"\r\n"
    found = list(reader.feed(b"*1000\r\n"))
    for _ in range(1000):
        found += reader.feed(argument)
        assert len(reader.rest) <= MAX_COMMAND_BYTES + MAX_ARGUMENT_BYTES
    assert [bool(command.problem) for command in found] == [True]


def test_a_line_is_split_as_a_shell_would() -> None:
    """Quotes hold words together, in double ones with escapes."""
    assert split_line(b"  get  a\tb ") == [b"get", b"a", b"b"]
    assert split_line(rb'set "a \"b\n\x41" ' + b"'c d'") == [b"set", b'a "b\nA', b"c d"]
    assert split_line(b'"a"b') is None


def test_replies_have_their_forms() -> None:
    """In both versions; an error is one line."""
    assert render([b"a", 1, None, Status(b"OK")]) == b"*4\r\n$1\r\na\r\n:1\r\n$-1\r\n+OK\r\n"
    assert render({b"a": None}) == b"*2\r\n$1\r\na\r\n$-1\r\n"
    assert render({b"a": None}, 3) == b"%1\r\n$1\r\na\r\n_\r\n"
    assert render(Error(b"ERR a\r\nb")) == b"-ERR a  b\r\n"
