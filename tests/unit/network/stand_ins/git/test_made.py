"""A repository made from a setting, read by real git."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.git.packs import NAMES, GitObject
from belljar.network.stand_ins.git.repository import BRANCH, Kept, MadeRepository, targets

NAME = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0\n", categories=["L", "N", "P"]), min_size=1
).filter(lambda name: name not in {".", "..", ".git"})


def commit(message: str, age_s: int, files: dict[str, str]) -> dict[str, Any]:
    """One of a history."""
    return {"message": message, "author": "A <a@x.example>", "age_s": age_s, "files": files}


def objects(repository: MadeRepository) -> dict[bytes, GitObject]:
    """All that the branch leads to."""
    found: dict[bytes, GitObject] = {}
    todo = [repository.refs[BRANCH]]
    while todo:
        identity = todo.pop()
        found[identity] = repository.must(identity)
        todo += [target for _, target in targets(found[identity])]
    return found


def stored(repository: MadeRepository, folder: Path) -> Path:
    """The same as a bare repository on disk, each object written by git itself, which checks it."""
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(folder)], check=True)
    for identity, thing in objects(repository).items():
        argv = [
            "git",
            "-C",
            str(folder),
            "hash-object",
            "-t",
            NAMES[thing.kind].decode(),
            "-w",
            "--stdin",
        ]
        made = subprocess.run(argv, input=thing.content, capture_output=True, check=True).stdout
        assert made.strip() == identity
    tip = repository.refs[BRANCH].decode()
    subprocess.run(["git", "-C", str(folder), "update-ref", BRANCH.decode(), tip], check=True)
    return folder


@pytest.mark.promise("5.6")
@pytest.mark.skipif(shutil.which("git") is None, reason="git isn't installed: apt-get install git")
def test_git_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    """Its history, trees in trees and names that sort as only git sorts them pass fsck; what was
    taken out is in the log."""
    history = [
        commit(
            "one", 900, {"a/b/c": "deep", "a.txt": "x", "a-b": "y", "secret.env": "TOKEN=t0ken"}
        ),
        commit("two", 60, {"a/b/c": "deeper", "a.txt": "x"}),
    ]
    made = MadeRepository(history, Kept(), now_s=1_000_000_000)
    folder = stored(made, tmp_path / "bare")
    subprocess.run(["git", "-C", str(folder), "fsck", "--strict"], check=True)
    log = subprocess.run(
        ["git", "-C", str(folder), "log", "-p", "--format=%s %ct"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "two 999999940" in log
    assert "-TOKEN=t0ken" in log


@pytest.mark.promise("5.6")
@given(st.dictionaries(NAME, st.text(max_size=50), min_size=1, max_size=8))
def test_each_object_is_there_under_its_id(files: dict[str, str]) -> None:
    """From the branch to the last file; none is read from a disk."""
    made = MadeRepository([commit("m", 0, files)], Kept(), now_s=0)
    tip = made.must(made.refs[made.head])
    tree = made.must(tip.content[5:45])
    assert len(objects(made)) == 2 + len(set(files.values()))
    assert tree.content.count(b"100644 ") >= len(files)
    assert made.get(b"0" * 40) is None
