"""The npm registry, asked directly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, ask, context_for, make_tar

from belljar.network.gateway.context import App
from belljar.network.stand_ins.npm import check, make


def pack(directory: Path, name: str, version: str, **more: object) -> Path:
    """A packed package."""
    manifest = json.dumps({"name": name, "version": version, **more}).encode()
    return make_tar(
        directory / f"{name.replace('/', '-')}-{version}.tgz", {"package/package.json": manifest}
    )


@pytest.fixture
def ledger() -> Ledger:
    """What the registry recorded."""
    return Ledger()


@pytest.fixture
def app(tmp_path: Path, ledger: Ledger) -> App:
    """A registry with two versions of a package, and a scoped one."""
    pack(tmp_path, "left", "1.0.0", description="Pads on the left")
    pack(tmp_path, "left", "1.1.0", description="Pads on the left")
    pack(tmp_path, "@team/right", "2.0.0", keywords=["pad"])
    return make(context_for(tmp_path, ledger))


@pytest.mark.parametrize("path", ["/@team/right", "/@team%2fright".replace("%2f", "/")])
def test_a_scoped_package(app: App, path: str, tmp_path: Path) -> None:
    """Its document leads to its file."""
    document = ask(app, "GET", path).json
    address = document["versions"]["2.0.0"]["dist"]["tarball"].removeprefix(
        "http://registry.example"
    )
    assert ask(app, "GET", address).body == (tmp_path / "@team-right-2.0.0.tgz").read_bytes()
    assert ask(app, "GET", "/@team/right/latest").json["version"] == "2.0.0"
    assert ask(app, "GET", "/-/package/@team/right/dist-tags").json == {"latest": "2.0.0"}


def test_a_version_a_range_and_a_search(app: App) -> None:
    """One version's document; a part of a file; packages by words."""
    assert ask(app, "GET", "/left/1.0.0").json["_id"] == "left@1.0.0"
    assert (
        ask(app, "GET", "/left/-/left-1.0.0.tgz", headers={"range": "bytes=0-1"}).body
        == b"\x1f\x8b"
    )
    found = ask(app, "GET", "/-/v1/search", query="text=pad&size=1").json["objects"]
    assert [one["package"]["name"] for one in found] == ["@team/right"]
    assert len(ask(app, "GET", "/-/v1/search", query="text=PAD+left").json["objects"]) == 1
    assert ask(app, "GET", "/-/v1/search", query="&" * 5000).status == 200


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/left/9.9.9", "/left/-/../../etc/passwd", "/left/-/right-2.0.0.tgz", "/@team", "/@team/right/-/left-1.0.0.tgz", "/-/nothing", "/left/a/b/c/d"],
)  # fmt: skip
def test_what_is_not_there(app: App, path: str) -> None:
    """404, as JSON."""
    reply = ask(app, "GET", path)
    assert (reply.status, reply.json) == (404, {"error": "Not found"})


def test_audits_find_nothing(app: App) -> None:
    """Both forms that clients ask in."""
    assert ask(app, "POST", "/-/npm/v1/security/advisories/bulk", body=b"{}").json == {}
    assert ask(app, "POST", "/-/npm/v1/security/audits/quick", body=b"{}").json["advisories"] == {}
    assert ask(app, "GET", "/-/ping").json == {}


def test_check_names_the_files(tmp_path: Path) -> None:
    """What is no package, what has no name, and what is there twice."""
    assert "empty" in str(check({}, tmp_path)[0])
    pack(tmp_path, "a", "1.0.0")
    assert check({}, tmp_path) == ()
    (tmp_path / "README.md").write_text("")
    (tmp_path / "broken.tgz").write_bytes(b"x")
    make_tar(tmp_path / "nameless.tgz", {"package/package.json": b"{}"})
    make_tar(tmp_path / "twice.tgz", {"package/package.json": b'{"name": "a", "version": "1.0.0"}'})
    text = "\n".join(map(str, check({}, tmp_path)))
    for part in (
        "README.md: not a packed",
        "broken.tgz: not a packed package that can be read",
        "nameless.tgz: its package.json has no name",
        "twice.tgz: the same package",
    ):
        assert part in text
    assert len(check({}, tmp_path)) == 4
