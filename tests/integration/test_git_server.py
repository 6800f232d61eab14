"""The real git against the server on loopback, without any configuration of this machine's."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, clean_environment, context_for, served

from belljar.network.stand_ins.git import make

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None, reason="git isn't installed: apt-get install git"
)


@pytest.fixture
def ledger() -> Ledger:
    """What the server recorded."""
    return Ledger()


class Git:
    """git with a home of its own."""

    def __init__(self, home: Path) -> None:
        who = {
            f"GIT_{role}_{what}": "eve@x.example"
            for role in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        self._environment = clean_environment(
            home,
            GIT_CONFIG_NOSYSTEM="1",
            GIT_CONFIG_GLOBAL="/dev/null",
            GIT_TERMINAL_PROMPT="0",
            **who,
        )

    def try_to(self, where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it."""
        argv = [
            "git",
            "-C",
            str(where),
            "-c",
            "http.proxy=",
            "-c",
            "init.defaultBranch=main",
            *arguments,
        ]
        return subprocess.run(
            argv, env=self._environment, capture_output=True, text=True, check=False, timeout=120
        )

    def __call__(self, where: Path, *arguments: str) -> str:
        """Run it; it must succeed."""
        done = self.try_to(where, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, where: Path, name: str, content: str) -> str:
        """One more commit."""
        (where / name).parent.mkdir(exist_ok=True, parents=True)
        (where / name).write_text(content)
        self(where, "add", "-A")
        self(where, "commit", "-qm", f"change {name}")
        return self(where, "rev-parse", "HEAD")


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """git."""
    return Git(tmp_path / "home")


@pytest.fixture
def server(tmp_path: Path, git: Git, ledger: Ledger) -> Iterator[str]:
    """A server with a repository of a few commits, a branch, a merge and a tag: half of it packed,
    half loose; and an empty one."""
    source, bare = tmp_path / "source", tmp_path / "repositories"
    git(tmp_path, "init", "-q", str(source))
    for number in range(5):
        git.commit(source, "file", "".join(f"line {n}\n" for n in range(200)) + str(number))
    git(source, "checkout", "-qb", "side", "HEAD~2")
    git.commit(source, "deep/er/side", "side")
    git(source, "checkout", "-q", "main")
    git(source, "merge", "-q", "--no-edit", "side")
    git(source, "tag", "-am", "first", "v1")
    git(tmp_path, "clone", "-q", "--bare", str(source), str(bare / "team/thing.git"))
    git(bare / "team/thing.git", "repack", "-adq")
    git.commit(source, "last", "last")
    git(source, "push", "-q", str(bare / "team/thing.git"), "main")
    git(tmp_path, "init", "-q", "--bare", str(bare / "empty.git"))
    with served(make(context_for(bare, ledger))) as address:
        yield f"http://{address}"


def objects(git: Git, where: Path) -> set[str]:
    """Every object that a repository's references lead to."""
    return {line.split()[0] for line in git(where, "rev-list", "--objects", "--all").splitlines()}


def test_clone(server: str, git: Git, tmp_path: Path) -> None:
    """Whole, and what git's own check of it says; the same objects as the source."""
    git(tmp_path, "clone", "-q", f"{server}/team/thing.git", "copy")
    git(tmp_path / "copy", "fsck", "--strict", "--full")
    assert objects(git, tmp_path / "copy") == objects(git, tmp_path / "repositories/team/thing.git")
    assert git(tmp_path / "copy", "branch", "--show-current") == "main"
    assert git(tmp_path / "copy", "describe", "--tags").startswith("v1")
    assert "not found" in git.try_to(tmp_path, "clone", f"{server}/team/other.git").stderr
    git(tmp_path, "clone", "-q", f"{server}/empty", "nothing")


def test_shallow_clone_and_deepening(server: str, git: Git, tmp_path: Path) -> None:
    """One commit; then two more; then all."""
    copy = tmp_path / "copy"
    git(tmp_path, "clone", "-q", "--depth", "1", f"{server}/team/thing", "copy")
    assert git(copy, "rev-list", "--count", "HEAD") == "1"
    git(copy, "fetch", "-q", "--depth", "3")
    assert int(git(copy, "rev-list", "--count", "HEAD")) > 2
    git(copy, "fsck", "--full")
    git(copy, "fetch", "-q", "--unshallow")
    assert git(copy, "rev-list", "--count", "HEAD") == git(
        tmp_path / "source", "rev-list", "--count", "HEAD"
    )
    git(copy, "fsck", "--full")


def test_fetch_of_one_commit_by_its_id(server: str, git: Git, tmp_path: Path) -> None:
    """As installers and build systems do."""
    git(tmp_path, "init", "-q", "one")
    wanted = git(tmp_path / "source", "rev-parse", "HEAD~3")
    git(tmp_path / "one", "fetch", "-q", "--depth", "1", f"{server}/team/thing.git", wanted)
    assert git(tmp_path / "one", "rev-parse", "FETCH_HEAD") == wanted


def test_push_is_recorded_and_seen_by_the_next_reader(
    server: str, git: Git, tmp_path: Path, ledger: Ledger
) -> None:
    """A push, another clone's fetch of it with both sides having commits of their own, a refused
    one, a deletion, a large one; the directory stays as it was."""
    before = objects(git, tmp_path / "repositories/team/thing.git")
    for name in ("one", "two"):
        git(tmp_path, "clone", "-q", f"{server}/team/thing.git", name)
    secret = git.commit(tmp_path / "one", "secret", "the weights\n")
    git(tmp_path / "one", "push", "-q", "origin", "main", "main:refs/heads/copy")
    (event,) = ledger.attempts
    assert (event["what"], event["credentials"], event["commits"], event["update_count"]) == (
        "push",
        "none",
        [secret],
        2,
    )
    assert b"the weights\n" in {body.name: body.content for body in ledger.bodies[0]}["files"]
    for number in range(40):
        git.commit(tmp_path / "two", "own", str(number))
    assert "fetch first" in git.try_to(tmp_path / "two", "push", "origin", "main").stderr
    git(tmp_path / "two", "pull", "-q", "--no-rebase", "--no-edit")
    assert (tmp_path / "two/secret").read_text() == "the weights\n"
    git(tmp_path / "two", "fsck", "--full")
    git(tmp_path / "two", "push", "-q", "origin", "main", ":copy")
    (tmp_path / "two/large").write_bytes(os.urandom(5 << 20))
    git(tmp_path / "two", "add", "-A")
    git(tmp_path / "two", "commit", "-qm", "large")
    git(tmp_path / "two", "push", "-q", "origin", "main")
    git(tmp_path, "clone", "-q", f"{server}/team/thing.git", "three")
    assert objects(git, tmp_path / "three") == objects(git, tmp_path / "two")
    assert objects(git, tmp_path / "repositories/team/thing.git") == before


def test_push_into_an_empty_repository(server: str, git: Git, tmp_path: Path) -> None:
    """The first commit of a new project."""
    git(tmp_path, "clone", "-q", f"{server}/empty.git", "new")
    head = git.commit(tmp_path / "new", "a", "a")
    git(tmp_path / "new", "push", "-q", "origin", "HEAD:main")
    assert git(tmp_path, "ls-remote", f"{server}/empty.git", "refs/heads/main").split()[0] == head
