"""The package index, asked directly: what it serves, names of files, and uploads."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.utils import canonicalize_name
from tests.fakes.registries import Ledger, ask, basic, context_for, form, make_tar, make_wheel

from belljar.network.gateway.context import App
from belljar.network.stand_ins.pypi import check, make, parse_file_name

FIELDS = {":action": "file_upload", "name": "leak", "version": "1.0", "filetype": "bdist_wheel"}
CONTENT = b"secrets" * 20_000


@pytest.fixture
def app(tmp_path: Path) -> App:
    """An index of two projects."""
    make_wheel(tmp_path, "one", "1.0", requires_python=">=3.9")
    make_wheel(tmp_path, "one", "1.1", requires_python=">=3.9")
    make_tar(
        tmp_path / "two-0.1.tar.gz",
        {"two-0.1/PKG-INFO": b"Metadata-Version: 2.1\nName: two\nRequires-Python: >=3\n"},
    )
    return make(context_for(tmp_path, Ledger()))


@pytest.mark.parametrize(
    "path",
    [
        "/packages/../../../etc/passwd",
        "/packages/..%2f..%2fetc%2fpasswd",
        "/packages/\0",
        "/simple/nothing/",
        "/pypi/one/json",
    ],
)
def test_nothing_but_listed_files(app: App, path: str) -> None:
    """A path is looked up, not opened."""
    assert ask(app, "GET", path).status == 404


def test_check_names_the_files(tmp_path: Path) -> None:
    """What is no package, and what only looks like one."""
    make_wheel(tmp_path, "good", "1")
    assert check({}, tmp_path) == ()
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "bad-1-py3-none-any.whl").write_bytes(b"no zip")
    notes, bad = sorted(map(str, check({}, tmp_path)), reverse=True)
    assert "notes.txt" in notes
    assert "bad-1-py3-none-any.whl" in bad


@given(st.text(max_size=60), st.sampled_from(["", "-1.0-py3-none-any.whl", "-1.0.tar.gz"]))
@settings(deadline=None)
def test_any_name_is_parsed_or_not(start: str, end: str) -> None:
    """No name raises, and none that is taken can be a path."""
    found = parse_file_name(start + end)
    assert found is None or ("/" not in start and canonicalize_name(found[0]) == found[0])


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


def test_what_cannot_be_read_is_recorded_too(tmp_path: Path) -> None:
    """A form that ends early, one that isn't, and one without a name."""
    ledger = Ledger()
    app = make(context_for(tmp_path, ledger))
    content_type, body = form(FIELDS, {"content": ("a-1.zip", CONTENT)})
    headers = {"content-type": content_type}
    assert ask(app, "POST", "/", headers=headers, body=body[:-20]).status == 400
    assert ask(app, "POST", "/", body=b"{}").status == 400
    assert ask(app, "POST", "/", headers=headers, body=form({}, {})[1]).status == 400
    reasons = [str(event["refused"]) for event in ledger.attempts]
    assert ["early" in reasons[0], "form-data" in reasons[1], "no name" in reasons[2]] == [True] * 3


def test_the_longest_words_fit_an_event(tmp_path: Path) -> None:
    """Every field full of what JSON writes longest."""
    ledger, long = Ledger(), "\U0001f4a3" * 5000
    names = ["name", "version", ":action"]
    content_type, body = form(dict.fromkeys(names, long), {"content": (long[:3000], b"")})
    headers = {"content-type": content_type, "authorization": basic(long, long)}
    assert (
        ask(make(context_for(tmp_path, ledger)), "POST", "/", headers=headers, body=body).status
        == 200
    )
    assert len(ledger.attempts) == 1
