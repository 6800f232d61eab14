"""Building the images that Belljar makes itself, from the host's own Debian mirror.

Nothing of the host and no traces of the build get into an image.
Equal package versions give equal bytes.
"""

from __future__ import annotations

import copy
import os
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Timer
from typing import IO, Final

from belljar.errors import HostError, PolicyError
from belljar.image.apt import PrivateApt, debian_sources, host_acquire_options, host_sources
from belljar.image.config import ImageConfig, debian_arch
from belljar.image.layers.tree import Member, pack
from belljar.image.store import Image, Store
from belljar.image.tools import drained, failed, kill_group, plain_env, started, tool
from belljar.store.home import need_space
from belljar.store.scratch import scratch_dir
from belljar.subids import first_subordinate_id, grant_hint, user_name
from belljar.units import printable

Report = Callable[[str], None]
USER: Final = "user"
UID: Final = 1000
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The largest recipe from a slow mirror.
_TIMEOUT_S: Final = 3600
# mmdebstrap unmounts and removes what it made when it is told to end.
_GRACE_S: Final = 20
_DAY_S: Final = 86400
_CHUNK_BYTES: Final = 1 << 20
_BASE: Final = (
    "adduser bash bzip2 ca-certificates coreutils curl diffutils file findutils git grep gzip "
    "hostname iproute2 jq less nano netbase patch procps psmisc python-is-python3 python3 sed tar "
    "unzip util-linux xz-utils zip"
)
_DEVELOPMENT: Final = "gcc g++ gdb libc6-dev make pkg-config python3-dev python3-pip python3-venv"
# What the image of Inspect's Docker provider has: `python:3.12-bookworm`, which stands on
# `buildpack-deps:bookworm`, and its own packages.
_INSPECT: Final = (
    "autoconf automake default-libmysqlclient-dev dpkg-dev gnupg imagemagick libbz2-dev "
    "libcurl4-openssl-dev libdb-dev libevent-dev libffi-dev libgdbm-dev libglib2.0-dev libgmp-dev "
    "libjpeg-dev libkrb5-dev liblzma-dev libmagickcore-dev libmagickwand-dev libmaxminddb-dev "
    "libncurses-dev libpng-dev libpq-dev libreadline-dev libsqlite3-dev libssl-dev libtool "
    "libwebp-dev libxml2-dev libxslt1-dev libyaml-dev mercurial openssh-client pipx subversion "
    "tk-dev uuid-dev wget zlib1g-dev"
)
_ADD_USER: Final = f'chroot "$1" useradd --create-home --shell /bin/bash --uid {UID} {USER}'
# Left out with everything below them; the directory itself stays.
_EMPTIED: Final = (
    *("dev/", "proc/", "sys/", "run/", "tmp/", "boot/", "etc/apt/sources.list.d/"),
    *("var/tmp/", "var/log/", "var/cache/", "var/lib/apt/lists/"),
    *(f"usr/share/{name}/" for name in ("man", "info", "locale", "lintian", "bug")),
)
# What mmdebstrap and its tools leave behind, what each machine has for itself (keys, ids), and
# documentation but licences.
_LEFT_OUT: Final = re.compile(
    r"etc/apt/sources\.list|etc/apt/apt\.conf\.d/99mmdebstrap|etc/dpkg/dpkg\.cfg\.d/99mmdebstrap"
    r"|etc/(?:passwd|group|shadow|gshadow|subuid|subgid)-|etc/\.pwd\.lock"
    r"|etc/ssh/ssh_host_.*|var/lib/dbus/machine-id|var/lib/dpkg/[a-z-]+-old|var/lib/systemd/"
    r"random-seed"
    r"|usr/share/doc/[^/]+/(?!copyright$).+|root/\.(?:bash_history|wget-hsts|cache)(?:/.*)?"
)
# The guest agent writes a cell's own over these when it is renewed: here they only exist.
_WRITTEN: Final = {
    "etc/machine-id": (b"", 0o444),
    "etc/resolv.conf": (b"", 0o644),
    "etc/hostname": (b"localhost\n", 0o644),
    "etc/hosts": (b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n", 0o644),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Building it takes about `disk_bytes`.

    `as_docker`: processes start as root in `/`, as in most images made for Docker; else as the
    unprivileged user, at home.
    """

    name: str
    packages: tuple[str, ...]
    disk_bytes: int
    summary: str
    codename: str = "bookworm"
    as_docker: bool = False

    @property
    def config(self) -> ImageConfig:
        """The configuration of its processes."""
        env = {"PATH": _PATH, "LANG": "C.UTF-8"}
        if self.as_docker:
            # Debian's pip refuses to install into the system; the pip of that image does not
            env["PIP_BREAK_SYSTEM_PACKAGES"] = "1"
            return ImageConfig(env=env, cmd=("tail", "-f", "/dev/null"))
        return ImageConfig(env=env, user=USER, workdir=f"/home/{USER}", cmd=("/bin/bash",))


RECIPES: Final[Mapping[str, Recipe]] = {
    each.name: each
    for each in (
        Recipe(
            name="default",
            packages=tuple(_BASE.split()),
            disk_bytes=1 << 30,
            summary="Debian 12 minimal, Python 3 and the usual tools",
        ),
        Recipe(
            name="debian-dev",
            packages=(*_BASE.split(), *_DEVELOPMENT.split()),
            disk_bytes=3 << 30,
            summary="the default image with gcc, make, gdb, pip and venv",
        ),
        Recipe(
            name="inspect",
            packages=(*_BASE.split(), *_DEVELOPMENT.split(), *_INSPECT.split()),
            disk_bytes=4 << 30,
            summary="stands for the image of Inspect's Docker provider: root, Python, compilers",
            as_docker=True,
        ),
    )
}


def recipe(name: str) -> Recipe:
    """Raises `PolicyError` that lists the names."""
    if name not in RECIPES:
        hint = f"recipes are: {', '.join(RECIPES)}"
        raise PolicyError(f"there is no recipe {printable(name)!r}", hint=hint)
    return RECIPES[name]


def build_image(
    home: Path, recipe: Recipe, *, mirror: str = "", report: Report = lambda _line: None
) -> Image:
    """Build a recipe and put it into the store under its name.

    `report` gets a line for each stage, from any thread. Raises `HostError`; then the store is as
    it was.
    """
    sources = debian_sources(host_sources(), recipe.codename, mirror=mirror)
    mode = "root" if os.geteuid() == 0 else "unshare"
    if mode == "unshare" and first_subordinate_id(Path("/etc/subuid")) is None:
        what = "an ordinary user can't build an image here: no subordinate user ids"
        raise HostError(what, where="/etc/subuid", hint=grant_hint(user_name()))
    need_space(home, recipe.disk_bytes, f"building the image {recipe.name}")
    with scratch_dir(home) as scratch:
        report("reading the package lists")
        apt = PrivateApt(scratch / "apt", sources)
        apt.update()
        # No file of a package is newer than the archive: all that is made here gets its time.
        made_s = apt.newest_release_s()
        rootfs, listed = scratch / "rootfs.sqfs", scratch / "mirror.sources"
        listed.write_text("\n".join(source.deb822() for source in sources))
        argv = mmdebstrap_argv(recipe, mode, listed)
        # Another user's ids can't enter the scratch directory: they use the system's own.
        own = {"TMPDIR": str(scratch)} if mode == "root" else {}
        with _made_by(
            argv, {**plain_env(SOURCE_DATE_EPOCH=str(made_s)), **own}, made_s, report
        ) as members:
            pack(members, rootfs, made_s=made_s)
        created = datetime.fromtimestamp(made_s, UTC).isoformat().replace("+00:00", "Z")
        source = f"mmdebstrap {recipe.codename}"
        return Store(home).add(
            rootfs, recipe.config, name=recipe.name, source=source, created=created
        )


def mmdebstrap_argv(recipe: Recipe, mode: str, sources: Path) -> list[str]:
    """It writes a tar stream to standard output."""
    return [
        tool("mmdebstrap"),
        f"--mode={mode}",
        "--variant=minbase",
        "--format=tar",
        f"--architectures={debian_arch()}",
        f"--include={','.join(recipe.packages)}",
        '--aptopt=Apt::Install-Recommends "false"',
        '--aptopt=Acquire::Languages "none"',
        *(f'--aptopt={name} "{value}"' for name, value in host_acquire_options().items()),
        *([] if recipe.as_docker else [f"--customize-hook={_ADD_USER}"]),
        recipe.codename,
        "-",
        str(sources),
    ]


@contextmanager
def _made_by(
    argv: list[str], env: Mapping[str, str], made_s: int, report: Report
) -> Iterator[Iterator[Member]]:
    """The entries that mmdebstrap makes; ends it when left."""

    def say(line: str) -> None:
        if line.startswith("I: "):
            report(line[3:])

    def members(stream: IO[bytes]) -> Iterator[Member]:
        # When the stream ends early, mmdebstrap's own message says why.
        try:
            yield from cleansed(stream, made_s=made_s)
        except tarfile.TarError:
            process.wait()
        if (status := process.wait()) != 0:
            raise failed(argv, status, bytes(complaint))

    with (
        started(argv, stdout=subprocess.PIPE, env=env) as process,
        drained(process, on_line=say) as complaint,
    ):
        if process.stdout is None:
            raise ValueError("the maker was started without an output")
        timer = Timer(_TIMEOUT_S, kill_group, [process])
        timer.start()
        try:
            yield members(process.stdout)
        finally:
            timer.cancel()
            kill_group(process, grace_s=_GRACE_S)


def cleansed(stream: IO[bytes], *, made_s: int) -> Iterator[Member]:
    """The entries that belong in an image."""
    with closing(tarfile.open(fileobj=stream, mode="r|")) as archive:
        for info in archive:
            if belongs(path := _plain_path(info.name)):
                yield _member(archive, info, path, made_s)
    for path, (content, mode) in _WRITTEN.items():
        info = tarfile.TarInfo(path)
        info.size, info.mode, info.mtime = len(content), mode, made_s
        yield Member(info=info, chunks=(content,) if content else ())


def belongs(path: str) -> bool:
    """Return whether this entry goes into the image unchanged."""
    if path in _WRITTEN or _LEFT_OUT.fullmatch(path):
        return False
    return not path.startswith(_EMPTIED)


def _plain_path(name: str) -> str:
    return name.removeprefix("./").strip("/") if name not in {".", "./", "/"} else ""


def _member(archive: tarfile.TarFile, info: tarfile.TarInfo, path: str, made_s: int) -> Member:
    """Without user names or times after `made_s`."""
    plain = copy.copy(info)
    plain.name = path or "."
    plain.uname = plain.gname = ""
    plain.mtime = min(int(info.mtime), made_s)
    plain.pax_headers = {k: v for k, v in info.pax_headers.items() if k.startswith("SCHILY.xattr.")}
    if info.islnk():
        plain.linkname = _plain_path(info.linkname)
    content = archive.extractfile(info) if info.isreg() else None
    if content is None:
        return Member(info=plain)
    if path != "etc/shadow":
        return Member(info=plain, chunks=iter(lambda: content.read(_CHUNK_BYTES), b""))
    # Each line's third field is the day it was made: that day is the archive's.
    day = str(made_s // _DAY_S).encode()
    lines = [line.split(b":") for line in content.read().splitlines()]
    changed = b"".join(b":".join([*line[:2], day, *line[3:]]) + b"\n" for line in lines)
    plain.size = len(changed)
    return Member(info=plain, chunks=(changed,))
