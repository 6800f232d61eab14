"""A repository that is made from what a setting says, commit by commit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from belljar.network.stand_ins.git.packs import BLOB, COMMIT, TREE, GitObject
from belljar.network.stand_ins.git.repository import Kept, Repository

BRANCH = b"refs/heads/main"


class MadeRepository(Repository):
    """One that lies in memory, with a single branch.

    `commits`: the oldest first, each with `author`, `message`, `age_s` before `now_s`, and `files`:
    path → text of all that is in its tree.
    """

    def __init__(self, commits: Sequence[Mapping[str, Any]], kept: Kept, *, now_s: float) -> None:
        super().__init__(Path(), kept)
        self.objects: dict[bytes, GitObject] = {}
        for thing in _history(commits, now_s):
            self.objects[thing.id] = tip = thing
        self.refs = {BRANCH: tip.id}
        self.head = BRANCH

    def _read(self, identity: bytes) -> GitObject | None:
        return self.objects.get(identity)


def _history(commits: Iterable[Mapping[str, Any]], now_s: float) -> Iterator[GitObject]:
    """All objects; the last is the newest commit."""
    parent = b""
    for commit in commits:
        *below, tree = _tree(
            {tuple(path.split("/")): text for path, text in commit["files"].items()}
        )
        yield from (*below, tree)
        who = f"{commit['author']} {int(now_s - commit['age_s'])} +0000"
        lines = [f"tree {tree.id.decode()}", *([f"parent {parent.decode()}"] if parent else [])]
        text = "\n".join((*lines, f"author {who}", f"committer {who}", "", commit["message"], ""))
        made = GitObject(COMMIT, text.encode())
        yield made
        parent = made.id


def _tree(files: Mapping[tuple[str, ...], str]) -> Iterator[GitObject]:
    """What is below a directory, and last its tree (gitformat-pack(5), `git cat-file tree`)."""
    entries: dict[bytes, bytes] = {}
    for name in sorted({path[0] for path in files}):
        inner = {
            path[1:]: text for path, text in files.items() if path[0] == name and len(path) > 1
        }
        things = list(_tree(inner)) if inner else [GitObject(BLOB, files[(name,)].encode())]
        yield from things
        # As git sorts: a directory as if its name ended in a slash.
        mode, order = (b"40000", b"/") if inner else (b"100644", b"")
        entries[name.encode() + order] = (
            mode + b" " + name.encode() + b"\0" + bytes.fromhex(things[-1].id.decode())
        )
    yield GitObject(TREE, b"".join(entries[key] for key in sorted(entries)))
