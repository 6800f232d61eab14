"""Each decoder takes any bytes, and stops at its bounds."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.signals.decoders import compressed, escapes
from belljar.signals.runs import decode_run, runs

MARKS = st.sampled_from(
    [b"\x1f\x8b\x08", b"x\x9c", b"(\xb5/\xfd", b"PK\x03\x04", b"%4", b"&#x", b"\\u", b"=\n", b"0x4"]
)


@pytest.mark.promise("5.7")
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(st.binary(max_size=40), MARKS, st.from_regex(rb"[A-Za-z0-9+/=_-]{14,40}")),
        max_size=8,
    )
)
def test_no_bytes_break_a_decoder(parts: list[bytes]) -> None:
    """Whatever comes, regions lie within the data, and offsets within the regions."""
    data = b"".join(parts)
    found = [*escapes(data), *compressed(data, lambda: 1 << 20)]
    for run in runs(data):
        found += decode_run(run)
    for decoded in found:
        assert 0 <= decoded.start <= decoded.end <= len(data)
        if decoded.locate and decoded.data:
            start, end = decoded.locate(0, len(decoded.data))
            assert decoded.start <= start <= end <= decoded.end


def test_a_decoder_stops_where_it_is_told() -> None:
    """No more comes out than allowed, and it is marked."""
    (decoded,) = compressed(gzip.compress(bytes(1 << 20)), lambda: 1000)
    assert len(decoded.data) == 1000
    assert not decoded.whole
