"""What of a freshly made file system goes into an image: nothing of the host, no traces of the making, the same bytes each time. Pure."""

from __future__ import annotations

import copy
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

# Left out with everything below them; the directory itself stays.
_EMPTIED: Final = (
    "dev",
    "proc",
    "sys",
    "run",
    "tmp",
    "boot",
    "etc/apt/sources.list.d",
    "var/tmp",
    "var/log",
    "var/cache",
    "var/lib/apt/lists",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/bug",
)
_LEFT_OUT: Final = re.compile(
    r"etc/apt/sources\.list|etc/apt/apt\.conf\.d/99mmdebstrap|etc/dpkg/dpkg\.cfg\.d/99mmdebstrap"
    r"|etc/(?:passwd|group|shadow|gshadow|subuid|subgid)-|etc/\.pwd\.lock"
    r"|etc/ssh/ssh_host_.*|var/lib/dbus/machine-id|var/lib/dpkg/[a-z-]+-old|var/lib/systemd/random-seed"
    r"|usr/share/doc/[^/]+/(?!copyright$).+|root/\.(?:bash_history|wget-hsts|cache)(?:/.*)?"
)
# The guest agent writes a cell's own over these when it is renewed: here they only exist.
_WRITTEN: Final = {
    "etc/machine-id": (b"", 0o444),
    "etc/resolv.conf": (b"", 0o644),
    "etc/hostname": (b"localhost\n", 0o644),
    "etc/hosts": (b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n", 0o644),
}
_SHADOW: Final = frozenset({"etc/shadow"})
_SHADOW_DAY_FIELD: Final = 2
_DAY_S: Final = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tar entry to be packed."""

    info: tarfile.TarInfo
    chunks: Iterable[bytes] = ()


def plain_path(name: str) -> str:
    """An entry's path without the leading `./` and trailing slashes; the root directory is ""."""
    return name.removeprefix("./").strip("/") if name not in {".", "./", "/"} else ""


def belongs(path: str) -> bool:
    """Whether an entry of the made file system goes into the image as it is."""
    if path in _WRITTEN or _LEFT_OUT.fullmatch(path):
        return False
    return not any(path.startswith(f"{directory}/") for directory in _EMPTIED)


def normalised(info: tarfile.TarInfo, *, newest_s: int) -> tarfile.TarInfo:
    """The header without names of users (ids count) and with no time later than `newest_s`."""
    plain = copy.copy(info)
    plain.name = plain_path(info.name) or "."
    plain.uname = plain.gname = ""
    plain.mtime = min(int(info.mtime), newest_s)
    plain.pax_headers = {k: v for k, v in info.pax_headers.items() if k.startswith("SCHILY.xattr.")}
    return plain


def rewritten(path: str, content: bytes, *, newest_s: int) -> bytes:
    """The content of a file that holds the day it was made: that day is the archive's."""
    if path not in _SHADOW:
        return content
    day = str(newest_s // _DAY_S).encode()
    lines = [line.split(b":") for line in content.splitlines()]
    return b"".join(
        b":".join([*line[:_SHADOW_DAY_FIELD], day, *line[_SHADOW_DAY_FIELD + 1 :]]) + b"\n" for line in lines
    )


def is_rewritten(path: str) -> bool:
    """Whether `rewritten` would change this file."""
    return path in _SHADOW


def written_entries(*, newest_s: int) -> list[Entry]:
    """The files that every image has whatever the host's were."""
    return [_file(path, content, mode, newest_s) for path, (content, mode) in _WRITTEN.items()]


def _file(path: str, content: bytes, mode: int, newest_s: int) -> Entry:
    info = tarfile.TarInfo(path)
    info.size, info.mode, info.mtime = len(content), mode, newest_s
    return Entry(info=info, chunks=(content,) if content else ())
