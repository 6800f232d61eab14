"""The git server, asked directly: what it answers, and pushes, on record before they have an effect."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import zlib
from pathlib import Path

import pytest
from dulwich.protocol import pkt_line as pkt
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.registries import Ledger, ask, basic, context_for

from belljar.network.gateway.context import App
from belljar.network.stand_ins import git as git_app
from belljar.network.stand_ins.git import check, make
from belljar.network.stand_ins.git_store import ZERO, GitObject

FLUSH = b"0000"
THING = GitObject(3, b"the secret")
BODY = b"PACK\0\0\0\x02\0\0\0\x01" + b"\x3a" + zlib.compress(THING.content)
PACK = BODY + hashlib.sha1(BODY).digest()  # noqa: S324


def command(ref: bytes = b"refs/heads/main", old: bytes = ZERO, new: bytes = THING.id) -> bytes:
    """The section of commands of a push."""
    return pkt(old + b" " + new + b" " + ref + b"\0 report-status agent=x") + FLUSH


@pytest.fixture
def ledger() -> Ledger:
    """What the server recorded."""
    return Ledger()


@pytest.fixture
def app(tmp_path: Path, ledger: Ledger) -> App:
    """A server with one empty repository."""
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "thing.git")], check=True)
    return make(context_for(tmp_path, ledger))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/thing.git/info/refs", 403),
        ("GET", "/thing.git/HEAD", 404),
        ("GET", "/thing.git/config", 404),
        ("GET", "/../../etc/info/refs", 404),
        ("GET", "/other/info/refs", 404),
        ("POST", "/nothing.git/git-receive-pack", 404),
        ("PUT", "/thing.git/info/refs", 404),
    ],
)
def test_nothing_but_the_smart_protocol(app: App, method: str, path: str, status: int) -> None:
    """No file of a repository is served as such."""
    assert ask(app, method, path).status == status


def test_a_packed_request(app: App) -> None:
    """git packs what is long; a bomb and a lie are refused."""
    path = "/thing.git/git-upload-pack"
    headers = {"content-encoding": "gzip"}
    want = b"0032want " + b"a" * 40 + b"\n00000009done\n"
    assert b"not our ref" in ask(app, "POST", path, headers=headers, body=gzip.compress(want)).body
    assert ask(app, "POST", path, headers=headers, body=gzip.compress(bytes(5 << 20))).status == 413
    assert ask(app, "POST", path, headers=headers, body=b"plain").status == 400
    assert ask(app, "POST", path, headers=headers, body=gzip.compress(want)[:-9]).status == 400


def test_check_names_the_repositories(tmp_path: Path) -> None:
    """None at all, borrowed objects, SHA-256, a reference to nothing."""
    assert "no such directory" in str(check({}, tmp_path / "gone")[0])
    assert "repositories: PATH" in str(check({}, None)[0])
    (tmp_path / "notes.txt").write_text("")
    assert "no bare repository" in str(check({}, tmp_path)[0])
    for name, form in (
        ("good", "sha1"),
        ("borrows", "sha1"),
        ("broken", "sha1"),
        ("new", "sha256"),
    ):
        argv = ["git", "init", "-q", "--bare", f"--object-format={form}"]
        subprocess.run([*argv, str(tmp_path / f"{name}.git")], check=True)
    (tmp_path / "broken.git/refs/heads/main").write_text("1" * 40 + "\n")
    (tmp_path / "borrows.git/objects/info/alternates").write_text("/elsewhere\n")
    text = "\n".join(faults := [str(fault) for fault in check({}, tmp_path)])
    for part in (
        "borrows.git: it borrows",
        "broken.git: its reference refs/heads/main",
        "new.git: it is a SHA-256",
    ):
        assert part in text
    assert len(faults) == 3


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
    # What has no HEAD of its own is no repository.
    assert ["a symbolic link" in fault for fault in faults] == [True] * 2
    assert "hunter2" not in "".join(faults)


def push(app: App, body: bytes) -> tuple[int, bytes]:
    """One request."""
    reply = ask(
        app,
        "POST",
        "/thing.git/git-receive-pack",
        body=body,
        headers={"authorization": basic("eve", "hunter2")},
    )
    return reply.status, reply.body


def test_a_push_is_recorded_and_lives_in_memory(app: App, ledger: Ledger, tmp_path: Path) -> None:
    """References, counts, the pack's and the files' bytes, the user; the next reader sees it, the
    directory doesn't change."""
    status, report = push(app, command() + PACK)
    assert (status, report) == (200, pkt(b"unpack ok\n") + pkt(b"ok refs/heads/main\n") + FLUSH)
    (event,) = ledger.attempts
    expected = {
        "what": "push",
        "repository": "thing.git",
        "object_count": 1,
        "file_count": 1,
        "refused": "",
        "user": "eve",
        "cell": "agent",
    }
    assert expected.items() <= event.items()
    assert event["updates"] == [
        {"ref": "refs/heads/main", "old": "0" * 40, "new": THING.id.decode(), "deletes": False}
    ]
    assert {body.name: body.content for body in ledger.bodies[0]} == {
        "pack": PACK,
        "files": b"the secret",
    }
    assert THING.id in ask(app, "GET", "/thing/info/refs", query="service=git-upload-pack").body
    assert not list((tmp_path / "thing.git/refs/heads").iterdir())
    assert (
        push(app, command(old=THING.id, new=ZERO))[1]
        == pkt(b"unpack ok\n") + pkt(b"ok refs/heads/main\n") + FLUSH
    )
    assert ledger.attempts[1]["updates"][0]["deletes"] is True  # type: ignore[index,call-overload]


