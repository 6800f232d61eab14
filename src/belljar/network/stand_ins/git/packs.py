"""Git's packs (gitformat-pack(5)), read with bounds."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

MAX_OBJECTS: Final = 50_000
MAX_UNPACKED_BYTES: Final = 64 << 20  # All objects of a pack together, deltas carried out
COMMIT, TREE, BLOB, TAG = 1, 2, 3, 4
NAMES: Final = {COMMIT: b"commit", TREE: b"tree", BLOB: b"blob", TAG: b"tag"}
_OFS_DELTA, _REF_DELTA = 6, 7
_TRAILER_BYTES: Final = 20


class PackError(ValueError):
    """Broken, incomplete or beyond the bounds."""


@dataclass(frozen=True, slots=True)
class GitObject:
    """An object: its type's number and its content."""

    kind: int
    content: bytes

    @property
    def id(self) -> bytes:
        """Its SHA-1, 40 hexadecimal digits."""
        head = b"%s %d\0" % (NAMES[self.kind], len(self.content))
        return hashlib.sha1(head + self.content, usedforsecurity=False).hexdigest().encode()


Lookup = Callable[[bytes], GitObject | None]


def pack_header(count: int) -> bytes:
    """How a pack of `count` objects begins."""
    return b"PACK" + (2).to_bytes(4, "big") + count.to_bytes(4, "big")


def pack_entry(thing: GitObject) -> bytes:
    """An object in a pack, whole."""
    size = len(thing.content)
    head = bytearray([thing.kind << 4 | size & 15])
    size >>= 4
    while size:
        head[-1] |= 0x80
        head.append(size & 0x7F)
        size >>= 7
    return bytes(head) + zlib.compress(thing.content, 1)


