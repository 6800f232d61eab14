"""Known values: what counts as the same value, cut or changed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.signals.known import KnownValues
from belljar.signals.values import KnownValue, ScanSpec, ValueSource

TEXT = "orchid-7731-base"


def find(
    data: bytes, text: str = TEXT, *, case_sensitive: bool = True
) -> list[tuple[int, int, tuple[str, ...]]]:
    """Places and encodings."""
    value = KnownValue(
        id="v", text=text, source=ValueSource.PROTECTED, case_sensitive=case_sensitive
    )
    known = KnownValues(ScanSpec(values=(value,), key_hex="00" * 16))
    return [(found.start, found.end, found.names) for found in known.find(data, 0, len(data))]


def test_what_counts_as_the_same_value() -> None:
    """`case` is an encoding only of a value whose case matters; a value cut by many different
    separators is another text; with few letters it is looked for exactly; other letters count."""
    assert find(b"Orchid-7731-BASE") == [(0, 16, ("case",))]
    assert find(b"Orchid-7731-BASE", case_sensitive=False) == [(0, 16, ())]
    assert find(b"or, chi! d? 7 (7) 3:1 ba-se") == []
    assert find(b"o.r.c.h.i.d.7.7.3.1.b.a.s.e") == [(0, 27, ("split",))]
    assert find(b"x ##!!--++..a ", "##!!--++..a") == [(2, 13, ())]
    assert find("vor Geheimnis-Größe nach".encode(), "Geheimnis-Größe") == [(4, 21, ())]


@settings(max_examples=50, deadline=None)
@given(before=st.binary(max_size=600), after=st.binary(max_size=600))
def test_its_place_is_exact_between_any_bytes(before: bytes, after: bytes) -> None:
    """Whatever is around it, one of the places found is the value's."""
    data = before + TEXT.encode() + after
    assert (len(before), len(before) + len(TEXT), ()) in find(data)
