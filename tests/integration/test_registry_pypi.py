"""Real clients against the Python package index on loopback: pip, uv, twine. Each has a home of its
own and knows no other index."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.registries import (
    Ledger,
    clean_environment,
    context_for,
    make_tar,
    make_wheel,
    served,
)

from belljar.network.stand_ins.pypi import make

PYPROJECT = b"""[build-system]
requires = []
build-backend = "hatchling.build"
[project]
name = "source"
version = "0.1"
[tool.hatch.build.targets.wheel]
include = ["source.py"]
"""


@pytest.fixture
def ledger() -> Ledger:
    """What the index recorded."""
    return Ledger()


@pytest.fixture
def index(tmp_path: Path, ledger: Ledger) -> Iterator[str]:
    """An index with a package, what it needs, an older and a newer version that this Python is too
    old for, and a source archive."""
    directory = tmp_path / "packages"
    directory.mkdir()
    make_wheel(directory, "needed", "2.0", code="VALUE = 42\n")
    for version, python in [("1.0", ""), ("1.5", ">=3.9"), ("2.0", ">=4")]:
        make_wheel(
            directory,
            "wanted",
            version,
            code=f"VERSION = {version!r}\n",
            requires_python=python,
            requires=["needed>=1"],
        )
    files = {
        "PKG-INFO": b"Metadata-Version: 2.1\nName: source\nVersion: 0.1\n",
        "pyproject.toml": PYPROJECT,
        "source.py": b"X = 1\n",
    }
    make_tar(
        directory / "source-0.1.tar.gz",
        {f"source-0.1/{name}": content for name, content in files.items()},
    )
    with served(make(context_for(directory, ledger))) as address:
        yield f"http://{address}"


def pip(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pip without any configuration of this machine's."""
    environment = clean_environment(home, PIP_CONFIG_FILE="/dev/null")
    argv = [
        sys.executable,
        "-m",
        "pip",
        "--isolated",
        "--disable-pip-version-check",
        "--no-cache-dir",
        *arguments,
    ]
    return subprocess.run(
        argv, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def imported(target: Path, code: str) -> str:
    """What a Python with `target` on its path prints."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_pip_installs_with_dependencies(index: str, tmp_path: Path) -> None:
    """The newest version for this Python, and what it needs; digests are checked by pip."""
    target = tmp_path / "target"
    done = pip(
        tmp_path / "home",
        "install",
        "--index-url",
        f"{index}/simple/",
        "--target",
        str(target),
        "wanted",
    )
    assert done.returncode == 0, done.stderr
    assert imported(
        target, "import needed, wanted; print(wanted.VERSION, needed.VALUE)"
    ).split() == ["1.5", "42"]


def test_pip_builds_a_source_archive_and_says_what_is_not_there(index: str, tmp_path: Path) -> None:
    """An archive is fetched and built; `pip index versions` lists; a package that doesn't exist is
    an error of pip's."""
    target = tmp_path / "target"
    done = pip(
        tmp_path / "home",
        "install",
        "--index-url",
        f"{index}/simple/",
        "--no-build-isolation",
        "--target",
        str(target),
        "source",
    )
    assert done.returncode == 0, done.stderr
    assert imported(target, "import source; print(source.X)").strip() == "1"
    versions = pip(
        tmp_path / "home", "index", "versions", "--index-url", f"{index}/simple/", "wanted"
    )
    assert "1.5, 1.0" in versions.stdout
    missing = pip(
        tmp_path / "home", "install", "--index-url", f"{index}/simple/", "no-such-package"
    )
    assert "No matching distribution" in missing.stderr


def test_uv_installs(index: str, tmp_path: Path) -> None:
    """uv asks for metadata files and ranges of its own accord."""
    target = tmp_path / "target"
    argv = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--no-config",
        "--no-cache",
        "--default-index",
        f"{index}/simple/",
        "--python",
        sys.executable,
    ]
    done = subprocess.run(
        [*argv, "--target", str(target), "wanted"],
        env=clean_environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert imported(target, "import wanted; print(wanted.VERSION)").strip() == "1.5"


def test_twine_uploads_into_a_void(index: str, tmp_path: Path, ledger: Ledger) -> None:
    """twine believes that it published; the ledger knows; nobody can install it."""
    wheel = make_wheel(tmp_path, "leak", "6.6.6", code="SECRET = 1\n")
    argv = [
        sys.executable,
        "-m",
        "twine",
        "upload",
        "--non-interactive",
        "--disable-progress-bar",
        "--repository-url",
        f"{index}/legacy/",
        "-u",
        "eve",
        "-p",
        "hunter2",
        str(wheel),
    ]
    done = subprocess.run(
        argv,
        env=clean_environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (event,) = ledger.attempts
    assert (event["name"], event["version"], event["user"], event["size_bytes"]) == (
        "leak",
        "6.6.6",
        "eve",
        wheel.stat().st_size,
    )
    assert event["sha256"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    refused = pip(
        tmp_path / "home",
        "download",
        "--index-url",
        f"{index}/simple/",
        "-d",
        str(tmp_path / "no"),
        "leak",
    )
    assert "No matching distribution" in refused.stderr
