"""A build's result, judged and packed in the build's namespace after all its steps have ended.

The tree is hostile: what `find` lists of it is judged as an archive's entries are.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from belljar.image.config import ImageConfig, config_of
from belljar.image.layers import MAX_TIME_S, ImportLimits, LayerError
from belljar.image.layers.headers import EntryKind, check_components
from belljar.image.layers.tree import SQUASHFS
from belljar.image.oci import check_places, check_platform, mount_points
from belljar.image.origin import parse_document
from belljar.image.storage import Tools
from belljar.image.tools import WORK, give_tree
from belljar.policy.files import read_regular
from belljar.units import printable

RESULT: Final = "localhost/result"
# squashfs has no times before 1970 and none after 2106. No name can forge a line of `tar`, which
# quotes names.
_SCAN: Final = f"""
container=$({{buildah}} from --pull=never {RESULT})
echo "$container" > {WORK}/out/container
mounted=$({{buildah}} mount "$container")
cd "${{{{mounted:?}}}}"
find . -xdev ! -newermt @-0.000000001 -exec touch -h -d @0 {{{{}}}} + -o \\
  -newermt @{MAX_TIME_S} -exec touch -h -d @{MAX_TIME_S} {{{{}}}} +
find . -xdev -mindepth 1 -printf '%y %m %n %i %s %T@ %P\\0' > {WORK}/out/files
tar --create --file=/dev/null --xattrs --xattrs-include='*' -vvv --quoting-style=c . |
  sed -n 's/^  x: *[0-9]* //p' | sort -u > {WORK}/out/xattrs
{{buildah}} inspect --type image {RESULT} > {WORK}/out/image
du -xsm {WORK}/storage | cut -f1 > {WORK}/out/layers
"""
_PACK: Final = f"""
read -r container < {WORK}/out/container
mounted=$({{buildah}} mount "$container")
cd "${{{{mounted:?}}}}"
"$@"
cd {WORK}
{{buildah}} rm "$container"
"""
_NO_DEVICES: Final = {b"c": "a character device", b"b": "a block device"}
_KINDS: Final = {
    EntryKind.DIRECTORY: b"d",
    EntryKind.FILE: b"f",
    EntryKind.SYMLINK: b"l",
    EntryKind.FIFO: b"p",
}
_RECORD: Final = re.compile(rb"([^\0]*)\0")
_MAX_LIST_BYTES: Final = 512 << 20
_MAX_XATTRS_BYTES: Final = 1 << 20
_MAX_DOCUMENT_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """`rootfs`: the packed tree; `document`: buildah's configuration of it, which a step that broke
    out of its container can have forged."""

    rootfs: Path
    config: ImageConfig
    document: dict[str, Any]
    has_setuid: bool
    layers_mib: int


@dataclass(slots=True, kw_only=True)
class Files:
    """A result's files, as listed: the kind of each path, the newest time."""

    kinds: dict[bytes, bytes] = field(default_factory=dict)
    newest_s: int = 0
    has_setuid: bool = False


def pack_result(tools: Tools, volumes: Iterable[str], *, keep_setuid: bool) -> BuildResult:
    """Pack the image `RESULT`, with the options of `layers.tree.pack` and with these volumes.

    A step that broke out of its container may have changed what the tools here read and write:
    `out` is held by its descriptor, and the tree is judged where the namespace can't reach it.
    Raises `LayerError` for what an image may not have, `HostError`.
    """
    try:
        with _held_directory(tools.inside.work / "out", tools.inside.first_uid) as out:
            return _packed(tools, out, volumes, keep_setuid=keep_setuid)
    except LayerError:
        raise
    except (OSError, ValueError) as error:  # not what the tools write
        raise LayerError(f"its files can't be listed: {printable(str(error))}") from error


