"""A repository with what was pushed over it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.stand_ins.git_store import ZERO, GitObject, MissingObjectError, Repository

COMMIT, TREE, BLOB, TAG = 1, 2, 3, 4


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    path = tmp_path / "team" / "thing.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(path)], check=True)
    return path


def put(repository: Repository, *things: GitObject) -> None:
    repository.pushed |= {thing.id: thing for thing in things}


def test_references_change_by_their_old_value(bare: Path) -> None:
    """As a push says it; names are checked; deleted is gone; the directory is as it was."""
    before = sorted(str(path) for path in bare.rglob("*"))
    repository, one = Repository(bare), GitObject(BLOB, b"1")
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


@given(st.sampled_from([COMMIT, TREE, TAG, BLOB]), st.binary(max_size=200))
@settings(deadline=None)
def test_any_object_names_ids_or_is_reported(bare: Path, kind: int, content: bytes) -> None:
    """A guest's object that can't be read is an error of that fetch."""
    repository = Repository(bare)
    for start in (b"", b"tree ", b"object " + b"a" * 40 + b"\ntype ", b"100644 a\0"):
        thing = GitObject(kind, start + content)
        put(repository, thing)
        try:
            assert all(at for _, at in repository.links(thing.id))
        except MissingObjectError as error:
            assert error.args == (thing.id,)  # noqa: PT017 - both ways are right
