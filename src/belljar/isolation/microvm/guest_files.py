"""A guest's boot files: initramfs, empty disk, RAM file."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import zlib
from pathlib import Path
from typing import Final

from belljar.dataclass import dataclass
from belljar.errors import HostError
from belljar.image.kernel import NIC_MODULES, Kernel, build_initramfs
from belljar.isolation.program_root import PACKAGE_HINT
from belljar.package import PROGRAMS_DIR, program_path

# The modules' names begin with the order in which the guest loads them.
_NUMBERED: Final = re.compile(r"\d+-")
# `mksquashfs` of an empty directory (gzip, -all-root, times 0), compressed; for trial boots.
_EMPTY_DISK: Final = (
    "eNrLKC4sZmSAASYwycggyHCAiZGBhQEBpkPpfij9HwoSoPxyNLoRSosyVNxKTqk4fYKB1Y"
    "BNWMDYOZNBJp/hB0cDA5oGFrBIJwAMrhaO"
)
# mksquashfs pads a file system to a multiple of it.
_DISK_BYTES: Final = 4096
_NIC_DRIVER: Final = "virtio_net"
_SETUP_HINT: Final = "run `belljar setup`"
# Raise it when `image.kernel.build_initramfs` changes layout.
_LAYOUT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestParts:
    """Agent, probe, modules; `digest` covers the initramfs's inputs."""

    agent: bytes
    probe: bytes
    modules: tuple[tuple[str, bytes], ...]
    digest: str

    def initramfs(self) -> bytes:
        """Raises `HostError` when a part is damaged."""
        try:
            return build_initramfs(self.agent, self.modules, probe=self.probe)
        except ValueError as exc:
            what = f"the guest's initramfs can't be made: {exc}"
            raise HostError(what, hint=_SETUP_HINT) from exc


def read_guest_parts(kernel: Kernel, *, nic: bool = False) -> GuestParts:
    """Network modules only with `nic`. Raises `HostError`: one is missing."""
    try:
        agent, probe = (program_path(name).read_bytes() for name in ("agent", "probe"))
        named = [(_NUMBERED.sub("", path.stem, count=1), path) for path in kernel.modules]
        modules = tuple(
            (name, path.read_bytes()) for name, path in named if nic or name not in NIC_MODULES
        )
    except OSError as exc:
        what = f"a part of the guest can't be read: {exc.strerror}"
        is_ours = Path(str(exc.filename)).parent == PROGRAMS_DIR
        hint = PACKAGE_HINT if is_ours else _SETUP_HINT
        raise HostError(what, where=str(exc.filename), hint=hint) from exc
    if nic and _NIC_DRIVER not in kernel.wanted:
        what = "the guest kernel was fetched without its network driver"
        raise HostError(what, where=str(kernel.vmlinuz), hint=_SETUP_HINT)
    digest = hashlib.sha256(f"initramfs {_LAYOUT}".encode())
    for name, contents in (("init", agent), ("p", probe), *modules):
        digest.update(f"\0{name}\0{len(contents)}\0".encode() + contents)
    return GuestParts(agent=agent, probe=probe, modules=modules, digest=digest.hexdigest())


def empty_disk() -> bytes:
    """An empty squashfs file system."""
    return zlib.decompress(base64.b64decode(_EMPTY_DISK)).ljust(_DISK_BYTES, b"\0")


def write_read_only(path: Path, contents: bytes) -> None:
    """Write, sync, a file its readers can't change."""
    with path.open("xb") as file:
        file.write(contents)
        file.flush()
        os.fchmod(file.fileno(), 0o444)
        os.fsync(file.fileno())