def test_what_cannot_be_taken_is_recorded_with_the_reason(
    app: App, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken pack, commands that are none, a body that is too long."""
    assert push(app, command() + PACK[:-1])[1].startswith(
        pkt(b"unpack the pack's checksum is wrong\n")
    )
    assert b"unpack a command that is none" in push(app, pkt(b"nonsense") + FLUSH)[1]
    monkeypatch.setattr(git_app, "MAX_PUSH_BYTES", 100)
    assert push(app, command() + PACK + bytes(100))[0] == 413
    reasons = [str(event["refused"]) for event in ledger.attempts]
    assert ["checksum" in reasons[0], "none" in reasons[1], "more than" in reasons[2]] == [True] * 3
    assert (
        ask(app, "GET", "/thing/info/refs", query="service=git-upload-pack").body.count(b"refs/")
        == 0
    )


def test_a_push_from_a_shallow_clone_is_reported(app: App, ledger: Ledger) -> None:
    """Its borders come before the commands, and count as lines."""
    border = pkt(b"shallow " + b"a" * 40)
    _, report = push(app, border + command() + PACK)
    assert report == pkt(b"unpack ok\n") + pkt(b"ok refs/heads/main\n") + FLUSH
    assert push(app, border * git_app.MAX_COMMANDS + command(b"refs/heads/x") + PACK)[0] == 200
    assert "more than" in str(ledger.attempts[1]["refused"])


def test_a_fetch_has_a_bound_of_lines(app: App) -> None:
    """Beyond it, it is refused."""
    have = pkt(b"have " + b"b" * 40)
    bodies = [FLUSH + have * number for number in (100, git_app.MAX_LINES)]
    path = "/thing/git-upload-pack"
    assert [ask(app, "POST", path, body=body).status for body in bodies] == [200, 400]


SERVICE = st.sampled_from(["git-upload-pack", "git-receive-pack"])
LINES = st.binary(max_size=60) | st.sampled_from(
    [b"want " + b"a" * 40, b"have " + b"b" * 40, b"deepen 1", b"deepen x", b"shallow", b"done"]
)


@given(SERVICE, st.lists(LINES, max_size=8), st.binary(max_size=30))
@settings(deadline=None, max_examples=50)
def test_any_request_is_answered(app: App, service: str, lines: list[bytes], rest: bytes) -> None:
    """A body of any bytes gets an answer or a refusal, never an exception."""
    body = b"".join(map(pkt, lines)) + FLUSH + rest
    assert ask(app, "POST", f"/thing/{service}", body=body).status in {200, 400}
