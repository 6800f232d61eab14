"""The package index, asked directly."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, ask, context_for, make_tar, make_wheel

from belljar.network.gateway.context import App
from belljar.network.stand_ins.pypi import check, chosen_type, make

JSON = "application/vnd.pypi.simple.v1+json"
HTML = "application/vnd.pypi.simple.v1+html"


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


def test_the_simple_index_in_both_forms(app: App) -> None:
    """PEP 503 and 691: the same files, hashes, Requires-Python and metadata digests; the content
    type says which."""
    html, document = (
        ask(app, "GET", "/simple/one/"),
        ask(app, "GET", "/simple/one/", headers={"accept": JSON}),
    )
    assert html.headers["content-type"] == "text/html; charset=utf-8"
    assert document.headers["content-type"] == JSON
    assert [entry["filename"] for entry in document.json["files"]] == [
        "one-1.0-py3-none-any.whl",
        "one-1.1-py3-none-any.whl",
    ]
    for entry in document.json["files"]:
        name = entry["filename"]
        assert f"../../packages/{name}#sha256={entry['hashes']['sha256']}".encode() in html.body
        file, metadata = (
            ask(app, "GET", f"/packages/{name}"),
            ask(app, "GET", f"/packages/{name}.metadata"),
        )
        assert hashlib.sha256(file.body).hexdigest() == entry["hashes"]["sha256"]
        assert len(file.body) == entry["size"]
        assert hashlib.sha256(metadata.body).hexdigest() == entry["core-metadata"]["sha256"]
        assert entry["requires-python"] == ">=3.9"
    assert [
        p["name"] for p in ask(app, "GET", "/simple/", headers={"accept": JSON}).json["projects"]
    ] == ["one", "two"]
    assert b'<a href="two/">two</a>' in ask(app, "GET", "/simple/").body


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", "text/html; charset=utf-8"),
        ("*/*", "text/html; charset=utf-8"),
        (f"{JSON}, {HTML};q=0.1, text/html;q=0.01", JSON),
        (f"{JSON};q=0.1, {HTML};q=0.5", HTML),
        (f"{JSON};q=0", None),
        ("application/json", None),
        (f"{JSON};q=nan", None),
    ],
)
def test_the_form_is_negotiated(accept: str, chosen: str | None) -> None:
    """By quality; 406 where nothing fits."""
    assert chosen_type(accept) == chosen


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
