"""Packs: what git makes is read, what attackers make is refused within the bounds."""

from __future__ import annotations

import hashlib
import subprocess
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.stand_ins import git_store as packs
from belljar.network.stand_ins.git_store import GitObject, PackError, read_pack

BLOB = 3


def pack_header(count: int) -> bytes:
    """How a pack of so many objects begins."""
    return b"PACK\0\0\0\x02" + count.to_bytes(4, "big")


def pack_entry(thing: GitObject) -> bytes:
    """An object in a pack, whole."""
    return entry(thing.kind, b"", thing.content)


def sealed(body: bytes) -> bytes:
    """A pack with its checksum."""
    return body + hashlib.sha1(body).digest()  # noqa: S324


def read(data: bytes, known: dict[bytes, GitObject] | None = None) -> dict[bytes, GitObject]:
    """All of a pack."""
    objects: dict[bytes, GitObject] = {}
    for _ in read_pack(data, (known or {}).get, objects):
        pass
    return objects


def varint(number: int) -> bytes:
    """A size in a delta."""
    out = bytearray()
    while True:
        out.append(number & 0x7F | (0x80 if number > 0x7F else 0))
        number >>= 7
        if not number:
            return bytes(out)


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


def test_packs_of_gits_own(tmp_path: Path) -> None:
    """With deltas of both kinds; the ids are git's, and git takes ours."""

    def git(*arguments: str, given: bytes = b"") -> bytes:
        argv = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
        return subprocess.run(argv, input=given, capture_output=True, check=True).stdout

    git("init", "-q")
    for number in range(5):
        (tmp_path / "file").write_text(
            "".join(f"line {n} {n * n}\n" for n in range(500)) + f"end {number}\n"
        )
        git("add", "file")
        git("commit", "-qm", f"commit {number}")
    names = git("rev-list", "--objects", "--all")
    for option in ("--delta-base-offset", "--no-reuse-delta"):
        pack = git(
            "pack-objects",
            "-q",
            "--stdout",
            option,
            given=b"".join(line.split()[0] + b"\n" for line in names.splitlines()),
        )
        objects = read(pack)
        assert set(objects) == {line.split()[0] for line in names.splitlines()}
        assert any(pack[12 + n] for n in range(9))
    thin = git("pack-objects", "-q", "--stdout", "--thin", "--revs", given=b"HEAD\n^HEAD~1\n")
    assert set(read(thin, objects)) < set(objects)
    with pytest.raises(PackError, match="isn't there"):
        read(thin)
    ours = sealed(pack_header(len(objects)) + b"".join(map(pack_entry, objects.values())))
    git("index-pack", "--stdin", "--strict", given=ours)


@pytest.mark.parametrize(
    ("pack", "reason"),
    [
        (b"", "not a pack"),
        (sealed(b"PACK\0\0\0\x03\0\0\0\0"), "not a pack"),
        (pack_header(0) + bytes(20), "checksum"),
        (sealed(pack_header(packs.MAX_OBJECTS + 1)), "allowed"),
        (sealed(pack_header(1)), "no end|unpacked|ends inside"),
        (sealed(pack_header(0) + b"more"), "goes on"),
        (sealed(pack_header(1) + b"\x50" + zlib.compress(b"")), "unknown type"),
        (sealed(pack_header(1) + b"\xb5" + b"\xff" * 12), "no end"),
        (sealed(pack_header(1) + b"\x35" + zlib.compress(b"1234")), "expected size"),
        (sealed(pack_header(1) + b"\x33" + zlib.compress(bytes(10 << 20))), "expected size"),
        (sealed(pack_header(1) + b"\x35xxxxxxxxxx"), "can't be unpacked"),
        (sealed(pack_header(1) + entry(6, b"\x05", b"")), "isn't there"),
        (sealed(pack_header(1) + entry(6, b"\xff" * 40, b"")), "no end"),
        (
            sealed(pack_header(1) + entry(3, b"", b"", size=packs.MAX_UNPACKED_BYTES + 1)),
            "more than",
        ),
    ],
)
def test_packs_that_are_refused(pack: bytes, reason: str) -> None:
    """Lies about lengths, bombs, circles, ends."""
    with pytest.raises(PackError, match=reason):
        read(pack)


@pytest.mark.parametrize(
    "delta",
    [varint(9) + varint(1) + b"\x01a", varint(10) + varint(1) + b"\x02ab", varint(10) + varint(5) + b"\x01a", varint(10) + varint(5) + b"\x91\x06\x05",
     varint(10) + varint(0) + b"\0", varint(10) + varint(1) + b"\x91", varint(10) + b"\xff" * 12, varint(10) + varint(1) + b"\x02a"],
)  # fmt: skip
def test_deltas_that_are_refused(delta: bytes) -> None:
    """Another base, more or less than it says, copies beyond the base, instructions that end."""
    base = GitObject(BLOB, b"a" * 10)
    with pytest.raises(PackError):
        read(
            sealed(
                pack_header(2) + pack_entry(base) + entry(7, bytes.fromhex(base.id.decode()), delta)
            )
        )


def test_a_delta_bomb_is_refused() -> None:
    """A few bytes that say they make gigabytes cost nothing but the refusal."""
    base = GitObject(BLOB, b"a" * 0x10000)
    bomb = varint(0x10000) + varint(1 << 33) + b"\x80" * 200_000
    with pytest.raises(PackError, match="more than"):
        read(
            sealed(
                pack_header(2) + pack_entry(base) + entry(7, bytes.fromhex(base.id.decode()), bomb)
            )
        )


def test_a_lie_about_a_length_costs_no_memory() -> None:
    """What goes beyond its stated length, packed or by a delta, is given up at that length."""
    base = GitObject(BLOB, b"a" * 0x10000)
    copies = varint(0x10000) + varint(10) + b"\x80" * 2000
    lies = [
        sealed(pack_header(1) + b"\x35" + zlib.compress(bytes(100 << 20))),
        sealed(
            pack_header(2) + pack_entry(base) + entry(7, bytes.fromhex(base.id.decode()), copies)
        ),
    ]
    for pack in lies:
        tracemalloc.start()
        with pytest.raises(PackError):
            read(pack)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 8 << 20


@given(st.binary(max_size=300), st.integers(0, 4), st.booleans())
@settings(deadline=None)
def test_any_pack_is_read_or_refused(body: bytes, count: int, begun: bool) -> None:
    """With a right checksum, so that the rest is looked at."""
    start = pack_entry(GitObject(BLOB, b"base")) if begun else b""
    try:
        read(sealed(pack_header(count) + start + body))
    except PackError as error:
        assert str(error)  # noqa: PT017 - both ways are right; this one must say why
