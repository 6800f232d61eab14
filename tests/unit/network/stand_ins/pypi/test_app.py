"""The package index, asked directly."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, ask, context_for, make_tar, make_wheel

from belljar.network.gateway.context import App
from belljar.network.stand_ins.pypi import check, make


@pytest.fixture
def app(tmp_path: Path) -> App:
    """An index of two projects."""
    make_wheel(tmp_path, "one", "1.0", requires_python=">=3.9")
    make_wheel(tmp_path, "one", "1.1", requires_python=">=3.9")
    make_tar(
        tmp_path / "two-0.1.tar.gz",
        {"two-0.1/PKG-INFO": b"Metadata-Version: 2.1\nName: two\nVersion: 0.1\n"},
    )
    return make(context_for(tmp_path, Ledger()))


def test_the_simple_index(app: App) -> None:
    """PEP 503 and 658: files, hashes, Requires-Python and metadata digests."""
    html = ask(app, "GET", "/simple/one/")
    assert html.headers["content-type"] == "text/html; charset=utf-8"
    for version in ("1.0", "1.1"):
        name = f"one-{version}-py3-none-any.whl"
        file = ask(app, "GET", f"/packages/{name}")
        metadata = ask(app, "GET", f"/packages/{name}.metadata")
        digest = hashlib.sha256(file.body).hexdigest()
        assert f'href="../../packages/{name}#sha256={digest}"'.encode() in html.body
        known = hashlib.sha256(metadata.body).hexdigest()
        assert f'data-core-metadata="sha256={known}"'.encode() in html.body
    assert b'data-requires-python="&gt;=3.9"' in html.body
    assert b'<a href="two/">two</a>' in ask(app, "GET", "/simple/").body


def test_other_spellings_lead_to_the_normal_one(app: App) -> None:
    """PEP 503: redirected, with and without the last slash."""
    for path in ("/simple/ONE/", "/simple/one"):
        reply = ask(app, "GET", path)
        assert (reply.status, reply.headers["location"]) == (301, "/simple/one/")


def test_an_etag_saves_the_second_answer(app: App) -> None:
    """Of pages and of files."""
    for path in ("/simple/one/", "/packages/one-1.0-py3-none-any.whl"):
        etag = ask(app, "GET", path).headers["etag"]
        assert ask(app, "GET", path, headers={"if-none-match": etag}).status == 304


def test_head_has_no_body(app: App) -> None:
    """Everywhere that GET answers."""
    for path in (
        "/",
        "/simple/",
        "/simple/one/",
        "/packages/one-1.0-py3-none-any.whl",
        "/pypi/one/json",
        "/nothing",
    ):
        got, head = ask(app, "GET", path), ask(app, "HEAD", path)
        assert (head.status, head.body) == (got.status, b"")
        assert head.headers["content-length"] == str(len(got.body))


@pytest.mark.parametrize(
    "path",
    ["/packages/../../../etc/passwd", "/packages/..%2f..%2fetc%2fpasswd", "/packages//etc/passwd", "/packages/one-1.0-py3-none-any.whl/../x",
     "/packages/\0", "/simple/../", "/simple/nothing/", "/packages/two-0.1.tar.gz.metadata", "/pypi/one/9/json", "/pypi/none/json"],
)  # fmt: skip
def test_nothing_but_listed_files(app: App, path: str) -> None:
    """A path is looked up, not opened."""
    assert ask(app, "GET", path).status == 404


def test_the_json_interface(app: App) -> None:
    """`/pypi/NAME/json` describes the newest version and lists all; of one version, only its
    files."""
    document = ask(app, "GET", "/pypi/one/json").json
    assert (document["info"]["version"], set(document["releases"])) == ("1.1", {"1.0", "1.1"})
    assert document["urls"][0]["url"] == "http://registry.example/packages/one-1.1-py3-none-any.whl"
    assert (
        ask(app, "GET", "/pypi/one/1.0/json").json["urls"][0]["filename"]
        == "one-1.0-py3-none-any.whl"
    )


def test_other_methods_are_refused(app: App) -> None:
    """With the list of those allowed."""
    reply = ask(app, "DELETE", "/packages/one-1.0-py3-none-any.whl")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


def test_check_names_the_files(tmp_path: Path) -> None:
    """What is no package, what only looks like one, and what is there twice."""
    make_wheel(tmp_path, "good", "1")
    assert check({}, tmp_path) == ()
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "bad-1-py3-none-any.whl").write_bytes(b"no zip")
    (tmp_path / "again").mkdir()
    make_wheel(tmp_path / "again", "good", "1")
    (tmp_path / "link-1.tar.gz").symlink_to("notes.txt")
    text = "\n".join(map(str, check({}, tmp_path)))
    for name in (
        "notes.txt",
        "bad-1-py3-none-any.whl",
        "good-1-py3-none-any.whl: the same file name",
        "link-1.tar.gz",
    ):
        assert name in text
    assert len(check({}, tmp_path)) == 4
