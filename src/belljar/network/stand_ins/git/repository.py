"""A bare repository, read-only, and pushes in memory."""

from __future__ import annotations

import re
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from anyio.lowlevel import checkpoint

from belljar.network.stand_ins.git.packs import BLOB, COMMIT, NAMES, TAG, TREE, GitObject

# What all repositories of a stand-in keep of pushes; beyond, a push is on record and refused
MAX_PUSHED_BYTES: Final = 64 << 20
MAX_REFS: Final = 10_000
MAX_DEPTH: Final = 4
ZERO: Final = b"0" * 40
ID: Final = re.compile(rb"[0-9a-f]{40}")
_BAD_REF: Final = re.compile(rb"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(?:/|$)|[./]$")


class MissingObjectError(KeyError):
    """The repository lacks a named object."""


def find_repositories(
    directory: Path, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Path]]:
    """Name and path of each; links are not followed."""
    if depth > MAX_DEPTH or not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if path.is_symlink() or not path.is_dir() or path.name.startswith("."):
            continue
        is_bare = all((path / name).is_dir() for name in ("objects", "refs"))
        if is_bare and (path / "HEAD").is_file():
            yield prefix + path.name, path
        else:
            yield from find_repositories(path, f"{prefix}{path.name}/", depth + 1)


def why_not(path: Path) -> str:
    """Why a bare repository can't be served; "" when it can."""
    if (path / "objects/info/alternates").exists():
        hint = "run git repack -a in it and remove the file"
        return f"it borrows objects from elsewhere (objects/info/alternates); {hint}"
    config = path / "config"
    settings = config.read_bytes()[: 1 << 16] if config.is_file() else b""
    if re.search(rb"(?i)objectformat\s*=\s*sha256", settings):
        return "it is a SHA-256 repository, which isn't served"
    return ""


def is_ref(name: bytes) -> bool:
    """A name to push to (git-check-ref-format(1))."""
    is_place = name.startswith(b"refs/") and name.count(b"/") >= 2
    return is_place and len(name) <= 255 and _BAD_REF.search(name) is None


@dataclass(slots=True)
class Kept:
    """What a stand-in's repositories keep of pushes."""

    count_bytes: int = 0


class Repository:
    """One repository; `kept` is shared with the others of its stand-in."""

    def __init__(self, path: Path, kept: Kept | None = None) -> None:
        self._path = path
        self._pushed: dict[bytes, GitObject] = {}
        self._kept = kept or Kept()

    @cached_property
    def _store(self) -> Any:  # noqa: ANN401 - dulwich's, imported when it is needed
        from dulwich.object_store import DiskObjectStore

        store = DiskObjectStore(str(self._path / "objects"))
        # An application is not notified of its end; its files are closed with it.
        weakref.finalize(self, store.close)
        return store

    @cached_property
    def refs(self) -> dict[bytes, bytes]:
        """Reference → id, without HEAD. Pushes change it."""
        from dulwich.refs import DiskRefsContainer

        container = DiskRefsContainer(str(self._path))
        names = sorted(name for name in container.allkeys() if name.startswith(b"refs/"))
        found = {bytes(name): container.follow(name)[1] for name in names}
        return {name: bytes(identity) for name, identity in found.items() if identity is not None}

    @cached_property
    def head(self) -> bytes:
        """The reference that HEAD points to, or nothing."""
        content = (self._path / "HEAD").read_bytes()[:300].strip()
        return content.removeprefix(b"ref: ") if content.startswith(b"ref: ") else b""

    def get(self, identity: bytes) -> GitObject | None:
        """An object by its id."""
        pushed = self._pushed.get(identity)
        if pushed is not None or ID.fullmatch(identity) is None:
            return pushed
        try:
            kind, content = self._store.get_raw(identity)
        except KeyError:
            return None
        return GitObject(kind, bytes(content))

    def must(self, identity: bytes) -> GitObject:
        """Raises `MissingObjectError`."""
        found = self.get(identity)
        if found is None:
            raise MissingObjectError(identity)
        return found

    def add(self, objects: Mapping[bytes, GitObject]) -> bool:
        """False beyond `MAX_PUSHED_BYTES`; 200 are added for each."""
        fresh = {name: thing for name, thing in objects.items() if name not in self._pushed}
        size = sum(len(thing.content) + 200 for thing in fresh.values())
        if self._kept.count_bytes + size > MAX_PUSHED_BYTES:
            return False
        self._pushed.update(fresh)
        self._kept.count_bytes += size
        return True

    def update(self, name: bytes, old: bytes, new: bytes) -> str:
        """One command of a push; why it is refused, else ""."""
        if not is_ref(name):
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


