"""A guest's boot files, and the read-only disk of a model's weights."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from belljar.dataclass import dataclass
from belljar.errors import HostError, host_errors
from belljar.image.kernel import NIC_MODULES, Kernel, build_initramfs
from belljar.image.tools import run_tool, tool
from belljar.isolation.program_root import PACKAGE_HINT, file_stamp
from belljar.package import program_path
from belljar.store.home import need_space
from belljar.store.locks import claimed, locked
from belljar.store.scratch import MAKING, owned_dir

# The modules' names begin with the order in which the guest loads them.
_NUMBERED: Final = re.compile(r"\d+-")
# `mksquashfs` of an empty directory (gzip, -all-root, times 0), compressed; for trial boots.
_EMPTY_DISK: Final = (
    "eNrLKC4sZmSAASYwycggyHCAiZGBhQEBpkPpfij9HwoSoPxyNLoRSosyVNxKTqk4fYKB1Y"
    "BNWMDYOZNBJp/hB0cDA5oGFrBIJwAMrhaO"
)
# mksquashfs pads a file system to a multiple of it.
_DISK_BYTES: Final = 4096
DATA_DISK: Final = "disk.sqfs"
# Says of which bytes the disk was made: a disk without it, or of others, is made again.
_MADE: Final = "disk.json"
# Nothing is compressed: weights gain nothing by it, and an emulated guest would pay for inflating.
_OPTIONS: Final = "-noappend -noI -noD -noF -noX -no-xattrs -all-root -all-time 0 -mkfs-time 0"
_TIMEOUT_S: Final = 4 * 3600.0  # weights may be hundreds of GB
_SETUP_HINT: Final = "run `belljar setup`"
# Raise it when `image.kernel.build_initramfs` changes layout.
_LAYOUT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestParts:
    """`digest` covers the initramfs's inputs."""

    agent: bytes
    probe: bytes
    modules: tuple[tuple[str, bytes], ...]
    digest: str

    def initramfs(self) -> bytes:
        try:
            return build_initramfs(self.agent, self.modules, probe=self.probe)
        except ValueError as exc:
            what = f"the guest's initramfs can't be made: {exc}"
            raise HostError(what, hint=_SETUP_HINT) from exc


def read_guest_parts(kernel: Kernel, *, nic: bool = False) -> GuestParts:
    """Network modules need `nic`. Raises `HostError`: one missing."""
    hint = f"{_SETUP_HINT}, or {PACKAGE_HINT}"
    with host_errors("a part of the guest can't be read", where=kernel.vmlinuz, hint=hint):
        agent, probe = (program_path(name).read_bytes() for name in ("agent", "probe"))
        named = [(_NUMBERED.sub("", path.stem, count=1), path) for path in kernel.modules]
        modules = tuple(
            (name, path.read_bytes()) for name, path in named if nic or name not in NIC_MODULES
        )
    digest = hashlib.sha256(f"initramfs {_LAYOUT}".encode())
    for name, contents in (("init", agent), ("p", probe), *modules):
        digest.update(f"\0{name}\0{len(contents)}\0".encode() + contents)
    return GuestParts(agent=agent, probe=probe, modules=modules, digest=digest.hexdigest())


def empty_disk() -> bytes:
    return zlib.decompress(base64.b64decode(_EMPTY_DISK)).ljust(_DISK_BYTES, b"\0")


def write_read_only(path: Path, contents: bytes) -> None:
    with path.open("xb") as file:
        file.write(contents)
        file.flush()
        os.fchmod(file.fileno(), 0o444)
        os.fsync(file.fileno())


def ensure_data_disk(home: Path, weights: Path) -> None:
    hint = "look if `belljar model ls` has them and the disk has room, then try again"
    with (
        host_errors("the disk of the weights can't be made", where=weights, hint=hint),
        claimed(weights),
        locked(home, f"disk-{weights.name[:16]}"),
    ):
        if is_as_made(weights):
            return
        directory, disk = weights / "data", weights / DATA_DISK
        total_bytes = sum(each.stat().st_size for each in directory.rglob("*"))
        need_space(home, total_bytes, "a disk of the weights for microVMs")
        with owned_dir(weights.parent, prefix=MAKING) as scratch:
            argv = [tool("mksquashfs"), str(directory), str(scratch / DATA_DISK)]
            argv += [*_OPTIONS.split(), "-no-progress", "-quiet"]
            run_tool(argv, timeout_s=_TIMEOUT_S)
            files = [each for each in directory.rglob("*") if not each.is_dir()]
            found = {each.relative_to(directory).as_posix(): file_stamp(each) for each in files}
            # Else it would hold other bytes than the digest's for good
            if found != json.loads((weights / "weights.json").read_text())["stamps"]:
                raise HostError("the weights changed while their disk was made", where=str(weights))
            (scratch / DATA_DISK).chmod(0o444)
            (scratch / DATA_DISK).rename(disk)
        (weights / _MADE).write_text(json.dumps(file_stamp(disk)))


def is_as_made(weights: Path) -> bool:
    with suppress(OSError, ValueError):
        return bool(json.loads((weights / _MADE).read_text()) == file_stamp(weights / DATA_DISK))
    return False
