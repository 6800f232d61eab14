"""Packet lines."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.stand_ins.git.transfer import (
    FLUSH,
    MAX_CONTENT_BYTES,
    PktError,
    packets,
    pkt,
    section,
)


@given(
    st.lists(st.binary(max_size=300).filter(lambda line: not line.endswith(b"\n")), max_size=20),
    st.binary(max_size=20),
)
@settings(deadline=None)
def test_lines_are_read_back(lines: list[bytes], rest: bytes) -> None:
    """A section's lines, without their line ends, and where what follows begins."""
    data = b"".join(pkt(line + b"\n") for line in lines) + FLUSH + rest
    assert section(data) == (lines, len(data) - len(rest))


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing but `PktError`, and always forward."""
    places = [0]
    with contextlib.suppress(PktError):
        places += [after for _, after in packets(data)]
    assert places == sorted(set(places))


@pytest.mark.parametrize(
    "data", [b"0", b"0003", b"0001", b"00", b"0005", b"zzzz", b"+004", b"00 4", b"0004"]
)
def test_what_is_refused_or_has_no_end(data: bytes) -> None:
    """Lengths below four, beyond the end, and no numbers; a section needs its flush."""
    with pytest.raises(PktError):
        section(data)


def test_a_line_has_a_bound() -> None:
    """Of the format."""
    assert len(pkt(bytes(MAX_CONTENT_BYTES))) == 65_520
    with pytest.raises(PktError):
        pkt(bytes(MAX_CONTENT_BYTES + 1))
