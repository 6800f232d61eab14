"""What of a request's text is shown in a record."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.gateway.reporter import (
    MAX_RECORDED_HEADERS_BYTES,
    printable_headers,
)


@given(headers=st.lists(st.tuples(st.binary(max_size=600), st.binary(max_size=3000)), max_size=100))
@settings(deadline=None, max_examples=50)
def test_headers_on_record_are_bounded_and_printable(headers: list[tuple[bytes, bytes]]) -> None:
    """Whatever a guest sends: a bounded part of it, and how many fields were left out."""
    kept, dropped = printable_headers(headers)
    assert len(kept) + dropped == len(headers)
    assert len(json.dumps(kept)) < MAX_RECORDED_HEADERS_BYTES + 400
    assert all(part.isprintable() for pair in kept for part in pair)
