"""Images of inspect_evals' own Dockerfiles, and what stands for bases that can't be had here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from belljar.image.apt import debian_sources, host_acquire_options, host_sources

Edits = Mapping[str, Sequence[tuple[str, str]]]
"""Files below a task's directory, and the regular expressions in them that are replaced in a copy.
"""


def package() -> Path:
    """Where inspect_evals is installed."""
    found = find_spec("inspect_evals")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("inspect_evals is not installed: run scripts/setup")
    return Path(found.submodule_search_locations[0])


@dataclass(frozen=True, kw_only=True)
class Build:
    """An image of a directory of the package, or of a copy of it with `edits`."""

    name: str
    directory: str
    edits: Edits = field(default_factory=dict)


_BASE_PACKAGES: Final = (
    "adduser,bash,busybox,ca-certificates,curl,gcc,git,libc6-dev,procps,python3,python3-pip,wget"
)
_DEBIAN_NAMES: Final = (
    *("debian:stable", "debian:trixie-slim", "marshw/kali-base", "python:3.9-slim-buster"),
    *("python:3.10", "python:3.12-bookworm", "python:3.12-slim", "ubuntu:24.04"),
)
_ALPINE_NAMES: Final = ("alpine", "alpine:3.14", "python:3-alpine")
_APK: Final = """\
#!/bin/sh
# Stands for Alpine's apk in an image of Debian: the same words, Debian's packages.
set -e
[ "$1" = update ] && exec apt-get update
shift
packages=
for word; do
  case $word in
    -*) ;;
    build-base) packages="$packages build-essential" ;;
    musl-dev) packages="$packages libc6-dev" ;;
    openssh) packages="$packages openssh-server openssh-client" ;;
    *) packages="$packages $word" ;;
  esac
done
apt-get update
DEBIAN_FRONTEND=noninteractive exec apt-get install -y --no-install-recommends $packages
"""
_ADDUSER: Final = """\
#!/bin/sh
# Stands for busybox's adduser in an image of Debian: [-D] [-s SHELL] [-h HOME] [-u UID] NAME
# [GROUP].
set -e
options= names=
while [ $# -gt 0 ]; do
  case $1 in
    -D) ;;
    -h) options="$options -d $2"; shift ;;
    -*) options="$options $1 $2"; shift ;;
    *) names="$names $1" ;;
  esac
  shift
done
set -- $names
getent group wheel >/dev/null || groupadd --system wheel
[ $# = 1 ] && exec useradd --create-home --shell /bin/ash $options "$1"
exec usermod --append --groups "$2" "$1"
"""


class Workshop:
    """Builds bases and tasks' images by `belljar image build` into one store, each once."""

    def __init__(self, home: Path, scratch: Path) -> None:
        self.home = home
        self._scratch = scratch
        self._built: set[str] = set()

    def bases(self) -> None:
        """Debian under the names that the Dockerfiles want; Alpine's with its tools' words."""
        if "debian:stable" in self._built:
            return
        debian, alpine = self._scratch / "debian", self._scratch / "alpine"
        for directory in (debian, alpine):
            directory.mkdir()
        _debian(debian)
        (debian / "Dockerfile").write_text('FROM scratch\nADD rootfs.tar /\nCMD ["bash"]\n')
        for name, text in (("apk", _APK), ("adduser", _ADDUSER)):
            (alpine / name).write_text(text)
            (alpine / name).chmod(0o755)
        (alpine / "Dockerfile").write_text(
            "FROM debian:stable\nCOPY apk adduser /usr/local/sbin/\nRUN ln -s busybox /bin/ash\n"
        )
        for directory, names in ((debian, _DEBIAN_NAMES), (alpine, _ALPINE_NAMES)):
            self._build(names[0], directory)
            for name in names[1:]:
                self._belljar("image", "tag", names[0], name)

    def images(self, builds: Sequence[Build]) -> None:
        """The images of a case."""
        self.bases()
        for build in builds:
            if build.name not in self._built:
                context = self._context(build)
                self._build(build.name, context)

    def _context(self, build: Build) -> Path:
        own = self._scratch / build.name.replace("/", "_")
        directory = package() / build.directory
        return edited(directory, own, build.edits) if build.edits else directory

    def _build(self, name: str, context: Path) -> None:
        self._belljar("image", "build", "--network", "--keep-setuid", "-t", name, str(context))
        self._built.add(name)

    def _belljar(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "belljar", *arguments]
        env = {**os.environ, "BELLJAR_HOME": str(self.home)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"belljar {' '.join(arguments)}: {done.stderr[-2000:]}")


def edited(source: Path, target: Path, edits: Edits) -> Path:
    """A copy of a directory in which each edit has matched."""
    shutil.copytree(source, target)
    for name, replacements in edits.items():
        text = (target / name).read_text()
        for pattern, replacement in replacements:
            text, count = re.subn(pattern, replacement, text)
            if not count:
                raise RuntimeError(f"{source / name} has no {pattern!r}")
        (target / name).write_text(text)
    return target


def _debian(directory: Path) -> None:
    """`rootfs.tar`: Debian 12 with Python and a compiler, from this host's mirror. Python's marker
    against pip is taken out, as in images of Python."""
    sources = directory / "mirror.sources"
    found = debian_sources(host_sources(), "bookworm")
    sources.write_text("\n".join(source.deb822() for source in found))
    argv = ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=tar", "--skip=output/dev"]
    argv += ["--quiet", f"--include={_BASE_PACKAGES}", '--aptopt=Apt::Install-Recommends "false"']
    argv += [f'--aptopt={name} "{value}"' for name, value in host_acquire_options().items()]
    argv += ['--customize-hook=rm "$1"/usr/lib/python3.11/EXTERNALLY-MANAGED']
    argv += ['--customize-hook=ln -s /usr/bin/python3 "$1"/usr/local/bin/python']
    subprocess.run([*argv, "bookworm", directory / "rootfs.tar", sources], check=True)
