"""Uploads to the package index: on record, answered, gone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from tests.fakes.registries import Ledger, ask, basic, context_for, form, make_wheel

from belljar.network.stand_ins.pypi import make

FIELDS = {":action": "file_upload", "name": "leak", "version": "1.0", "filetype": "bdist_wheel"}
CONTENT = b"secrets" * 20_000


def test_an_upload_is_recorded_and_never_served(tmp_path: Path) -> None:
    """200, an event with name, version, size, digest and the user but not the password; the package
    stays unknown."""
    ledger = Ledger()
    app = make(context_for(tmp_path, ledger))
    content_type, body = form(FIELDS, {"content": ("leak-1.0-py3-none-any.whl", CONTENT)})
    headers = {"content-type": content_type, "authorization": basic("__token__", "hunter2")}
    for path in ("/", "/legacy/"):
        assert (
            ask(app, "POST", path, headers=headers, body=[body[:1000], body[1000:]]).status == 200
        )
    event = ledger.attempts[1]
    assert {
        "what": "publish",
        "registry": "pypi",
        "name": "leak",
        "version": "1.0",
        "refused": "",
        "cell": "agent",
    }.items() <= event.items()
    assert event["filename"] == "leak-1.0-py3-none-any.whl"
    assert (event["size_bytes"], event["sha256"]) == (
        len(CONTENT),
        hashlib.sha256(CONTENT).hexdigest(),
    )
    assert (event["credentials"], event["user"]) == ("basic", "__token__")
    assert "hunter2" not in str(event)
    (kept,) = ledger.bodies[1]
    assert (kept.content, kept.total_bytes) == (CONTENT[: 64 << 10], len(CONTENT))
    assert ask(app, "GET", "/simple/leak/").status == 404
    assert ask(app, "GET", "/packages/leak-1.0-py3-none-any.whl").status == 404
    assert list(tmp_path.iterdir()) == []


def test_an_upload_changes_nothing_of_what_is_served(tmp_path: Path) -> None:
    """The same file name as one of the directory's: the directory's stays."""
    path = make_wheel(tmp_path, "one", "1.0")
    app = make(context_for(tmp_path, Ledger()))
    content_type, body = form({**FIELDS, "name": "one"}, {"content": (path.name, CONTENT)})
    assert (
        ask(app, "POST", "/legacy/", headers={"content-type": content_type}, body=body).status
        == 200
    )
    assert ask(app, "GET", f"/packages/{path.name}").body == path.read_bytes()


def test_what_broke_off_or_cannot_be_read_is_recorded_too(tmp_path: Path) -> None:
    """A form that ends early, one that isn't, one without a name, and a client that went away."""
    ledger = Ledger()
    app = make(context_for(tmp_path, ledger))
    content_type, body = form(FIELDS, {"content": ("a-1.zip", CONTENT)})
    headers = {"content-type": content_type}
    assert ask(app, "POST", "/", headers=headers, body=body[:-20]).status == 400
    assert ask(app, "POST", "/", body=b"{}").status == 400
    assert ask(app, "POST", "/", headers=headers, body=form({}, {})[1]).status == 400
    assert ask(app, "POST", "/", headers=headers, body=body[:5000], break_off=True).status == 0
    reasons = [str(event["refused"]) for event in ledger.attempts]
    assert [
        "early" in reasons[0],
        "form-data" in reasons[1],
        "no name" in reasons[2],
        "broke off" in reasons[3],
    ] == [True] * 4
    assert ledger.attempts[3]["name"] == "leak"


def test_hostile_words_stay_small_and_visible(tmp_path: Path) -> None:
    """A megabyte of escapes for a name fits the event, and cannot act on a terminal."""
    ledger = Ledger()
    content_type, body = form(
        {**FIELDS, "name": "\x1b[2J" * 100_000}, {"content": ("../../\x1bx", b"")}
    )
    assert (
        ask(
            make(context_for(tmp_path, ledger)),
            "POST",
            "/",
            headers={"content-type": content_type},
            body=body,
        ).status
        == 200
    )
    assert "\x1b" not in str(ledger.attempts[0]["name"]) + str(ledger.attempts[0]["filename"])
    assert len(str(ledger.attempts[0]["name"])) < 1000


def test_the_longest_words_fit_an_event(tmp_path: Path) -> None:
    """Every field full of what JSON writes longest."""
    ledger, long = Ledger(), "\U0001f4a3" * 5000
    kept = {"filetype", "pyversion", "metadata_version", "sha256_digest"}
    kept |= {"summary", "author", "author_email"}
    names = ["name", "version", ":action", *kept]
    content_type, body = form(dict.fromkeys(names, long), {"content": (long[:3000], b"")})
    headers = {"content-type": content_type, "authorization": basic(long, long)}
    assert (
        ask(make(context_for(tmp_path, ledger)), "POST", "/", headers=headers, body=body).status
        == 200
    )
    assert len(ledger.attempts) == 1
    assert cast("Mapping[str, str]", ledger.attempts[0]["fields"]).keys() == kept
