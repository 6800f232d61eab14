"""Each decoder takes any bytes, and the prefilter never hides anything."""

from __future__ import annotations

import base64
import gzip
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.signals.decoders import SMALL, compressed, escapes, turned
from belljar.signals.known import KnownValues
from belljar.signals.patterns import Patterns
from belljar.signals.prefilter import MIN_BYTES, Held, Prefilter, places
from belljar.signals.runs import decode_run, runs
from belljar.signals.scanner import marks, prepare_marks
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


def test_what_it_can_not_tell_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown is not absent: an expression that it can't compile hides nothing, nor do places that
    are too many to list; nor is little data looked at, nor before it pays, nor without its
    package."""
    pytest.importorskip("hyperscan")
    assert Prefilter({"a": rb"(a)\1"}).look(SPACE) is None
    assert Prefilter({"a": b"a"}, places=frozenset({"a"})).look(b"a" * 70_000) is None
    assert Prefilter({"a": b"abc"}).look(b"abc") is None
    assert Prefilter({"a": b"abc"}, from_bytes=MIN_BYTES).look(SPACE) is None
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    assert Prefilter({"a": b"abc"}).look(SPACE) is None


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

    def tick() -> None:
        """There is time enough."""

    prepared.prepare()
    assert sorted(plain.find(data, tick)) == sorted(prepared.find(data, tick))


TEXT = b"AKq9-xR7m.Zp2LwT8 and some words of prose behind it"
B64, HEX = base64.b64encode(TEXT), TEXT.hex().encode()
PARTS = [
    *(separator.join(B64[at : at + size] for at in range(0, 60, size)) for size in (1, 2, 3, 4, 5, 6, 8, 10) for separator in (b" ", b"--", b", \n")),
    *(b"-".join(B64[at : at + size] for at in range(0, 60, size)) for size in (1, 4)),
    *(b" ".join(HEX[at : at + size] for at in range(0, 60, size)) for size in (1, 2, 4)),
    b"".join(b"%%%02x" % byte for byte in TEXT),
    b"".join(b"=%02X" % byte for byte in TEXT),
    b"".join(b"&#%d;" % byte for byte in TEXT),
    b"&amp;&lt;&eacute;",
    b"".join(b"\\u%04x" % byte for byte in TEXT)[::-1],
    b"".join(b"0x%02x, " % byte for byte in TEXT),
    b"\\n\\101\\\n=\r\n= \n",
    gzip.compress(TEXT),
    zlib.compress(TEXT),
    zlib.compress(TEXT)[::-1],
    bytes.fromhex("28b52ffd"),
    "Ａ０ é \u200b".encode(),
    b"that with this from them here",
    *(bytes([byte]) for byte in b" %&\\=x0;\n\r\x00\xff-_/+"),
]  # fmt: skip


def decoded(data: bytes, held: Held) -> list[tuple[object, ...]]:
    """All that the decoders make of data."""
    found = (
        *escapes(data, held),
        *turned(data, held),
        *compressed(data, lambda: 1 << 20, held),
    )
    return [
        *((one.names, one.data, one.start, one.end) for one in found),
        *((one.text, one.pieces, one.split) for one in runs(data, held)),
    ]


@pytest.mark.promise("5.7")
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(PARTS), st.binary(max_size=40)), max_size=12),
    st.sampled_from([b""] * 10 + [b"\x00", b" ", b"word "]),
)
def test_decoders_find_the_same_with_it_as_without(parts: list[bytes], padding: bytes) -> None:
    """In little data, and in much, where fewer of them look."""
    pytest.importorskip("hyperscan")
    prepare_marks()
    data = b"".join(parts).ljust(64, b" ") + padding * SMALL
    held = marks(data)
    assert held is not None or padding  # of much data there may be too many places to list
    assert decoded(data, held) == decoded(data, None)


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
    found = [*escapes(data), *turned(data), *compressed(data, lambda: 1 << 20)]
    for run in runs(data):
        found += decode_run(run)
    for decoded in found:
        assert 0 <= decoded.start <= decoded.end <= len(data)
        if decoded.locate and decoded.data:
            start, end = decoded.locate(0, len(decoded.data))
            assert decoded.start <= start <= end <= decoded.end


def test_a_decoder_stops_where_it_is_told() -> None:
    """No more comes out than allowed, and it is marked."""
    import gzip

    (decoded,) = compressed(gzip.compress(bytes(1 << 20)), lambda: 1000)
    assert len(decoded.data) == 1000
    assert not decoded.whole


def test_prose_is_no_groups() -> None:
    """Words of prose are not put together."""
    prose = b"The quick brown fox jumps over the lazy dog, and then it goes home to eat well. " * 3
    assert not [run for run in runs(prose) if run.split]
