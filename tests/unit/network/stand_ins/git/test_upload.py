"""Requests for packs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.stand_ins.git.transfer import FLUSH, Asked, PktError, parse_request, pkt

A, B, C = b"a" * 40, b"b" * 40, b"c" * 40


def test_a_request_is_read() -> None:
    """Wants with capabilities behind the first, the client's border, a depth, haves over several
    sections, done."""
    data = (
        pkt(b"want " + A + b" side-band-64k agent=x\n")
        + pkt(b"want " + B + b"\n")
        + pkt(b"shallow " + C + b"\n")
        + pkt(b"deepen 3\n")
        + FLUSH
    )
    data += pkt(b"have " + B + b"\n") + FLUSH + pkt(b"have " + C + b"\n") + pkt(b"done\n")
    assert parse_request(data) == Asked(
        wants=(A, B),
        haves=(B, C),
        capabilities=frozenset({b"side-band-64k", b"agent=x"}),
        shallow=frozenset({C}),
        depth=3,
        done=True,
    )


@pytest.mark.parametrize(
    "line",
    [
        b"want x",
        b"want ../../etc/passwd",
        b"shallow",
        b"deepen x",
        b"deepen -1",
        b"deepen 99999999999",
    ],
)
def test_lines_that_are_refused(line: bytes) -> None:
    """An id is an id, a depth a number."""
    with pytest.raises(PktError):
        parse_request(pkt(line) + FLUSH)


@given(
    st.lists(
        st.binary(max_size=60)
        | st.sampled_from([b"want " + A, b"have " + B, b"deepen 1", b"done"]),
        max_size=10,
    ),
    st.binary(max_size=30),
)
@settings(deadline=None)
def test_any_request_is_read_or_refused(lines: list[bytes], rest: bytes) -> None:
    """Nothing but `PktError`."""
    try:
        asked = parse_request(b"".join(map(pkt, lines)) + FLUSH + rest)
    except PktError:
        return
    assert all(len(one) == 40 for one in (*asked.wants, *asked.haves, *asked.shallow))
