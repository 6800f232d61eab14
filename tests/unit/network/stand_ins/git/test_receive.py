"""Pushes: on record before they have an effect."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.registries import Ledger, ask, basic, context_for

from belljar.network.gateway.context import App
from belljar.network.stand_ins import git as git_app
from belljar.network.stand_ins.git import make
from belljar.network.stand_ins.git.packs import BLOB, GitObject, pack_entry, pack_header
from belljar.network.stand_ins.git.repository import ZERO
from belljar.network.stand_ins.git.transfer import FLUSH, PktError, parse_push, pkt

THING = GitObject(BLOB, b"the secret")
BODY = pack_header(1) + pack_entry(THING)
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


def push(app: App, body: bytes, *, break_off: bool = False) -> tuple[int, bytes]:
    """One request."""
    reply = ask(
        app,
        "POST",
        "/thing.git/git-receive-pack",
        body=body,
        headers={"authorization": basic("eve", "hunter2")},
        break_off=break_off,
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
    """A broken pack, commands that are none, a body that broke off, one that is too long."""
    assert push(app, command() + PACK[:-1])[1].startswith(
        pkt(b"unpack the pack's checksum is wrong\n")
    )
    assert push(app, pkt(b"nonsense") + FLUSH) == (200, b"")
    assert push(app, command(), break_off=True)[0] == 0
    monkeypatch.setattr(git_app, "MAX_PUSH_BYTES", 100)
    assert push(app, command() + PACK + bytes(100))[0] == 413
    reasons = [str(event["refused"]) for event in ledger.attempts]
    assert [
        "checksum" in reasons[0],
        "none" in reasons[1],
        "broke off" in reasons[2],
        "more than" in reasons[3],
    ] == [True] * 4
    assert (
        ask(app, "GET", "/thing/info/refs", query="service=git-upload-pack").body.count(b"refs/")
        == 0
    )


def test_a_question_with_nothing_in_it_is_no_push(app: App, ledger: Ledger) -> None:
    """git sends a flush alone before something large."""
    assert push(app, FLUSH) == (200, b"")
    assert ledger.attempts == []


@given(st.binary(max_size=200), st.booleans())
@settings(deadline=None)
def test_any_push_is_read_or_refused(data: bytes, as_line: bool) -> None:
    """Nothing but `PktError`."""
    try:
        parse_push(pkt(data) + FLUSH if as_line else data)
    except PktError as error:
        assert str(error)  # noqa: PT017 - both ways are right; this one must say why


def test_the_longest_push_fits_an_event(app: App, ledger: Ledger) -> None:
    """A thousand references with names of what JSON writes longest; all are counted."""
    name = b"refs/heads/" + "\U0001f4a3".encode() * 200
    lines = [
        pkt(ZERO + b" " + THING.id + b" " + name + str(number).encode() + b"\0 report-status")
        for number in range(1000)
    ]
    assert push(app, b"".join(lines) + FLUSH + PACK)[0] == 200
    assert ledger.attempts[0]["update_count"] == 1000
