"""A git repository of an author, with a guest's pushes over it in memory.

Walking is done here, in steps: dulwich's server would follow a guest's objects without a pause.
"""

from __future__ import annotations

import hashlib
import re
import stat
import weakref
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from anyio.lowlevel import checkpoint
from dulwich.errors import ApplyDeltaError
from dulwich.object_store import DiskObjectStore
from dulwich.objects import S_ISGITLINK, Blob, Commit, Tag, Tree, object_header, parse_tree
from dulwich.pack import DELTA_TYPES, OFS_DELTA, apply_delta, unpack_object_at
from dulwich.refs import DiskRefsContainer, check_ref_format

# An object costs some hundred bytes beside its content, so empty ones need a bound of their own.
MAX_OBJECTS: Final = 50_000
MAX_UNPACKED_BYTES: Final = 64 << 20  # All objects of a pack together, deltas carried out
MAX_REFS: Final = 10_000
# A guest may push a tag of a tag of a tag without end.
_MAX_NESTED_TAGS: Final = 10
_TRAILER_BYTES: Final = 20  # The SHA-1 of all before it
ZERO: Final = b"0" * 40  # No object: its reference is made or removed
ID: Final = re.compile(rb"[0-9a-f]{40}")
# git writes the lines of a commit and of a tag in this order (git-fsck(1) has others as broken).
_COMMIT: Final = re.compile(rb"tree ([0-9a-f]{40})\n((?:parent [0-9a-f]{40}\n)*)")
_TYPES: Final = {each.type_name: each.type_num for each in (Blob, Commit, Tag, Tree)}
_TAG: Final = re.compile(rb"object ([0-9a-f]{40})\ntype (commit|tree|blob|tag)\n")
# Longer numbers have no meaning, and dulwich reads them without an end.
_NUMBER: Final = re.compile(rb"[\x80-\xff]{0,8}[\x00-\x7f]")


class MissingObjectError(KeyError):
    """The repository lacks a named object, or can't read it."""


class GitObject(NamedTuple):
    """An object: the number of its type, and its content."""

    kind: int
    content: bytes

    @property
    def id(self) -> bytes:
        """The object's SHA-1, 40 hexadecimal digits."""
        whole = object_header(self.kind, len(self.content)) + self.content
        return hashlib.sha1(whole, usedforsecurity=False).hexdigest().encode()


class Repository:
    """An author's bare repository, with what was pushed to it."""

    def __init__(self, path: Path) -> None:
        container = DiskRefsContainer(str(path))
        names = sorted(name for name in container.allkeys() if name.startswith(b"refs/"))
        found = ((bytes(name), container.follow(name)[1]) for name in names)
        # Reference → id, without HEAD; pushes change it. `head`: the reference HEAD points to.
        self.refs = {name: bytes(at) for name, at in found if at}
        content = (path / "HEAD").read_bytes()[:300].strip()
        self.head = content.removeprefix(b"ref: ") if content.startswith(b"ref: ") else b""
        self.pushed: dict[bytes, GitObject] = {}
        self._store: Any = DiskObjectStore(str(path / "objects"))
        # An application is not notified of its end; its files are closed with it.
        weakref.finalize(self, self._store.close)

    def get(self, identity: bytes) -> GitObject | None:
        """Return an object by its id."""
        pushed = self.pushed.get(identity)
        if pushed is not None or ID.fullmatch(identity) is None:
            return pushed
        try:
            kind, content = self._store.get_raw(identity)
        except KeyError:
            return None
        return GitObject(kind, bytes(content))

    def __contains__(self, identity: bytes) -> bool:
        """Return whether there is such an object, without reading it."""
        is_id = ID.fullmatch(identity) is not None
        return identity in self.pushed or (is_id and identity in self._store)

    def must(self, identity: bytes) -> GitObject:
        """Raises `MissingObjectError`."""
        found = self.get(identity)
        if found is None:
            raise MissingObjectError(identity)
        return found

    def update(self, name: bytes, old: bytes, new: bytes) -> str:
        """Carry out a push's command; return the refusal, else ""."""
        is_place = name.startswith(b"refs/") and name.count(b"/") >= 2 and len(name) <= 255
        if not is_place or not check_ref_format(name):  # type: ignore[arg-type]
            return "funny refname"
        if self.refs.get(name, ZERO) != old:
            return "fetch first"
        if new == ZERO:
            self.refs.pop(name, None)
            return ""
        if self.get(new) is None:
            return "missing necessary objects"
        if name not in self.refs and len(self.refs) >= MAX_REFS:
            return "too many references"
        self.refs[name] = new
        return ""

    def links(self, identity: bytes) -> list[tuple[int, bytes]]:
        """Return type and id of each referenced object. Raises `MissingObjectError`."""
        kind, content = self.must(identity)
        if kind == Tree.type_num:
            try:
                # A submodule's commit is another repository's.
                return [
                    (Tree.type_num if stat.S_ISDIR(mode) else Blob.type_num, bytes(sha))
                    for _, mode, sha in parse_tree(content, 20)
                    if not S_ISGITLINK(mode)
                ]
            except Exception as error:  # whatever the library makes of a guest's object
                raise MissingObjectError(identity) from error
        # By their first lines alone: dulwich reads a commit of 64 MiB for a quarter of a minute.
        if kind == Commit.type_num and (found := _COMMIT.match(content)):
            parents = found[2].split(b"\n")[:-1]
            return [
                (Tree.type_num, found[1]),
                *((Commit.type_num, line.removeprefix(b"parent ")) for line in parents),
            ]
        if kind == Tag.type_num and (found := _TAG.match(content)):
            return [(_TYPES[found[2]], found[1])]
        if kind == Blob.type_num:
            return []
        raise MissingObjectError(identity)

    def peel(self, identity: bytes) -> bytes:
        """Return the id behind at most `_MAX_NESTED_TAGS` tags, else the id."""
        for _ in range(_MAX_NESTED_TAGS):
            thing = self.get(identity) or GitObject(0, b"")
            found = _TAG.match(thing.content)  # A guest's may be none.
            if thing.kind != Tag.type_num or found is None:
                break
            identity = found[1]
        return identity

    async def walk(self, starts: Iterable[bytes], seen: set[bytes]) -> AsyncGenerator[bytes]:
        """Give new objects below `starts`, and add them to `seen`. `MissingObjectError`: broken."""
        todo = [(0, identity) for identity in starts]
        while todo:
            kind, identity = todo.pop()
            if identity in seen:
                continue
            seen.add(identity)
            yield identity
            if kind != Blob.type_num:
                todo += self.links(identity)
            if len(seen) % 64 == 0:
                await checkpoint()


