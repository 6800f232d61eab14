"""The real apt against the repository on loopback: lists, cache, status and the installed files in
a directory of their own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, clean_environment, context_for, make_deb, served

from belljar.network.stand_ins.debian import make


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    """A repository with a package, what it needs, and an older version."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("apt isn't installed: this test wants a Debian")
    directory = tmp_path / "packages"
    directory.mkdir()
    make_deb(directory, "wanted", "1.0", more="Depends: needed (>= 2)\n")
    make_deb(
        directory,
        "wanted",
        "1.5~rc1",
        more="Depends: needed (>= 2)\n",
        files={"usr/share/wanted": b"1.5"},
    )
    make_deb(directory, "needed", "2:2.0", packing=".xz", files={"usr/share/needed": b"2"})
    with served(make(context_for(directory, Ledger()))) as address:
        yield f"http://{address}"


def make_root(directory: Path) -> Path:
    """What apt and dpkg expect of a root."""
    for name in (
        "lib/apt/lists/partial",
        "cache/apt/archives/partial",
        "log/apt",
        "lib/dpkg/info",
        "lib/dpkg/updates",
    ):
        (directory / "var" / name).mkdir(parents=True)
    for name in (
        "etc/apt/apt.conf.d",
        "etc/apt/preferences.d",
        "etc/apt/sources.list.d",
        "etc/apt/trusted.gpg.d",
        "tmp",
        "usr/share",
    ):
        (directory / name).mkdir(parents=True)
    (directory / "var/lib/dpkg/status").write_text("")
    return directory


def apt(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """apt-get on that root alone."""
    options = {
        "Dir": str(root),
        "Dir::State::status": str(root / "var/lib/dpkg/status"),
        "Dir::Bin::dpkg": str(shutil.which("dpkg")),
        "Acquire::Languages": "none",
        "APT::Architecture": "amd64",
        "APT::Architectures::": "amd64",
        "APT::Sandbox::User": "root",
        "APT::Update::Error-Mode": "any",
        "Acquire::http::Proxy": "DIRECT",
    }
    dpkg = [
        f"--root={root}",
        "--force-not-root",
        "--force-architecture",
        "--force-bad-path",
        "--log=/dev/null",
    ]
    lines = [f'{name} "{value}";' for name, value in options.items()] + [
        f'DPkg::Options:: "{option}";' for option in dpkg
    ]
    # Read before any other configuration; from then on `Dir` is the new root, so this machine's is
    # never looked at.
    (root / "apt.conf").write_text("\n".join(lines))
    environment = clean_environment(
        root / "home", DEBIAN_FRONTEND="noninteractive", APT_CONFIG=str(root / "apt.conf")
    )
    return subprocess.run(
        ["apt-get", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_apt_installs_with_dependencies(repository: str, tmp_path: Path) -> None:
    """install checks the digests and unpacks the newest version and what it needs."""
    root = make_root(tmp_path / "root")
    source = f"deb [trusted=yes] {repository}/debian bookworm main contrib non-free\n"
    (root / "etc/apt/sources.list").write_text(source)
    for _ in range(2):
        updated = apt(root, "update")
        assert updated.returncode == 0, updated.stderr
        assert "E:" not in updated.stderr
    downloaded = apt(root, "install", "-y", "--download-only", "wanted=1.0")
    assert downloaded.returncode == 0, downloaded.stderr
    assert (root / "var/cache/apt/archives/wanted_1.0_all.deb").is_file()
    installed = apt(root, "install", "-y", "--no-install-recommends", "wanted")
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert (root / "usr/share/wanted").read_text() == "1.5"
    assert (root / "usr/share/needed").read_text() == "2"
    status = (root / "var/lib/dpkg/status").read_text()
    assert "Version: 1.5~rc1" in status
    assert status.count("install ok installed") == 2
    assert "Unable to locate package" in apt(root, "install", "-y", "no-such-package").stderr