@contextmanager
def _held_directory(path: Path, owner: int) -> Iterator[Path]:
    """Make a directory; a path to it that holds whatever its owner puts in its place."""
    path.mkdir(mode=0o700)  # nothing of the steps is here: this fails if they made one
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        give_tree(path, owner)
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _packed(tools: Tools, out: Path, volumes: Iterable[str], *, keep_setuid: bool) -> BuildResult:
    buildah = shlex.join(tools.buildah())
    tools.run("/bin/sh", "-ec", _SCAN.format(buildah=buildah))
    image = parse_document(_read(out, "image", _MAX_DOCUMENT_BYTES))
    document = dict(parse_document(str(image.get("Config")).encode()))
    check_platform(document)
    named = config_of({"config": {"Volumes": dict.fromkeys(volumes)}})
    config = replace(config_of(document), volumes=named.volumes)
    files = read_files(_read(out, "files", _MAX_LIST_BYTES), ImportLimits())
    xattrs = _read(out, "xattrs", _MAX_XATTRS_BYTES)
    argv = [
        *("mksquashfs", ".", f"{WORK}/out/rootfs", *SQUASHFS),
        *("-noappend", "-mkfs-time", str(files.newest_s), "-root-time", str(files.newest_s)),
        *(() if has_kept_xattrs(xattrs, keep_setuid=keep_setuid) else ("-no-xattrs",)),
        *("-action", "exclude@type(s)||type(b)||type(c)"),
        *(() if keep_setuid else ("-action", "chmod(ug-s)@!type(d)")),
        *(word for made in missing_points(files, config) for word in ("-p", made)),
    ]
    tools.run("/bin/sh", "-ec", _PACK.format(buildah=buildah), "pack", *argv)
    rootfs = tools.inside.work.parent / "rootfs"
    (out / "rootfs").rename(rootfs)
    found = rootfs.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise LayerError("it was not packed as a file")
    give_tree(rootfs, 0)
    return BuildResult(
        rootfs=rootfs,
        config=config,
        document=document,
        has_setuid=files.has_setuid,
        layers_mib=int(_read(out, "layers", 100)),
    )


def _read(directory: Path, name: str, max_bytes: int) -> bytes:
    raw = read_regular(directory, name, max_bytes + 1)
    if len(raw) > max_bytes:
        raise LayerError(f"a list of its files is longer than {max_bytes} bytes")
    return raw


def read_files(listed: bytes, limits: ImportLimits) -> Files:
    """The files that `find` listed. Pure. Raises `LayerError`."""
    files, left_bytes, seen = Files(), limits.max_bytes, set[bytes]()
    for found in _RECORD.finditer(listed):  # a forged list may have millions
        record = found[1]
        kind, mode, links, inode, size, time, path = record.split(b" ", 6)
        if len(files.kinds) == limits.max_entries:
            raise LayerError(f"it holds more than {limits.max_entries} entries")
        check_components(tuple(path.split(b"/")), path)
        if kind in _NO_DEVICES:
            raise LayerError(f"{printable(path[:200])!r} is {_NO_DEVICES[kind]}")
        if kind == b"s":  # as in Docker, no image has sockets
            continue
        files.kinds[path] = kind
        files.newest_s = max(files.newest_s, int(time.partition(b".")[0]))
        files.has_setuid |= kind != b"d" and bool(int(mode, 8) & 0o6000)
        if kind == b"f" and inode not in seen:
            left_bytes -= int(size)
            if links != b"1":
                seen.add(inode)
    if left_bytes < 0:
        raise LayerError(f"it is larger than {limits.max_bytes} bytes")
    known = {letter: kind for kind, letter in _KINDS.items()}
    check_places(lambda path: known.get(files.kinds.get(path, b"")))
    return files


def has_kept_xattrs(names: bytes, *, keep_setuid: bool) -> bool:
    """Return whether any of these belong into an image: `user.*`, and kept capabilities.

    `mksquashfs` 4.5 takes all or none. Pure. Raises `LayerError` where it would take others.
    """
    kept = (b"user.", b"security.capability") if keep_setuid else (b"user.",)
    # The label that a host's SELinux gives each file says nothing of the image.
    listed = [name for name in names.splitlines() if name != b"security.selinux"]
    if not any(name.startswith(kept) for name in listed):
        return False
    if others := [name for name in listed if not name.startswith(kept)]:
        raise LayerError(
            f"it has attributes of files that are kept and others that are not: "
            f"{printable(b', '.join(others)[:200])}",
            hint="remove them in the last step, or add --keep-setuid",
        )
    return True


def missing_points(files: Files, config: ImageConfig) -> Iterator[str]:
    """Definitions for `mksquashfs` of what `mount_points` wants and `files` lack. Pure."""
    kinds = dict(files.kinds)
    for parts, mode, kind in mount_points(config):
        path, above = b"/".join(parts), b"/".join(parts[:-1])
        if path in kinds or (above and kinds.get(above) != b"d"):
            continue
        kinds[path] = _KINDS[kind]
        name = os.fsdecode(path).replace("\\", "\\\\").replace('"', '\\"')
        made = f"D {files.newest_s}" if kind is EntryKind.DIRECTORY else f"F {files.newest_s}"
        yield f'"{name}" {made} {mode:o} 0 0' + ("" if kind is EntryKind.DIRECTORY else " true")
