"""The Debian repository, asked directly."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, ask, basic, context_for, make_deb

from belljar.network.stand_ins.debian import check, make


def test_any_place_and_suite_leads_to_the_packages(tmp_path: Path) -> None:
    """Below any path, as mirrors have them; a flat repository too; the key lies beside."""
    path = make_deb(tmp_path, "tool", "1.0")
    app = make(context_for(tmp_path, Ledger()))
    for start in ("", "/debian", "/ubuntu/a/b"):
        assert (
            b"Package: tool"
            in ask(app, "GET", f"{start}/dists/noble/main/binary-arm64/Packages").body
        )
        assert (
            ask(app, "GET", f"{start}/pool/main/t/tool/tool_1.0_all.deb").body == path.read_bytes()
        )
        assert ask(app, "GET", f"{start}/dists/buster/updates/Release").body.startswith(
            b"Origin: Debian\nLabel: Debian\nSuite: buster/updates\n"
        )
    assert b"Package: tool" in ask(app, "GET", "/flat/Packages").body
    assert b"BEGIN PGP SIGNED" in ask(app, "GET", "/flat/InRelease").body
    assert b"BEGIN PGP PUBLIC KEY" in ask(app, "GET", "/key.asc").body
    assert (
        ask(app, "GET", "/pool/main/t/tool/tool_1.0_all.deb", headers={"range": "bytes=0-6"}).body
        == b"!<arch>"
    )


@pytest.mark.parametrize(
    "path",
    ["/", "/dists", "/dists/", "/dists/stable/", "/dists/stable/main/binary-amd64/Contents", "/pool/../../etc/passwd", "/pool/etc/passwd",
     "/dists/stable/main/by-hash/SHA256/../../x", "/etc/passwd", "/dists/a\nb/Release", "/dists/stable/main/Release", "/dists/x/key.asc"],
)  # fmt: skip
def test_what_is_not_there(tmp_path: Path, path: str) -> None:
    """404."""
    make_deb(tmp_path, "tool", "1.0")
    assert ask(make(context_for(tmp_path, Ledger())), "GET", path).status == 404


def test_head_and_etags(tmp_path: Path) -> None:
    """As apt asks when it has an index already."""
    make_deb(tmp_path, "tool", "1.0")
    app = make(context_for(tmp_path, Ledger()))
    for path in ("/dists/stable/InRelease", "/pool/main/t/tool/tool_1.0_all.deb"):
        got = ask(app, "GET", path)
        assert ask(app, "HEAD", path).headers["content-length"] == str(len(got.body))
        assert ask(app, "GET", path, headers={"if-none-match": got.headers["etag"]}).status == 304


def test_a_tree_is_served_as_it_is(tmp_path: Path) -> None:
    """Its own Release, its own pool; links in it lead nowhere."""
    (tmp_path / "dists/stable").mkdir(parents=True)
    (tmp_path / "pool").mkdir()
    (tmp_path / "dists/stable/Release").write_text("Suite: stable\n")
    (tmp_path / "pool/a.deb").write_bytes(b"deb")
    (tmp_path / "pool/link.deb").symlink_to("/etc/passwd")
    (tmp_path / "archive.asc").write_text("key")
    app = make(context_for(tmp_path, Ledger()))
    assert ask(app, "GET", "/debian/dists/stable/Release").body == b"Suite: stable\n"
    assert ask(app, "GET", "/pool/a.deb").body == b"deb"
    assert ask(app, "GET", "/archive.asc").body == b"key"
    for path in ("/pool/link.deb", "/pool/../../../etc/passwd", "/dists/other/Release", "/key.asc"):
        assert ask(app, "GET", path).status == 404


def test_an_upload_is_recorded_and_never_served(tmp_path: Path) -> None:
    """By PUT, as dput's; one that breaks off."""
    ledger = Ledger()
    app = make(context_for(tmp_path, ledger))
    content = os.urandom(100_000)
    headers = {"authorization": basic("eve", "hunter2")}
    assert (
        ask(
            app,
            "PUT",
            "/incoming/leak_1_all.deb",
            headers=headers,
            body=[content[:10], content[10:]],
        ).status
        == 201
    )
    event = ledger.attempts[0]
    assert {
        "what": "publish",
        "registry": "debian",
        "name": "leak_1_all.deb",
        "size_bytes": 100_000,
        "user": "eve",
        "refused": "",
    }.items() <= event.items()
    assert event["sha256"] == hashlib.sha256(content).hexdigest()
    assert ledger.bodies[0][0].content == content[: 64 << 10]
    assert ask(app, "GET", "/incoming/leak_1_all.deb").status == 404
    ask(app, "PUT", "/x", body=b"abc", break_off=True)
    assert "broke off" in str(ledger.attempts[1]["refused"])
    assert ask(app, "DELETE", "/x").status == 405


def test_check_names_the_files(tmp_path: Path) -> None:
    """What is no package, what is broken, what is there twice; a tree without a Release file."""
    assert "empty" in str(check({}, tmp_path)[0])
    make_deb(tmp_path, "aa", "1")
    assert check({}, tmp_path) == ()
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "broken.deb").write_bytes(b"x")
    make_deb(tmp_path, "aa", "1").rename(tmp_path / "twice.deb")
    make_deb(tmp_path, "aa", "1")
    text = "\n".join(map(str, check({}, tmp_path)))
    for part in ("notes.txt: not a Debian", "broken.deb: not an ar", "twice.deb: the same package"):
        assert part in text
    (tmp_path / "dists").mkdir()
    assert "Release" in str(check({}, tmp_path)[0])
    (tmp_path / "dists/InRelease").write_text("")
    assert check({}, tmp_path) == ()
