"""Debian and Python packages on a base: `belljar image build --apt … --pip …`.

apt and pip run inside the build, with this host's mirrors, proxies and indexes.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from belljar.errors import HostError, PolicyError
from belljar.image.apt import debian_sources, host_acquire_options, host_sources
from belljar.image.buildah import BuildRequest, build_dockerfile
from belljar.image.store import Image, Store
from belljar.image.tools import run_tool
from belljar.store.scratch import scratch_dir
from belljar.units import printable

_APT: Final = re.compile(r"[a-z0-9][a-z0-9.+-]*(?::[a-z0-9]+)?(?:=[A-Za-z0-9.+:~-]+)?", re.ASCII)
_PIP: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9._,-]+\])?(?:[=<>!~]=?=?[A-Za-z0-9.*+!_-]+)*",
    re.ASCII,
)
_PIP_OPTIONS: Final = frozenset(
    ("index-url", "extra-index-url", "find-links", "trusted-host", "proxy", "timeout", "cert")
)
_PLAIN: Final = re.compile(r"[A-Za-z0-9._~:/?#@%+=,-]+", re.ASCII)
_HAS_PIP: Final = "python3 -m pip --version >/dev/null 2>&1"


def build_packages(
    home: Path,
    name: str,
    *,
    base: str,
    apt: Sequence[str],
    pip: Sequence[str],
    report: Callable[[str], None] = lambda _line: None,
) -> Image:
    """The image `base` with packages. Raises as `build_dockerfile`."""
    for words, pattern, kind in ((apt, _APT, "a Debian package"), (pip, _PIP, "a Python package")):
        for word in words:
            if pattern.fullmatch(word) is None:
                hint = "write NAME or NAME==VERSION (apt: NAME=VERSION)"
                raise PolicyError(f"{printable(word)!r} is not {kind}", hint=hint)
    user = Store(home).find(base).user
    options = pip_options(report) if pip else {}
    with scratch_dir(home) as context:
        sources = debian_sources(host_sources(), "bookworm")
        # Without the paths of this host's keyrings: the base has Debian's own.
        unsigned = "\n".join(replace(source, signed_by="").deb822() for source in sources)
        (context / "belljar.sources").write_text(unsigned)
        acquire = (f'{key} "{value}";\n' for key, value in host_acquire_options().items())
        (context / "belljar.conf").write_text("".join(acquire))
        if cert := options.pop("cert", None):
            shutil.copyfile(cert[0], context / "cert.pem")
            options["cert"] = ["/run/belljar/cert.pem"]
        (context / "Dockerfile").write_text(dockerfile_for(base, user, apt, pip, options))
        request = BuildRequest(context=context, name=name, has_network=True)
        return build_dockerfile(home, request, report=report)[0]


def dockerfile_for(
    base: str,
    user: str,
    apt: Sequence[str],
    pip: Sequence[str],
    options: Mapping[str, Sequence[str]],
) -> str:
    """Installs packages, then returns to the base's user. Pure."""
    get = (
        "apt-get -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=/run/belljar"
        " -o APT::Sandbox::User=root -o APT::Install-Recommends=false -c "
        "/run/belljar/belljar.conf -q -y"
    )
    mount = "RUN --mount=type=bind,source=.,target=/run/belljar DEBIAN_FRONTEND=noninteractive"
    lines = [f"FROM {base}", "USER root"]
    if apt:
        install = f"{get} update && {get} install {' '.join(apt)} && {get} clean"
        lines.append(f"{mount} sh -c '{install}'")
    if pip:
        install = f"{get} update && {get} install python3-pip && {get} clean"
        lines.append(f"{mount} sh -c '{_HAS_PIP} || ({install})'")
        words = [f"--{key} {value}" for key, values in options.items() for value in values]
        command = ["python3 -m pip install --no-cache-dir", *words, *(f'"{word}"' for word in pip)]
        env = "PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore"
        lines.append(f"{mount} {env} {' '.join(command)}")
    return "\n".join([*lines, f"USER {user}", ""])


def pip_options(report: Callable[[str], None]) -> dict[str, list[str]]:
    """Return the indexes and proxies of this host's pip, without directories of this host."""
    try:
        listed = run_tool([sys.executable, "-m", "pip", "config", "list"], timeout_s=60).decode(
            "utf-8", "replace"
        )
    except HostError:
        return {}
    found: dict[str, list[str]] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        option = key.rpartition(".")[2]
        if option in _PIP_OPTIONS:
            words = value.strip().strip("'\"").replace("\\n", " ").split()
            for word in filter(_PLAIN.fullmatch, words):
                if option != "cert" and word.startswith(("file:", "/")):
                    report(f"pip's {option} {word} is left out: a build sees no files of this host")
                elif word not in found.setdefault(option, []):
                    found[option].append(word)
    return found
