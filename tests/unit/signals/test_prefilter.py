"""The prefilter never hides anything."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.signals import known
from belljar.signals.known import KnownValues
from belljar.signals.prefilter import MIN_BYTES, Prefilter
from belljar.signals.values import KnownValue, ScanSpec, Source


def test_what_is_there_is_possible() -> None:
    """Each expression that matches is named, and no other."""
    pytest.importorskip("hyperscan")
    prefilter = Prefilter([b"abc", rb"x\d+y", b"zzz"])
    assert prefilter.possible(b" " * MIN_BYTES + b"abc x12y") == {0, 1}


def test_without_its_package_anything_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown is not absent; nor is little data looked at."""
    assert Prefilter([b"abc"]).possible(b"abc") is None
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    assert Prefilter([b"abc"]).possible(b" " * MIN_BYTES) is None


def test_a_pass_that_is_busy_hides_nothing() -> None:
    """While another thread uses it, anything is possible."""
    prefilter = Prefilter([b"abc"])
    with prefilter._lock:
        assert prefilter.possible(b" " * MIN_BYTES) is None


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=300), st.text(min_size=10, max_size=40))
def test_known_values_are_found_with_it_as_without(noise: bytes, text: str) -> None:
    """The same places, whether the prefilter looks first or not."""
    value = KnownValue(id="v", text=text.ljust(10, "-"), source=Source.PROTECTED)
    spec = ScanSpec(values=(value,), key_hex="00" * 16)
    data = noise * 10 + value.text.encode() + b" " * MIN_BYTES
    with pytest.MonkeyPatch.context() as patch:
        found = []
        for begin in (0, 1 << 40):
            patch.setattr(known, "PREFILTER_FROM", begin)
            found.append([(one.start, one.end) for one in KnownValues(spec).find(data, 0, len(data))])
    assert found[0] == found[1]
    assert found[0]
