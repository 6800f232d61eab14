"""A repository with what was pushed over it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from dulwich.object_store import MemoryObjectStore
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.stand_ins import git_store as repositories
from belljar.network.stand_ins.git_store import (
    ZERO,
    GitObject,
    MissingObjectError,
    Quota,
    Repository,
)

COMMIT, TREE, BLOB, TAG = 1, 2, 3, 4
NAMES = {COMMIT: "commit", TREE: "tree", BLOB: "blob"}


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """An empty bare repository."""
    path = tmp_path / "team" / "thing.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(path)], check=True)
    return path


def commit(tree: GitObject, *parents: GitObject, text: str = "x") -> GitObject:
    """A commit."""
    heads = [f"tree {tree.id.decode()}", *(f"parent {p.id.decode()}" for p in parents)]
    people = ["author a <a> 0 +0000", "committer a <a> 0 +0000"]
    return GitObject(COMMIT, "\n".join([*heads, *people, "", text]).encode())


def tree(**files: GitObject) -> GitObject:
    """A tree."""
    entries = [
        (b"40000 " if thing.kind == TREE else b"100644 ")
        + name.encode()
        + b"\0"
        + bytes.fromhex(thing.id.decode())
        for name, thing in sorted(files.items())
    ]
    return GitObject(TREE, b"".join(entries))


def put(repository: Repository, *things: GitObject) -> None:
    """Push objects."""
    assert repository.add({thing.id: thing for thing in things})


def sent(
    repository: Repository,
    wants: list[GitObject],
    known: list[GitObject],
    border: list[GitObject] | None = None,
) -> set[bytes]:
    """Ids of what a client lacks."""

    async def collect() -> set[bytes]:
        seen: set[bytes] = set()
        for _ in [one async for one in repository.walk([k.id for k in known], seen, set())]:
            pass
        edge = {thing.id for thing in border or []}
        return {one async for one in repository.walk([w.id for w in wants], seen, edge)}

    return asyncio.run(collect())


def test_what_a_client_lacks(bare: Path) -> None:
    """Its new commits with their new trees and files; not what the commit before had; nothing
    beyond the border of a shallow fetch."""
    old, new = GitObject(BLOB, b"old"), GitObject(BLOB, b"new")
    inner = tree(old=old)
    trees = tree(a=old, d=inner), tree(a=old, b=new, d=inner)
    first = commit(trees[0])
    second = commit(trees[1], first)
    tag = GitObject(TAG, b"object " + second.id + b"\ntype commit\ntag v1\n\n")
    outer = GitObject(TAG, b"object " + tag.id + b"\ntype tag\ntag v2\n\n")
    repository = Repository.opened(bare, Quota())
    put(repository, old, new, inner, *trees, first, second, tag, outer)
    assert sent(repository, [second], [first]) == {second.id, trees[1].id, new.id}
    assert sent(repository, [outer], [first]) == {outer.id, tag.id, second.id, trees[1].id, new.id}
    assert sent(repository, [second], [second]) == set()
    assert sent(repository, [second], [], [second]) == {
        second.id,
        trees[1].id,
        old.id,
        new.id,
        inner.id,
    }
    assert len(sent(repository, [outer], [])) == 9
    assert asyncio.run(repository.depths([second.id], 1)) == ({second.id}, {second.id})
    assert asyncio.run(repository.depths([second.id], 1 << 31)) == ({second.id, first.id}, set())


def test_a_commit_is_read_by_its_first_lines(bare: Path) -> None:
    """However many follow: of a guest's megabytes the gateway would do nothing else."""
    repository, first = Repository.opened(bare, Quota()), commit(tree())
    long = GitObject(COMMIT, commit(tree(), first).content + b"x a\n" * 20_000)
    put(repository, tree(), first, long)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        links = repository.links(long.id)
    finally:
        sys.setprofile(None)
    assert links == [(TREE, tree().id), (COMMIT, first.id)]
    assert calls < 100


def test_a_tree_bomb_is_walked_once(bare: Path) -> None:
    """Ten entries of ten entries of ten …: forty levels of the same tree cost forty visits."""
    repository = Repository.opened(bare, Quota())
    level = GitObject(BLOB, b"x")
    put(repository, level)
    for _ in range(40):
        level = tree(**{f"n{number}": level for number in range(10)})
        put(repository, level)
    top = commit(level)
    put(repository, top)
    assert len(sent(repository, [top], [])) == 42


def test_references_change_by_their_old_value(bare: Path) -> None:
    """As a push says it; names are checked; deleted is gone; the directory is as it was."""
    before = sorted(str(path) for path in bare.rglob("*"))
    repository, one = Repository.opened(bare, Quota()), GitObject(BLOB, b"1")
    put(repository, one)
    assert repository.update(b"refs/heads/main", ZERO, one.id) == ""
    assert repository.update(b"refs/heads/main", ZERO, one.id) == "fetch first"
    assert repository.update(b"refs/heads/other", ZERO, b"1" * 40) == "missing necessary objects"
    for name in (
        *(b"HEAD", b"refs/x", b"a/b/c", b"refs/heads/../x", b"refs/heads/", b"refs/heads/a b"),
        *(b"refs/heads/.a", b"refs/heads/a.lock", b"refs/heads/a\n", b"refs/heads/a^"),
        b"refs/heads/" + b"a" * 250,
    ):  # by git's own rules
        assert repository.update(name, ZERO, one.id) == "funny refname", name
    assert repository.update(b"refs/heads/main", one.id, ZERO) == ""
    assert repository.refs == {}
    assert sorted(str(path) for path in bare.rglob("*")) == before


def test_the_repositories_of_a_stand_in_have_one_quota(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many an author has: what one keeps, another has no room for."""
    monkeypatch.setattr(repositories, "MAX_PUSHED_BYTES", 1000)
    one, other = (Repository.opened(bare, quota) for quota in [Quota()] * 2)
    large, small = (GitObject(BLOB, b"x" * size) for size in (700, 200))
    assert one.add({large.id: large})
    assert one.add({large.id: large})
    assert not other.add({small.id: small})
    assert other.get(small.id) is None
    # Many empty objects count, too.
    assert not one.add({each.id: each for each in (GitObject(TREE, b""), GitObject(TAG, b""))})


@given(st.sampled_from([COMMIT, TREE, TAG, BLOB]), st.binary(max_size=200))
@settings(deadline=None)
def test_any_object_names_ids_or_is_reported(kind: int, content: bytes) -> None:
    """A guest's object that can't be read is an error of that fetch."""
    repository = Repository(MemoryObjectStore(), {}, b"", Quota())
    for start in (b"", b"tree ", b"object " + b"a" * 40 + b"\ntype ", b"100644 a\0"):
        thing = GitObject(kind, start + content)
        put(repository, thing)
        try:
            assert all(at for _, at in repository.links(thing.id))
        except MissingObjectError as error:
            assert error.args == (thing.id,)  # noqa: PT017 - both ways are right
