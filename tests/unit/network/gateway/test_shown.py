"""What of a request's text is shown in a record."""

from __future__ import annotations

import json
from unicodedata import category

from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.gateway.reporter import (
    MAX_RECORDED_HEADERS_BYTES,
    printable_headers,
    printable_text,
)


@given(headers=st.lists(st.tuples(st.binary(max_size=600), st.binary(max_size=3000)), max_size=100))
@settings(deadline=None, max_examples=50)
def test_headers_on_record_are_bounded_and_printable(headers: list[tuple[bytes, bytes]]) -> None:
    """Whatever a guest sends: a bounded part of it, and how many fields were left out."""
    kept, dropped = printable_headers(headers)
    assert len(kept) + dropped == len(headers)
    assert len(json.dumps(kept)) < MAX_RECORDED_HEADERS_BYTES + 400
    assert all(part.isprintable() for pair in kept for part in pair)


@given(text=st.binary(max_size=100) | st.text(max_size=100))
@settings(deadline=None)
def test_shown_text_is_printable(text: bytes | str) -> None:
    """No byte of a guest's can act on a terminal, and printable ASCII is left as it is."""
    shown = printable_text(text, 60)
    assert not any(category(char)[0] == "C" or category(char) in {"Zl", "Zp"} for char in shown)
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    if raw.isascii() and raw.decode().isprintable() and len(raw) <= 60:
        assert shown == raw.decode()
