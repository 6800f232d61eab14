"""The git server, asked directly."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, ask, context_for

from belljar.network.gateway.context import App
from belljar.network.stand_ins.git import check, make


@pytest.fixture
def app(tmp_path: Path) -> App:
    """A server with one empty repository."""
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "team/thing.git")], check=True)
    return make(context_for(tmp_path, Ledger()))


def test_references_of_an_empty_repository(app: App) -> None:
    """With and without `.git`, for both services, never cached."""
    for name in ("team/thing.git", "team/thing"):
        for service in ("git-upload-pack", "git-receive-pack"):
            reply = ask(app, "GET", f"/{name}/info/refs", query=f"service={service}")
            assert reply.headers["content-type"] == f"application/x-{service}-advertisement"
            assert "no-cache" in reply.headers["cache-control"]
            assert b"0" * 40 + b" capabilities^{}\0" in reply.body


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/team/thing.git/info/refs", 403),
        ("GET", "/team/thing.git/HEAD", 404),
        ("GET", "/team/thing.git/config", 404),
        ("GET", "/../../etc/info/refs", 404),
        ("GET", "/team/info/refs", 404),
        ("POST", "/nothing.git/git-receive-pack", 404),
        ("PUT", "/team/thing.git/info/refs", 404),
    ],
)
def test_nothing_but_the_smart_protocol(app: App, method: str, path: str, status: int) -> None:
    """No file of a repository is served as such."""
    assert ask(app, method, path).status == status


def test_a_packed_request(app: App) -> None:
    """git packs what is long; a bomb and a lie are refused."""
    path = "/team/thing.git/git-upload-pack"
    headers = {"content-encoding": "gzip"}
    want = b"0032want " + b"a" * 40 + b"\n00000009done\n"
    assert b"not our ref" in ask(app, "POST", path, headers=headers, body=gzip.compress(want)).body
    assert ask(app, "POST", path, headers=headers, body=gzip.compress(bytes(5 << 20))).status == 413
    assert ask(app, "POST", path, headers=headers, body=b"plain").status == 400
    assert ask(app, "POST", path, headers=headers, body=gzip.compress(want)[:-9]).status == 400


def test_check_names_the_files(tmp_path: Path) -> None:
    """Empty, no repository, a working copy, borrowed objects, SHA-256, a link, a reference to
    nothing."""
    assert "no such directory" in str(check({}, tmp_path / "gone")[0])
    assert "repositories: PATH" in str(check({}, None)[0])
    assert "empty" in str(check({}, tmp_path)[0])
    for name in ("good", "borrows", "broken"):
        subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / f"{name}.git")], check=True)
    (tmp_path / "broken.git/refs/heads/main").write_text("1" * 40 + "\n")
    (tmp_path / "borrows.git/objects/info/alternates").write_text("/elsewhere\n")
    assert len(check({}, tmp_path)) == 2
    subprocess.run(["git", "init", "-q", str(tmp_path / "working")], check=True)
    subprocess.run(
        ["git", "init", "-q", "--bare", "--object-format=sha256", str(tmp_path / "new.git")],
        check=True,
    )
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "link.git").symlink_to("good.git")
    text = "\n".join(map(str, check({}, tmp_path)))
    for part in (
        "borrows.git: it borrows",
        "broken.git: its reference refs/heads/main",
        "working: not a bare",
        "new.git: it is a SHA-256",
        "notes.txt: not",
        "link.git: a symbolic",
    ):
        assert part in text
    assert len(check({}, tmp_path)) == 6


def test_nothing_is_read_by_a_link_in_a_repository(tmp_path: Path) -> None:
    """What it leads to may be a secret, or have no end: the link is named, and nothing of what is
    behind it."""
    (tmp_path / "secret").write_text("1" * 40 + " refs/heads/hunter2\n")
    (served := tmp_path / "served").mkdir()
    for name, file, target in (
        ("a", "packed-refs", "../../secret"),
        ("b", "HEAD", "/dev/zero"),
        ("c", "config", "/dev/zero"),
    ):
        subprocess.run(["git", "init", "-q", "--bare", str(served / f"{name}.git")], check=True)
        (served / f"{name}.git" / file).unlink(missing_ok=True)
        (served / f"{name}.git" / file).symlink_to(target)
    faults = [str(fault) for fault in check({}, served)]
    assert [sentence for sentence in faults if "a symbolic link" in sentence]
    assert "hunter2" not in "".join(faults)
