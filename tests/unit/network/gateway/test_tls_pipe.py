"""TLS records, in whatever pieces they come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from belljar.network.gateway.pipe import Records


def cut(data: bytes, size: int) -> tuple[list[bytes], bytes]:
    """The records of these bytes, given in pieces, and the rest."""
    records, found = Records(), []
    for at in range(0, len(data), size):
        records.feed(data[at : at + size])
        found += list(records)
    return found, records.take_rest()


@given(
    st.lists(st.tuples(st.integers(20, 24), st.binary(max_size=60)), max_size=6),
    st.integers(1, 200),
)
def test_records_are_whole(given_records: list[tuple[int, bytes]], size: int) -> None:
    """Each comes as it was sent, and what is begun stays."""
    sent = [
        bytes([kind, 3, 3]) + len(data).to_bytes(2, "big") + data for kind, data in given_records
    ]
    assert cut(b"".join(sent) + b"\x17\x03", size) == (sent, b"\x17\x03")


@given(st.binary(max_size=100), st.integers(1, 50))
def test_no_byte_is_lost(data: bytes, size: int) -> None:
    """What is no record comes as it is: the library refuses it."""
    found, rest = cut(data, size)
    assert b"".join(found) + rest == data
