"""Records of trees: what is written is read, and nothing hostile comes through as something
else."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.talking import talking

from belljar.channel import trees
from belljar.channel.trees import RecordKind, TreeReader, TreeRecord, encode, stream_bytes
from belljar.errors import ProtocolViolation

LEAVE = TreeRecord(path="", kind=RecordKind.LEAVE)
ROOT = TreeRecord(path="", kind=RecordKind.ENTER, mode=0o755)
HEAD = struct.Struct("<BHQqIHH")
NAMES = st.binary(min_size=1, max_size=20).filter(
    lambda name: name not in (b".", b"..") and not set(name) & set(b"/\0")
)


def raw(
    kind: int,
    name: bytes = b"",
    *,
    mode: int = 0o644,
    size: int = 0,
    ns: int = 0,
    link: bytes = b"",
) -> bytes:
    return HEAD.pack(kind, mode, size, 0, ns, len(name), len(link)) + name + link


def reader(*, max_entries: int = 100, max_bytes: int = 10_000) -> TreeReader:
    return TreeReader(contents=True, depth=64, max_entries=max_entries, max_bytes=max_bytes)


@given(files=st.dictionaries(NAMES, st.binary(max_size=300), max_size=8), cut=st.integers(1, 50))
def test_a_tree_comes_back_however_it_is_cut(files: dict[bytes, bytes], cut: int) -> None:
    """Names of any bytes and contents, in pieces of any size."""
    stream = encode(ROOT)
    for name, content in files.items():
        path = os.fsdecode(name)
        stream += encode(
            TreeRecord(path=path, kind=RecordKind.FILE, mode=0o640, size_bytes=len(content))
        )
        stream += content
    stream += encode(LEAVE)
    taking, found, last = reader(), dict[bytes, bytes](), b""
    for at in range(0, len(stream), cut):
        for item in taking.feed(stream[at : at + cut]):
            if isinstance(item, bytes):
                found[last] += item
            elif item.kind is RecordKind.FILE:
                last = os.fsencode(item.path)
                found[last] = b""
    taking.finish()
    assert found == files
    assert len(stream) <= stream_bytes(max_entries=100, max_bytes=10_000)


ANY_RECORD = st.builds(
    raw,
    st.integers(0, 8),
    st.sampled_from([b"", b"a", b"..", b"a/b"]),
    size=st.sampled_from([0, 3]),
)


@given(st.lists(st.one_of(st.binary(max_size=60), ANY_RECORD)))
def test_hostile_bytes(parts: list[bytes]) -> None:
    """Whatever comes: records with plain names below the first, or a `ProtocolViolation`."""
    taking = reader()
    try:
        for part in parts:
            for item in taking.feed(part):
                if isinstance(item, TreeRecord):
                    assert not item.path.startswith("/")
                    assert not {".", ".."} & set(item.path.split("/"))
        taking.finish()
    except ProtocolViolation:
        pass


HOSTILE_NAMES = (b"..", b".", b"/etc", b"a/b", b"a\0b", b"", b"x" * 256)
ODD: list[dict[str, Any]] = [
    *({"link": b"x"}, {"size": 10_001}, {"size": 1 << 63}, {"mode": 0o10000}, {"ns": 10**9})
]
INSIDE = [
    *(raw(1, name) for name in HOSTILE_NAMES),
    *(raw(1, b"f", **odd) for odd in ODD),
    *(raw(3, b"l"), raw(3, b"l", link=b"a\0b"), raw(4, b"f", size=1), raw(6, b"named")),
    *(raw(6) + raw(6), raw(6) + raw(1, b"after"), raw(1, b"f") * 100, raw(5, b"d") * 64),
    raw(2, b"d"),
]
DISHONEST = [
    *(raw(1, b"named"), raw(6), raw(0), raw(7), raw(3, link=b"x"), raw(4), raw(2)),
    *(raw(5) + inside for inside in INSIDE),
]


@pytest.mark.promise("4.3")
def test_what_no_honest_guest_sends_ends_the_cell() -> None:
    """Names that lead elsewhere, kinds that are none, more than was asked for, after the end."""
    for stream in DISHONEST:
        refused(reader(), stream)


def refused(taking: TreeReader, stream: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        list(taking.feed(stream))


def test_a_look_enters_nothing_that_was_not_asked_for() -> None:
    """A list has one level and a look at a path none, however few entries they are."""
    for depth, stream in ((1, raw(5) + raw(5, b"d")), (0, raw(5))):
        refused(TreeReader(contents=False, depth=depth, max_entries=9, max_bytes=0), stream)


@pytest.mark.parametrize("stream", [b"", raw(5), raw(1, size=3) + b"xx", raw(5) + raw(6)[:-1]])
def test_an_early_end_is_no_end(stream: bytes) -> None:
    """A walk that breaks off is a violation, not a small tree."""
    taking = reader()
    list(taking.feed(stream))
    with pytest.raises(ProtocolViolation):
        taking.finish()


def test_all_names_together_are_bounded() -> None:
    """Each of their bytes takes many on this host."""
    taking = reader(max_entries=10_000)
    entries = (raw(RecordKind.LINK, b"%d" % n, link=b"x" * 4000) for n in range(3_000))
    with pytest.raises(OSError, match="characters"):
        list(taking.feed(raw(5) + b"".join(entries)))


# ---- over a fake guest

WALK, REMOVE = 5, 7


async def take(items: Iterator[TreeRecord | bytes]) -> None:
    list(items)


@pytest.mark.anyio
async def test_a_guest_that_lies() -> None:
    """A walk without an entry and a count of another size are violations."""
    async with talking() as (guest, client):
        guest.answers[REMOVE] = b"123"
        with pytest.raises(ProtocolViolation):
            await trees.walk(client, "/x", take, user="", cwd="/", depth=0, max_entries=1)
        for answer in (b"123", b"\xff" * 8):
            guest.answers[REMOVE] = answer
            with pytest.raises(ProtocolViolation):
                await trees.remove(client, "/x", user="", cwd="/", recursive=False)
