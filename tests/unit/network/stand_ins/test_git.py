"""The git server, asked directly: what it answers, and pushes, on record before it answers."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest
from dulwich.protocol import pkt_line as pkt
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.registries import Ledger, ask, basic, context_for

from belljar.network.stand_ins import git as git_app
from belljar.network.stand_ins.git import GitObject, check, make
from belljar.network.stand_ins.web import App

FLUSH = b"0000"
ZERO = b"0" * 40
THING = GitObject(3, b"the secret")
BODY = b"PACK\0\0\0\x02\0\0\0\x01" + b"\x3a" + zlib.compress(THING.content)
PACK = BODY + hashlib.sha1(BODY).digest()  # noqa: S324
TAKEN = pkt(b"unpack ok\n") + pkt(b"ok refs/heads/main\n") + FLUSH
REFS: dict[str, Any] = {"query": "service=git-upload-pack"}


def command(ref: bytes = b"refs/heads/main", old: bytes = ZERO, new: bytes = THING.id) -> bytes:
    return pkt(old + b" " + new + b" " + ref + b"\0 report-status agent=x") + FLUSH


def bare(path: Path) -> Path:
    subprocess.run(["git", "init", "-q", "--bare", str(path)], check=True)
    return path


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def app(tmp_path: Path, ledger: Ledger) -> App:
    bare(tmp_path / "thing.git")
    return make(context_for(tmp_path, ledger))


def push(app: App, body: bytes) -> tuple[int, bytes]:
    path, headers = "/thing.git/git-receive-pack", {"authorization": basic("eve", "hunter2")}
    reply = ask(app, "POST", path, body=body, headers=headers)
    return reply.status, reply.body


def test_nothing_but_the_smart_protocol(app: App) -> None:
    """No file of a repository is served as such. git packs what is long."""
    for asked, status in {
        "GET /thing.git/info/refs": 403,
        "GET /thing.git/HEAD": 404,
        "GET /thing.git/config": 404,
        "GET /../../etc/info/refs": 404,
        "GET /other/info/refs": 404,
        "POST /nothing.git/git-receive-pack": 404,
        "PUT /thing.git/info/refs": 404,
    }.items():
        assert ask(app, *asked.split()).status == status, asked
    want = b"0032want " + b"a" * 40 + b"\n00000009done\n"
    packed: dict[str, Any] = {"headers": {"content-encoding": "gzip"}}
    fetch = "/thing.git/git-upload-pack"
    assert b"not our ref" in ask(app, "POST", fetch, body=gzip.compress(want), **packed).body
    have = pkt(b"have " + b"b" * 40)
    for body, status, how in (
        (gzip.compress(bytes(5 << 20)), 400, packed),
        (b"plain", 400, packed),
        (gzip.compress(want)[:-9], 400, packed),
        (FLUSH + have * 100, 200, {}),
        (FLUSH + have * git_app.MAX_LINES, 400, {}),
    ):
        assert ask(app, "POST", fetch, body=body, **how).status == status


def test_check_names_the_repositories(tmp_path: Path) -> None:
    """None at all, borrowed objects, a reference to nothing."""
    assert "no bare repository" in str(check({}, tmp_path / "gone")[0])
    assert "repositories: PATH" in str(check({}, None)[0])
    (tmp_path / "secret").write_text("1" * 40 + " refs/heads/hunter2\n")
    assert "no bare repository" in str(check({}, tmp_path)[0])
    served = tmp_path / "served"
    bare(served / "good.git")
    (bare(served / "broken.git") / "refs/heads/main").write_text("1" * 40 + "\n")
    (bare(served / "borrows.git") / "objects/info/alternates").write_text("/elsewhere\n")
    # What has no HEAD of its own is no repository: of these three links two are named
    for name, target in {
        "packed-refs": "../../secret",
        "HEAD": "/dev/zero",
        "config": "/dev/zero",
    }.items():
        link = bare(served / f"{name}.git") / name
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    faults = [str(fault) for fault in check({}, served)]
    text = "\n".join(faults)
    for part in ("borrows.git: it borrows", "broken.git: its reference refs/heads/main"):
        assert part in text
    assert (text.count("a symbolic link"), len(faults), "hunter2" in text) == (2, 4, False)


def test_a_push_is_recorded_and_goes_nowhere(app: App, ledger: Ledger, tmp_path: Path) -> None:
    """References, counts, the pack's and the files' bytes, the user."""
    border = pkt(b"shallow " + b"a" * 40)
    assert push(app, border + command() + PACK) == (200, TAKEN)
    (event,) = ledger.attempts
    expected = {
        "what": "push",
        "repository": "thing.git",
        "object_count": 1,
        "refused": "",
        "user": "eve",
        "cell": "agent",
    }
    assert expected.items() <= event.items()
    assert event["updates"] == [
        {"ref": "refs/heads/main", "old": "0" * 40, "new": THING.id.decode()}
    ]
    kept = {body.name: body.content for body in ledger.bodies[0]}
    assert kept == {"pack": PACK, "files": b"the secret"}
    assert b"refs/" not in ask(app, "GET", "/thing/info/refs", **REFS).body
    assert not list((tmp_path / "thing.git/refs/heads").iterdir())
    assert push(app, command(old=THING.id, new=ZERO))[1] == TAKEN
    assert push(app, border * git_app.MAX_COMMANDS + command(b"refs/heads/x") + PACK)[0] == 200
    assert "more than" in str(ledger.attempts[2]["refused"])


def test_what_cannot_be_taken_is_recorded_with_the_reason(
    app: App, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken pack, commands that are none, a body that is too long."""
    wrong = pkt(b"unpack the pack's checksum is wrong\n")
    assert push(app, command() + PACK[:-1])[1].startswith(wrong)
    assert b"unpack a command that is none" in push(app, pkt(b"nonsense") + FLUSH)[1]
    monkeypatch.setattr(git_app, "MAX_PUSH_BYTES", 100)
    assert push(app, command() + PACK + bytes(100))[0] == 400
    reasons = [str(event["refused"]) for event in ledger.attempts]
    words = ("checksum", "none", "more than")
    assert [word in reason for word, reason in zip(words, reasons, strict=True)] == [True] * 3


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
