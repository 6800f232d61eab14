"""Header fields are read as h11 reads them, and no run of blanks takes its square."""

from __future__ import annotations

import re

import h11
import pytest
from h11 import _abnf, _readers
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.gateway.http1 import patch_h11

ITS_OWN = re.compile(_abnf.header_field.encode("ascii"))
PIECES = [b" ", b"\t", b"  ", b"a", b"xy", b":", b"\0", b"\x80", b"\r", b"\n", b"\x0b", b","]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join))
def test_the_same_fields_are_taken(rest: bytes) -> None:
    """With the same names and values."""
    patch_h11()
    for line in (rest, b"a:" + rest):
        ours, its_own = _readers.header_field_re.fullmatch(line), ITS_OWN.fullmatch(line)
        assert (ours and ours.groupdict()) == (its_own and its_own.groupdict())


def read(parser: h11.Connection) -> None:
    """All that it has."""
    while parser.next_event() is not h11.NEED_DATA:
        pass


@pytest.mark.promise("4.5")
@pytest.mark.parametrize("is_trailer", [False, True])
def test_blanks_take_time_by_their_number_alone(is_trailer: bool) -> None:
    """Three million of them, and a NUL, in a head or a trailer: refused. With their square this
    would take hours."""
    patch_h11()
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=8 << 20)
    head = b"PUT / HTTP/1.1\r\nHost: a\r\n"
    begin = head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" if is_trailer else head
    parser.receive_data(begin + b"a:" + b" " * 3_000_000 + b"\0\r\n\r\n")
    with pytest.raises(h11.RemoteProtocolError, match="illegal header line"):
        read(parser)
