"""What the npm registry knows of a directory."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.registries import make_tar

from belljar.network.stand_ins import npm as packages
from belljar.network.stand_ins.files import StoredFile

VERSIONS = st.from_regex(
    r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){2}(-(0|[1-9][0-9]?|[a-z]{1,3})(\.(0|[1-9][0-9]?|[a-z]{1,3}))?)?",
    fullmatch=True,
)


def shelved(path: Path) -> StoredFile:
    """A file as a directory's list has it."""
    return StoredFile(name=path.name, path=path, size_bytes=0, mtime_s=0)


def pack(directory: Path, name: str, version: str, **more: object) -> Path:
    """A packed package."""
    manifest = json.dumps({"name": name, "version": version, **more}).encode()
    return make_tar(
        directory / f"{name.replace('/', '-')}-{version}.tgz",
        {"package/package.json": manifest, "package/index.js": b"module.exports = 1\n"},
    )


def test_a_packument_has_digests_of_the_file(tmp_path: Path) -> None:
    """SHA-1, SHA-512 and the address, of each version."""
    path = pack(
        tmp_path,
        "@team/thing",
        "1.0.0",
        dependencies={"a": "^1"},
        scripts={"postinstall": "x"},
        readme="long",
    )
    known = packages.Packages(tmp_path)
    whole = asyncio.run(known.packument("@team/thing", "http://r"))
    assert whole is not None
    dist = whole["versions"]["1.0.0"]["dist"]
    assert dist["shasum"] == hashlib.sha1(path.read_bytes()).hexdigest()  # noqa: S324
    assert (
        dist["integrity"]
        == "sha512-" + base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    )
    assert dist["tarball"] == "http://r/@team/thing/-/thing-1.0.0.tgz"
    assert whole["versions"]["1.0.0"]["hasInstallScript"] is True


def test_latest_is_no_pre_release(tmp_path: Path) -> None:
    """Unless there is nothing else."""
    for version in ("1.10.0", "1.9.0", "2.0.0-rc.1"):
        pack(tmp_path, "a", version)
    pack(tmp_path, "b", "0.0.1-beta")
    known = packages.Packages(tmp_path)
    assert list(known.by_name["a"]) == ["1.9.0", "1.10.0", "2.0.0-rc.1"]
    assert (known.tags("a"), known.tags("b"), known.tags("c")) == (
        {"latest": "1.10.0"},
        {"latest": "0.0.1-beta"},
        {},
    )


@given(VERSIONS, VERSIONS)
@settings(deadline=None)
def test_the_order_is_total(one: str, other: str) -> None:
    """Two versions compare, one way only; a release stands above its pre-releases."""
    keys = packages.version_order(one), packages.version_order(other)
    assert (keys[0] < keys[1]) + (keys[1] < keys[0]) + (keys[0] == keys[1]) == 1
    assert packages.version_order(one.partition("-")[0] + "-zzzz") < packages.version_order(
        one.partition("-")[0]
    )


def test_the_order_of_the_standard() -> None:
    """The example of semver.org, 11."""
    ordered = [
        "x",
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
    ]
    assert sorted(ordered, key=packages.version_order) == ordered


@pytest.mark.parametrize(
    "name", ["", "../x", "@a", "@a/b/c", "a/b", "-/x", ".x", "a" * 215, "a b", "a\n"]
)
def test_names_that_are_refused(name: str) -> None:
    """What could be read as a path of the registry's own, or another's scope."""
    assert not packages.is_name(name)


def test_a_manifest_is_utf_8(tmp_path: Path) -> None:
    """With a byte order mark or without, as npm reads it; no other encoding is guessed."""
    manifest = '{"name": "a", "version": "1.0.0"}'
    for encoding in ("utf-8", "utf-8-sig"):
        make_tar(tmp_path / "a.tgz", {"package/package.json": manifest.encode(encoding)})
        assert packages.read_package(shelved(tmp_path / "a.tgz")).name == "a"
    make_tar(tmp_path / "a.tgz", {"package/package.json": manifest.encode("utf-16")})
    with pytest.raises(packages.PackageError):
        packages.read_package(shelved(tmp_path / "a.tgz"))


@given(st.binary(max_size=300), st.booleans())
def test_any_file_is_read_or_refused(tmp_path: Path, content: bytes, as_manifest: bool) -> None:
    """Broken archives and broken manifests are `PackageError`, nothing else."""
    path = tmp_path / "a.tgz"
    if as_manifest:
        make_tar(path, {"package/package.json": content})
    else:
        path.write_bytes(b"\x1f\x8b\x08\0" + content)
    try:
        packages.read_package(shelved(path))
    except packages.PackageError as error:
        assert str(error)  # noqa: PT017 - both ways are right; this one must say why