def targets(thing: GitObject) -> list[tuple[int, bytes]]:
    """Type and id; what can't be read is left out."""
    if thing.kind == TREE:
        entries, place = list[tuple[int, bytes]](), 0
        while (end := thing.content.find(b"\0", place)) >= 0:
            identity = thing.content[end + 1 : end + 21]
            mode = thing.content[place:end].partition(b" ")[0]
            place = end + 21
            # A submodule's commit is another repository's.
            if mode != b"160000" and len(identity) == 20:
                kind = TREE if mode in {b"40000", b"040000"} else BLOB
                entries.append((kind, identity.hex().encode()))
        return entries
    head = thing.content.partition(b"\n\n")[0].split(b"\n")
    words = [line.partition(b" ") for line in head if not line.startswith(b" ")]
    if thing.kind == COMMIT:
        kinds = {b"tree": TREE, b"parent": COMMIT}
        return [
            (kinds[key], value) for key, _, value in words if key in kinds and ID.fullmatch(value)
        ]
    if thing.kind == TAG:
        fields = {key: value for key, _, value in words}
        target = fields.get(b"object", b"")
        kind = next((number for number, name in NAMES.items() if name == fields.get(b"type")), 0)
        return [(kind, target)] if kind and ID.fullmatch(target) else []
    return []


def parents(commit: GitObject) -> list[bytes]:
    """A commit's parents."""
    return [identity for kind, identity in targets(commit) if kind == COMMIT]


def peel(repository: Repository, identity: bytes) -> bytes:
    """What a tag leads to (at most 10 tags), else the id."""
    for _ in range(10):
        thing = repository.get(identity)
        if thing is None or thing.kind != TAG or not targets(thing):
            break
        identity = targets(thing)[0][1]
    return identity


async def ancestors(
    repository: Repository, starts: Iterable[bytes], stop: Iterable[bytes]
) -> set[bytes]:
    """From `starts`, without the parents of `stop`."""
    ends, found, todo = set(stop), set[bytes](), list(starts)
    while todo:
        identity = todo.pop()
        if identity in found:
            continue
        thing = repository.get(identity)
        if thing is None or thing.kind != COMMIT:
            continue
        found.add(identity)
        if identity not in ends:
            todo += parents(thing)
        if len(found) % 256 == 0:
            await checkpoint()
    return found


async def depths(
    repository: Repository, starts: Iterable[bytes], max_depth: int
) -> tuple[set[bytes], set[bytes]]:
    """Commits up to a depth (1: the starts), and the border."""
    found, border, level = set[bytes](), set[bytes](), list(starts)
    for depth in range(1, max_depth + 1):
        following: list[bytes] = []
        for identity in level:
            thing = repository.get(identity)
            if identity in found or thing is None or thing.kind != COMMIT:
                continue
            found.add(identity)
            older = parents(thing)
            if depth == max_depth and older:
                border.add(identity)
            following += older
        await checkpoint()
        if not following:
            break
        level = following
    return found, border


async def missing(
    repository: Repository, wants: Iterable[bytes], known: set[bytes], border: set[bytes]
) -> AsyncIterator[bytes]:
    """Ids, each once, of what a client lacks for `wants`.

    It has the commits `known` with all they hold; beyond
    `border` nothing is sent. Raises `MissingObjectError`.
    """
    seen: set[bytes] = set()
    roots: list[bytes] = []
    todo = list(wants)
    while todo:
        identity = todo.pop()
        if identity in seen or identity in known:
            continue
        seen.add(identity)
        yield identity
        for kind, target in targets(repository.must(identity)):
            if kind not in {COMMIT, TAG}:
                roots.append(target)
            elif target in known:
                # What its neighbour already has need not be sent again.
                trees = [one for kind, one in targets(repository.must(target)) if kind == TREE]
                async for _ in _below(repository, trees, seen):
                    pass
            elif identity not in border:
                todo.append(target)
        if len(seen) % 64 == 0:
            await checkpoint()
    async for identity in _below(repository, roots, seen):
        yield identity


async def _below(
    repository: Repository, roots: list[bytes], seen: set[bytes]
) -> AsyncIterator[bytes]:
    """Trees, or a tag's blobs, and all below them."""
    todo = [(0, identity) for identity in roots]
    while todo:
        kind, identity = todo.pop()
        if identity in seen:
            continue
        seen.add(identity)
        yield identity
        if kind != BLOB:
            todo += targets(repository.must(identity))
        if len(seen) % 64 == 0:
            await checkpoint()


BRANCH = b"refs/heads/main"


class MadeRepository(Repository):
    """In memory, with a single branch.

    `commits`: the oldest first, each with `author`, `message`, `age_s` before `now_s`, and `files`:
    path → text of all that is in its tree.
    """

    def __init__(self, commits: Sequence[Mapping[str, Any]], kept: Kept, *, now_s: float) -> None:
        from dulwich.index import commit_tree
        from dulwich.object_store import MemoryObjectStore
        from dulwich.objects import Blob, Commit

        super().__init__(Path(), kept)
        self._store, tips = MemoryObjectStore(), list[Any]()
        for commit in commits:
            blobs = []
            for path, text in commit["files"].items():
                blob = Blob.from_string(text.encode())
                self._store.add_object(blob)
                blobs.append((path.encode(), blob.id, 0o100644))
            made = Commit()
            made.tree, made.parents = commit_tree(self._store, blobs), tips
            made.author = made.committer = commit["author"].encode()
            made.author_time = made.commit_time = int(now_s - commit["age_s"])
            made.author_timezone = made.commit_timezone = 0
            made.message = commit["message"].encode() + b"\n"
            self._store.add_object(made)
            tips = [made.id]
        self.refs, self.head = {BRANCH: bytes(tips[0])}, BRANCH