def read_pack(
    data: bytes, lookup: Callable[[bytes], GitObject | None], objects: dict[bytes, GitObject]
) -> Iterator[None]:
    """Read a guest's pack into `objects`, one object a step. Raises `ValueError`.

    `lookup` finds objects of the repository, on which deltas may build. A delta comes after its
    base, as git writes it.
    """
    end = len(data) - _TRAILER_BYTES
    if end < 12 or data[:8] != b"PACK\0\0\0\x02":
        raise ValueError("not a pack of version 2")
    if hashlib.sha1(memoryview(data)[:end], usedforsecurity=False).digest() != data[end:]:
        raise ValueError("the pack's checksum is wrong")
    count = int.from_bytes(data[8:12], "big")
    if count > MAX_OBJECTS:
        raise ValueError(f"the pack has {count} objects; {MAX_OBJECTS} are allowed")
    offsets: dict[int, GitObject] = {}
    place, room = 12, MAX_UNPACKED_BYTES
    for _ in range(count):
        head = _number(data, place)
        room = _left(room, head[0] & 15 | _value(head[1:]) << 4)
        if head[0] >> 4 & 7 == OFS_DELTA:
            _number(data, place + len(head))
        try:
            unpacked, after = unpack_object_at(data, place, hashlib.sha1)
        except (AssertionError, ApplyDeltaError, ValueError, zlib.error) as error:
            raise ValueError(f"an object can't be unpacked: {error}") from None
        kind, content = unpacked.pack_type_num, b"".join(unpacked.decomp_chunks)
        if kind in DELTA_TYPES:
            at: Any = unpacked.delta_base
            key = b"" if kind == OFS_DELTA else at.hex().encode()
            base = objects.get(key) or lookup(key) if key else offsets.get(place - at)
            if base is None:
                raise ValueError("a delta builds on an object that isn't there")
            # dulwich takes the memory that a delta says it needs.
            room = _left(room, _value(_number(content, len(_number(content, 0)))))
            try:
                kind, content = base.kind, b"".join(apply_delta(base.content, content))
            except (ApplyDeltaError, ValueError) as error:
                raise ValueError(f"a delta can't be carried out: {error}") from None
        elif kind not in {Commit.type_num, Tree.type_num, Blob.type_num, Tag.type_num}:
            raise ValueError(f"an object of the unknown type {kind}")
        offsets[place] = thing = GitObject(kind, content)
        objects[thing.id] = thing
        place = after
        if place > end:
            raise ValueError("the pack ends inside an object")
        yield
    if place != end:
        raise ValueError("the pack goes on behind its last object")


def _left(room: int, size: int) -> int:
    if size > room:
        raise ValueError(f"the pack unpacks to more than {MAX_UNPACKED_BYTES} bytes")
    return room - size


def _number(data: bytes, place: int) -> bytes:
    """Return the bytes of a number. Raises `ValueError`."""
    match = _NUMBER.match(data, place)
    if match is None:
        raise ValueError("a number that has no end")
    return match[0]


def _value(raw: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(raw))


def find_repositories(directory: Path) -> dict[str, Repository | str]:
    """Return each bare repository or its fault, at most two levels deep."""
    found = dict[str, Repository | str]()
    for path in sorted([*directory.glob("*"), *directory.glob("*/*")]):
        is_bare = all((path / name).is_dir() for name in ("objects", "refs"))
        is_link = path.is_symlink() or path.parent.is_symlink()
        if is_bare and not is_link and (path / "HEAD").is_file():
            found[str(path.relative_to(directory))] = _opened(path)
    return found


def _opened(path: Path) -> Repository | str:
    if any(below.is_symlink() for below in path.rglob("*")):
        return "it has a symbolic link, which is not followed; put the file itself there"
    if (path / "objects/info/alternates").exists():
        return "it borrows objects (objects/info/alternates): git repack -a, and remove the file"
    try:
        repository = Repository(path)
        broken = [name for name, at in repository.refs.items() if not repository.get(at)]
    except Exception as error:  # noqa: BLE001 - whatever the library says of a broken repository
        return f"it can't be read: {error}"
    named = "".join(name.decode("utf-8", "replace") for name in broken[:1])
    return f"its reference {named} leads to no object" if broken else repository
