"""What is present on this host, for `belljar setup`. Only reads."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from belljar.cli.setup_plan import HostState, Need, needs
from belljar.errors import HostError
from belljar.image.apt import host_sources
from belljar.image.kernel import REQUIRED_MODULES, current_kernel, debian_arch
from belljar.image.store import Store
from belljar.image.tools import run_tool

_SEARCHED: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_VERSION: Final = re.compile(r"version (\d{1,6})\.(\d{1,6})")


def host_state(home: Path) -> HostState:
    """The state of this host and of the store in `home`.

    Takes well under a second. Raises `HostError` on a machine without guests.
    """
    if platform.system() != "Linux":
        raise HostError(
            f"Belljar runs on Linux; this is {platform.system()}",
            hint="use a Linux machine or a virtual one",
        )
    release = _os_release()
    arch = debian_arch()
    return HostState(
        distribution=release.get("ID", "unknown"),
        codename=release.get("VERSION_CODENAME", ""),
        pretty_name=release.get("PRETTY_NAME", "an unknown Linux"),
        is_root=os.geteuid() == 0,
        debian_arch=arch,
        tools={
            need.command: version for need in needs(arch) if (version := _version(need)) is not None
        },
        sources=tuple(host_sources()),
        kernel=_kernel(home),
        images=_images(home),
        free_bytes=_free_bytes(home),
    )


def _os_release() -> Mapping[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _version(need: Need) -> tuple[int, ...] | None:
    path = shutil.which(need.command, path=f"{os.environ.get('PATH', '')}:{_SEARCHED}")
    if path is None or not need.least_version:
        return None if path is None else ()
    try:
        match = _VERSION.search(
            run_tool([path, "--version"], timeout_s=20).decode("utf-8", "replace")
        )
    except HostError:
        return None
    return (int(match[1]), int(match[2])) if match else ()


def _kernel(home: Path) -> str:
    """The version of a kernel that loads what today's guest wants, else ""."""
    try:
        kernel = current_kernel(home)
    except HostError:
        return ""
    return kernel.version if kernel.wanted == REQUIRED_MODULES else ""


def _images(home: Path) -> frozenset[str]:
    try:
        return frozenset(name for image in Store(home).list() for name in image.names)
    except HostError:
        return frozenset()


def _free_bytes(home: Path) -> int:
    there = next(path for path in (home, *home.parents) if path.is_dir())
    return shutil.disk_usage(there).free