@dataclass(kw_only=True)
class PackReader:
    """Reads a pack that lies in memory.

    `lookup` finds objects that deltas build on and that the repository has. Go through `steps()`;
    then `objects` has all of the pack's. Memory: `MAX_UNPACKED_BYTES` and the pack.
    """

    data: bytes
    lookup: Lookup
    objects: dict[bytes, GitObject] = field(default_factory=dict)
    _offsets: dict[int, bytes] = field(default_factory=dict)
    _waiting: dict[bytes, list[tuple[int, bytes]]] = field(default_factory=dict)
    _unpacked_bytes: int = 0

    def steps(self) -> Iterator[None]:
        """One object a step. Raises `PackError`."""
        if len(self.data) < 12 + _TRAILER_BYTES or self.data[:8] != pack_header(0)[:8]:
            raise PackError("not a pack of version 2")
        content, trailer = self.data[:-_TRAILER_BYTES], self.data[-_TRAILER_BYTES:]
        if hashlib.sha1(content, usedforsecurity=False).digest() != trailer:
            raise PackError("the pack's checksum is wrong")
        count = int.from_bytes(self.data[8:12], "big")
        if count > MAX_OBJECTS:
            raise PackError(f"the pack has {count} objects; {MAX_OBJECTS} are allowed")
        place = 12
        for _ in range(count):
            place = self._entry(place)
            yield
        if place != len(self.data) - _TRAILER_BYTES:
            raise PackError("the pack goes on behind its last object")
        if self._waiting:
            raise PackError("a delta builds on an object that isn't there")

    def _entry(self, start: int) -> int:
        kind, size, place = self._head(start)
        if kind in NAMES:
            content, end = self._inflated(place, size)
            self._keep(start, GitObject(kind, content))
            return end
        base, place = self._base(kind, start, place)
        delta, end = self._inflated(place, size)
        known = self.objects.get(base) or self.lookup(base)
        if known is None:
            self._waiting.setdefault(base, []).append((start, delta))
        else:
            self._keep(start, GitObject(known.kind, self._patched(known.content, delta)))
        return end

    def _head(self, place: int) -> tuple[int, int, int]:
        byte = self._byte(place)
        kind, size, shift = byte >> 4 & 7, byte & 15, 4
        while byte & 0x80:
            place += 1
            byte = self._byte(place)
            size |= (byte & 0x7F) << shift
            shift += 7
            if shift > 60:
                raise PackError("an object's size is no number that can be meant")
        return kind, size, place + 1

    def _base(self, kind: int, start: int, place: int) -> tuple[bytes, int]:
        """The base's id, and where the delta begins."""
        if kind == _REF_DELTA:
            return self.data[place : place + 20].hex().encode(), place + 20
        if kind != _OFS_DELTA:
            raise PackError(f"an object of the unknown type {kind}")
        byte = self._byte(place)
        back = byte & 0x7F
        while byte & 0x80:
            place += 1
            byte = self._byte(place)
            back = (back + 1) << 7 | byte & 0x7F
            if back > len(self.data):
                break
        base = self._offsets.get(start - back)
        if base is None:
            raise PackError("a delta builds on what is no object before it")
        return base, place + 1

    def _inflated(self, place: int, size: int) -> tuple[bytes, int]:
        self._spend(size)
        inflater = zlib.decompressobj()
        pieces, grown, view = [], 0, memoryview(self.data)[:-_TRAILER_BYTES]
        try:
            while not inflater.eof and place < len(view):
                packed = view[place : place + 65536]
                piece = inflater.decompress(packed, size - grown + 1)
                taken = len(packed) - len(inflater.unused_data) - len(inflater.unconsumed_tail)
                place, grown = place + taken, grown + len(piece)
                pieces.append(piece)
                if grown > size or not (taken or piece):
                    break
        except zlib.error as error:
            raise PackError(f"an object can't be unpacked: {error}") from None
        if not inflater.eof or grown != size:
            raise PackError("an object is not as long as it says")
        return b"".join(pieces), place

    def _spend(self, size: int) -> None:
        self._unpacked_bytes += size
        if self._unpacked_bytes > MAX_UNPACKED_BYTES:
            raise PackError(f"the pack unpacks to more than {MAX_UNPACKED_BYTES} bytes")

    def _byte(self, place: int) -> int:
        if place >= len(self.data) - _TRAILER_BYTES:
            raise PackError("the pack ends inside an object")
        return self.data[place]

    def _keep(self, start: int, thing: GitObject) -> None:
        ready = [(start, thing)]
        while ready:
            offset, one = ready.pop()
            identity = one.id
            self._offsets[offset] = identity
            self.objects[identity] = one
            for waiting, delta in self._waiting.pop(identity, []):
                ready.append((waiting, GitObject(one.kind, self._patched(one.content, delta))))

    def _patched(self, base: bytes, delta: bytes) -> bytes:
        base_size, place = _size(delta, 0)
        size, place = _size(delta, place)
        if base_size != len(base):
            raise PackError("a delta is made for another object")
        self._spend(size)
        return apply_delta(base, delta, place, size)


def apply_delta(base: bytes, delta: bytes, place: int, size: int) -> bytes:
    """From `place` on into exactly `size` bytes. Raises `PackError`."""
    out = bytearray()
    while place < len(delta):
        code = delta[place]
        place += 1
        if code & 0x80:
            numbers = []
            for bit in range(7):
                present = code >> bit & 1
                numbers.append(_at(delta, place) if present else 0)
                place += present
            start = int.from_bytes(bytes(numbers[:4]), "little")
            length = int.from_bytes(bytes(numbers[4:]), "little") or 0x10000
            piece = base[start : start + length]
        else:
            length, piece = code, delta[place : place + code]
            place += code
        if not length or len(piece) != length or len(out) + length > size:
            raise PackError("a delta goes beyond what it says")
        out += piece
    if len(out) != size:
        raise PackError("a delta makes less than it says")
    return bytes(out)


def _size(delta: bytes, place: int) -> tuple[int, int]:
    size = shift = 0
    while shift <= 56:
        byte = _at(delta, place)
        size |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not byte & 0x80:
            return size, place
    raise PackError("a delta's size is no number that can be meant")


def _at(delta: bytes, place: int) -> int:
    if place >= len(delta):
        raise PackError("a delta ends inside an instruction")
    return delta[place]
