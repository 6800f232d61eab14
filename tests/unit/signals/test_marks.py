"""Looking first at what data may hold hides nothing from any decoder."""

from __future__ import annotations

import base64
import gzip
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.signals.decoders import SMALL, compressed, escapes, turned
from belljar.signals.prefilter import Held, Prefilter
from belljar.signals.runs import runs
from belljar.signals.scanner import marks, prepare_marks

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


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    """The fast pass is there from the first byte."""
    pytest.importorskip("hyperscan")
    prepare_marks()


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
@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PARTS), st.binary(max_size=40)), max_size=12))
def test_decoders_find_the_same_with_it_as_without(parts: list[bytes]) -> None:
    """In little data and in much."""
    data = b"".join(parts).ljust(64, b" ")
    held = marks(data)
    assert held is not None
    assert decoded(data, held) == decoded(data, None)


@pytest.mark.promise("5.7")
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(PARTS), st.binary(max_size=40)), max_size=12),
    st.sampled_from([b"\x00", b" ", b"word "]),
)
def test_in_large_data_too(parts: list[bytes], padding: bytes) -> None:
    """Where fewer decoders look, they find the same."""
    data = b"".join(parts) + padding * SMALL
    held = marks(data)
    assert held is not None
    assert decoded(data, held) == decoded(data, None)


def test_too_many_places_are_not_listed() -> None:
    """Then nothing is known, and everything is looked for."""
    assert Prefilter({"a": b"a"}, places=frozenset({"a"})).look(b"a" * 70_000) is None
