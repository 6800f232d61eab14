"""Packs: what git makes is read, what attackers make is refused within the bounds."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.stand_ins.git import (
    BROKEN,
    MAX_OBJECTS,
    MAX_UNPACKED_BYTES,
    GitObject,
    read_pack,
)

BASE = GitObject(3, b"a" * 10)
VERSION_3 = b"PACK\0\0\0\x03\0\0\0\0"
LARGE = GitObject(3, b"a" * 0x10000)


def pack(count: int, *entries: bytes) -> bytes:
    """A pack that says it has so many objects, with its checksum."""
    body = b"PACK\0\0\0\x02" + count.to_bytes(4, "big") + b"".join(entries)
    return body + hashlib.sha1(body).digest()  # noqa: S324


def read(data: bytes, known: dict[bytes, GitObject] | None = None) -> dict[bytes, GitObject]:
    objects: dict[bytes, GitObject] = {}
    for _ in read_pack(data, (known or {}).get, objects):
        pass
    return objects


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def entry(kind: int, base: bytes, delta: bytes, size: int | None = None) -> bytes:
    """An object in a pack; `size`: what it says of its length."""
    stated = len(delta) if size is None else size
    head = bytearray([kind << 4 | stated & 15])
    stated >>= 4
    while stated:
        head[-1] |= 0x80
        head.append(stated & 0x7F)
        stated >>= 7
    return bytes(head) + base + zlib.compress(delta)


def whole(thing: GitObject) -> bytes:
    return entry(thing.kind, b"", thing.content)


def changed(base: GitObject, delta: bytes) -> bytes:
    """A pack of an object, and one made of it."""
    return pack(2, whole(base), entry(7, bytes.fromhex(base.id.decode()), delta))


def test_packs_of_gits_own(tmp_path: Path) -> None:
    """With deltas of both kinds; the ids are git's, and git takes ours."""

    def git(*arguments: str, given: bytes = b"") -> bytes:
        argv = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
        return subprocess.run(argv, input=given, capture_output=True, check=True).stdout

    git("init", "-q")
    lines = "".join(f"line {n} {n * n}\n" for n in range(500))
    for number in range(5):
        (tmp_path / "file").write_text(f"{lines}end {number}\n")
        git("add", "file")
        git("commit", "-qm", f"commit {number}")
    names = {line.split()[0] for line in git("rev-list", "--objects", "--all").splitlines()}
    for option in ("--delta-base-offset", "--no-reuse-delta"):
        made = git("pack-objects", "-q", "--stdout", option, given=b"\n".join(names) + b"\n")
        objects = read(made)
        assert set(objects) == names
    thin = git("pack-objects", "-q", "--stdout", "--thin", "--revs", given=b"HEAD\n^HEAD~1\n")
    assert set(read(thin, objects)) < set(objects)
    with pytest.raises(ValueError, match="isn't there"):
        read(thin)
    ours = pack(len(objects), *map(whole, objects.values()))
    git("index-pack", "--stdin", "--strict", given=ours)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a pack"),
        (VERSION_3 + hashlib.sha1(VERSION_3).digest(), "not a pack"),  # noqa: S324
        (pack(0)[:-20] + bytes(20), "checksum"),
        (pack(MAX_OBJECTS + 1), "allowed"),
        (pack(1), "no end|header check|ends inside"),
        (pack(0, b"more"), "goes on"),
        (pack(1, b"\x50" + zlib.compress(b"")), "unknown type"),
        (pack(1, b"\xb5" + b"\xff" * 12), "no end"),
        (pack(1, b"\x35" + zlib.compress(b"1234")), "expected size"),
        (pack(1, b"\x33" + zlib.compress(bytes(10 << 20))), "expected size"),
        (pack(1, b"\x35xxxxxxxxxx"), "header check"),
        (pack(1, entry(6, b"\x05", b"")), "isn't there"),
        (pack(1, entry(6, b"\xff" * 40, b"")), "no end"),
        (pack(1, entry(3, b"", b"", size=MAX_UNPACKED_BYTES + 1)), "more than"),
        # A few bytes that say they make gigabytes cost nothing but the refusal
        (changed(LARGE, varint(0x10000) + varint(1 << 33) + b"\x80" * 200_000), "more than"),
    ],
)
def test_packs_that_are_refused(data: bytes, reason: str) -> None:
    """Lies about lengths, bombs, circles, ends."""
    with pytest.raises(BROKEN, match=reason):
        read(data)


@given(st.binary(max_size=300), st.integers(0, 4), st.booleans())
@settings(deadline=None)
def test_any_pack_is_read_or_refused(body: bytes, count: int, begun: bool) -> None:
    """With a right checksum, so that the rest is looked at."""
    with contextlib.suppress(*BROKEN):
        read(pack(count, whole(BASE) if begun else b"", body))
