"""The prefilter never hides anything."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.signals.known import KnownValues
from belljar.signals.patterns import Patterns
from belljar.signals.prefilter import MIN_BYTES, Prefilter, places
from belljar.signals.values import KnownValue, ScanSpec, ValueSource

SPACE = b" " * MIN_BYTES


def test_what_is_there_is_told() -> None:
    """Each expression that matches is named, and no other; where it is asked for, with each
    place."""
    pytest.importorskip("hyperscan")
    prefilter = Prefilter({"a": b"abc", "x": rb"x\d+y", "z": b"zzz"}, places=frozenset("a"))
    held = prefilter.look(SPACE + b"abc x12y abc")
    assert held == {"a": [MIN_BYTES + 3, MIN_BYTES + 12], "x": [MIN_BYTES + 8]}
    assert list(places(SPACE + b"abc x12y abc", b"abc", held, "a")) == [MIN_BYTES, MIN_BYTES + 9]


def test_without_its_package_anything_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown is not absent; nor is little data looked at, nor before it pays."""
    assert Prefilter({"a": b"abc"}).look(b"abc") is None
    assert Prefilter({"a": b"abc"}, from_bytes=MIN_BYTES).look(SPACE) is None
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    assert Prefilter({"a": b"abc"}).look(SPACE) is None


def test_what_the_package_refuses_is_possible() -> None:
    """An expression that it can't compile hides nothing."""
    pytest.importorskip("hyperscan")
    assert Prefilter({"a": rb"(a)\1"}).look(SPACE) is None


def test_a_pass_that_is_busy_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another thread uses it, anything is possible."""
    begun, go = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, mode: int) -> None:
            del mode
            begun.set()
            assert go.wait(60)

        def compile(self, **_: object) -> None:
            """Compile nothing."""

        def scan(self, *_: object, **__: object) -> None:
            """Find nothing."""

    flags = {"HS_MODE_BLOCK": 0, "HS_FLAG_SINGLEMATCH": 0, "HS_FLAG_DOTALL": 0}
    monkeypatch.setitem(sys.modules, "hyperscan", SimpleNamespace(Database=Slow, **flags))
    prefilter = Prefilter({"a": b"abc"})
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(prefilter.prepare)
        assert begun.wait(60)
        assert prefilter.look(SPACE) is None
        go.set()
        other.result()
    assert prefilter.look(SPACE) == {}


@pytest.mark.promise("5.7")
@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=300), st.text(min_size=10, max_size=40))
def test_known_values_are_found_with_it_as_without(noise: bytes, text: str) -> None:
    """The same places, whether the prefilter looks first or not."""
    value = KnownValue(id="v", text=text.ljust(10, "-"), source=ValueSource.PROTECTED)
    data = noise * 10 + value.text.encode() + SPACE
    values = [KnownValues(ScanSpec(values=(value,), key_hex="00" * 16)) for _ in range(2)]
    values[1].prepare()
    found = [[(one.start, one.end) for one in known.find(data, 0, len(data))] for known in values]
    assert found[0] == found[1]
    assert found[0]


CREDENTIALS = [
    "AKIAQX7RJ2KLM5N3PVTB",
    "password=Xk29vQpL77zTq",
    "ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5",
    "https://user:Xk29vQpL77zTq@host.tld/",
    "some words that are only prose here and none of them is any kind of phrase at all",
]


@pytest.mark.promise("5.7")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(CREDENTIALS), st.text(max_size=30)), max_size=8),
    st.sampled_from(" \n,"),
)
def test_patterns_are_found_with_it_as_without(parts: list[str], separator: str) -> None:
    """Credentials, in any order and company."""
    data = separator.join(parts).encode(errors="replace").ljust(MIN_BYTES)
    plain, prepared = Patterns(()), Patterns(())
    prepared.prepare()
    assert sorted(plain.find(data)) == sorted(prepared.find(data))
