"""The images that Belljar makes itself: what is in them, and the command that makes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from belljar.errors import PolicyError
from belljar.image.config import ImageConfig
from belljar.units import printable

USER: Final = "user"
UID: Final = 1000
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An image to build from Debian packages. `disk_bytes` is about what building it takes."""

    name: str
    codename: str
    packages: tuple[str, ...]
    disk_bytes: int
    summary: str

    @property
    def config(self) -> ImageConfig:
        """How processes start in it: as the unprivileged user, at home."""
        env = {"PATH": _PATH, "LANG": "C.UTF-8"}
        return ImageConfig(env=env, user=USER, workdir=f"/home/{USER}", cmd=("/bin/bash",))


_BASE: Final = (
    *("adduser", "bash", "bzip2", "ca-certificates", "coreutils", "curl", "diffutils", "file", "findutils", "git"),
    *("grep", "gzip", "hostname", "iproute2", "jq", "less", "nano", "netbase", "patch", "procps", "psmisc", "python3"),
    *("sed", "tar", "unzip", "util-linux", "xz-utils", "zip"),
)
_DEVELOPMENT: Final = (
    "gcc",
    "g++",
    "gdb",
    "libc6-dev",
    "make",
    "pkg-config",
    "python3-dev",
    "python3-pip",
    "python3-venv",
)

RECIPES: Final[Mapping[str, Recipe]] = {
    "default": Recipe(
        name="default",
        codename="bookworm",
        packages=_BASE,
        disk_bytes=1 << 30,
        summary="Debian 12 minimal, Python 3 and the usual tools",
    ),
    "debian-dev": Recipe(
        name="debian-dev",
        codename="bookworm",
        packages=(*_BASE, *_DEVELOPMENT),
        disk_bytes=3 << 30,
        summary="the default image with gcc, make, gdb, pip and venv",
    ),
}


def recipe(name: str) -> Recipe:
    """The recipe with this name. Raises `PolicyError` that lists them."""
    if name not in RECIPES:
        raise PolicyError(f"there is no recipe {printable(name)!r}", hint=f"recipes are: {', '.join(RECIPES)}")
    return RECIPES[name]


def mmdebstrap_argv(
    recipe: Recipe, *, program: str, sources: Path, arch: str, mode: str, apt_options: Mapping[str, str]
) -> list[str]:
    """The command that writes the recipe's file system to standard output as a tar stream."""
    return [
        program,
        f"--mode={mode}",
        "--variant=minbase",
        "--format=tar",
        f"--architectures={arch}",
        f"--include={','.join(recipe.packages)}",
        '--aptopt=Apt::Install-Recommends "false"',
        '--aptopt=Acquire::Languages "none"',
        *(f'--aptopt={name} "{value}"' for name, value in apt_options.items()),
        f'--customize-hook=chroot "$1" useradd --create-home --shell /bin/bash --uid {UID} {USER}',
        recipe.codename,
        "-",
        str(sources),
    ]


def build_modes(*, is_root: bool, subordinate_ids: bool, tools: Sequence[str]) -> tuple[str, str]:
    """How mmdebstrap can work here: its mode, or "" and what is missing, in one line."""
    if is_root:
        return "root", ""
    if subordinate_ids and "newuidmap" in tools:
        return "unshare", ""
    if "fakechroot" in tools and "fakeroot" in tools:
        return "fakechroot", ""
    return (
        "",
        "as root: apt-get install uidmap && usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER",
    )
