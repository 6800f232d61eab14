"""The real npm against the registry on loopback, with a home of its own and no other registry."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, clean_environment, context_for, make_tar, served

from belljar.network.stand_ins.npm import make


def pack(directory: Path, name: str, version: str, code: str, **more: object) -> None:
    """A packed package."""
    manifest = json.dumps({"name": name, "version": version, "main": "index.js", **more}).encode()
    path = directory / f"{name.replace('/', '-')}-{version}.tgz"
    make_tar(path, {"package/package.json": manifest, "package/index.js": code.encode()})


@pytest.fixture
def ledger() -> Ledger:
    """What the registry recorded."""
    return Ledger()


@pytest.fixture
def registry(tmp_path: Path, ledger: Ledger) -> Iterator[str]:
    """A registry with a package and a scoped one that needs it."""
    if shutil.which("npm") is None:
        pytest.skip("npm isn't installed: apt-get install npm")
    directory = tmp_path / "packages"
    directory.mkdir()
    pack(directory, "left", "1.0.0", "module.exports = 1\n")
    pack(directory, "left", "1.2.0", "module.exports = 12\n", description="pads")
    pack(
        directory,
        "@team/right",
        "2.0.0",
        "module.exports = require('left') * 2\n",
        dependencies={"left": "^1.0.0"},
    )
    with served(make(context_for(directory, ledger))) as address:
        yield f"http://{address}/"


def npm(where: Path, registry: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """npm in a directory, without any configuration of this machine's."""
    where.mkdir(exist_ok=True)
    home = where.parent / "home"
    empty = where.parent / "npmrc"
    empty.write_text("")
    settings = {
        "registry": registry,
        "globalconfig": str(empty),
        "userconfig": str(home / ".npmrc"),
        "cache": str(home / "cache"),
        "update_notifier": "false",
    }
    environment = clean_environment(
        home, **{f"npm_config_{name}": value for name, value in settings.items()}
    )
    return subprocess.run(
        ["npm", *arguments],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def test_npm_installs_with_dependencies(registry: str, tmp_path: Path) -> None:
    """A scoped package and what it needs, digests checked by npm, with the audit that follows; then
    again from the lock file."""
    where = tmp_path / "project"
    done = npm(where, registry, "install", "--audit=true", "@team/right")
    assert done.returncode == 0, done.stderr
    assert "found 0 vulnerabilities" in done.stdout
    assert (
        subprocess.run(
            ["node", "-p", "require('@team/right')"],
            cwd=where,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        == "24"
    )
    lock = json.loads((where / "package-lock.json").read_text())
    assert lock["packages"]["node_modules/left"]["integrity"].startswith("sha512-")
    assert npm(where, registry, "ci").returncode == 0


def test_npm_asks(registry: str, tmp_path: Path) -> None:
    """view, dist-tag, ping; a package that isn't there is npm's E404."""
    where = tmp_path / "project"
    assert npm(where, registry, "view", "left", "version").stdout.strip() == "1.2.0"
    assert "latest: 1.2.0" in npm(where, registry, "dist-tag", "ls", "left").stdout
    assert npm(where, registry, "ping").returncode == 0
    assert "E404" in npm(where, registry, "install", "no-such-package").stderr


def test_npm_publishes_into_a_void(registry: str, tmp_path: Path, ledger: Ledger) -> None:
    """npm believes that it published and unpublished; the ledger knows; nobody sees a
    difference."""
    where = tmp_path / "leak"
    where.mkdir()
    (where / "package.json").write_text(json.dumps({"name": "@team/leak", "version": "6.6.6"}))
    (where / "index.js").write_text("// secret\n")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".npmrc").write_text(f"{registry.removeprefix('http:')}:_authToken=npm_hunter2\n")
    done = npm(where, registry, "publish", "--access", "public")
    assert done.returncode == 0, done.stderr
    assert "+ @team/leak@6.6.6" in done.stdout
    (event,) = ledger.attempts
    assert (event["what"], event["name"], event["version"], event["credentials"]) == (
        "publish",
        "@team/leak",
        "6.6.6",
        "bearer",
    )
    assert "E404" in npm(where, registry, "view", "@team/leak").stderr
    gone = npm(where, registry, "unpublish", "--force", "left@1.0.0")
    assert gone.returncode == 0, gone.stderr
    assert {str(event["what"]) for event in ledger.attempts[1:]} == {"unpublish"}
    assert npm(where, registry, "view", "left@1.0.0", "version").stdout.strip() == "1.0.0"
    assert npm(where, registry, "whoami").stdout.strip() == "developer"
