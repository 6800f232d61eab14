"""What a guest is booted from: the initramfs, made of the package's agent, its probe program and
the kernel's modules, and the digests that go into a template's key.
"""

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
from belljar.image import Kernel
from belljar.image.kernel import NIC_MODULES, build_initramfs
from belljar.package import PROGRAMS_DIR, program_path

_NUMBERED: Final = re.compile(r"\d+-")
_EMPTY_DISK: Final = (
    "eNrLKC4sZmSAASYwycggyHCAiZGBhQEBpkPpfij9HwoSoPxyNLoRSosyVNxKTqk4fYKB1Y"
    "BNWMDYOZNBJp/hB0cDA5oGFrBIJwAMrhaO"
)
"""`mksquashfs` of an empty directory (gzip, -all-root, times 0), compressed: a guest that only has
to come up needs a disk, but nothing on it.
"""
_DISK_BYTES: Final = 4096
_NIC_DRIVER: Final = "virtio_net"
_LAYOUT: Final = 2
"""Raised when `image.kernel.build_initramfs` lays the same parts out differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestParts:
    """The agent, the probe program and the modules.

    `digest` covers them all: an initramfs is a pure function of them.
    """

    agent: bytes
    probe: bytes
    modules: tuple[tuple[str, bytes], ...]
    digest: str

    def initramfs(self) -> bytes:
        """The archive. Raises `HostError` when a part is damaged."""
        try:
            return build_initramfs(self.agent, self.modules, probe=self.probe)
        except ValueError as exc:
            raise HostError(
                f"the guest's initramfs can't be made: {exc}",
                where="initramfs",
                hint="run `belljar setup`",
            ) from exc


def read_guest_parts(kernel: Kernel, *, nic: bool = False) -> GuestParts:
    """For this kernel, with this package's programs; the network device's modules only for a guest
    that has one. Raises `HostError` when a part is missing.
    """
    try:
        agent, probe = (program_path(name).read_bytes() for name in ("agent", "probe"))
        named = [(_NUMBERED.sub("", path.stem, count=1), path) for path in kernel.modules]
        modules = tuple(
            (name, path.read_bytes()) for name, path in named if nic or name not in NIC_MODULES
        )
    except OSError as exc:
        hint = (
            "install the package again; its build compiles it"
            if Path(str(exc.filename)).parent == PROGRAMS_DIR
            else "run `belljar setup`"
        )
        raise HostError(
            f"a part of the guest can't be read: {exc.strerror}", where=str(exc.filename), hint=hint
        ) from exc
    if nic and _NIC_DRIVER not in kernel.wanted:
        raise HostError(
            "the guest kernel was fetched without its network driver",
            where=str(kernel.vmlinuz),
            hint="run `belljar setup`",
        )
    digest = hashlib.sha256(f"initramfs {_LAYOUT}".encode())
    for name, contents in (("init", agent), ("p", probe), *modules):
        digest.update(f"\0{name}\0{len(contents)}\0".encode() + contents)
    return GuestParts(agent=agent, probe=probe, modules=modules, digest=digest.hexdigest())


def empty_disk() -> bytes:
    """An empty squashfs file system."""
    return zlib.decompress(base64.b64decode(_EMPTY_DISK)).ljust(_DISK_BYTES, b"\0")


def write_read_only(path: Path, contents: bytes) -> None:
    """A file that its readers can't change and that is on the disk when this returns."""
    with path.open("xb") as file:
        file.write(contents)
        file.flush()
        os.fchmod(file.fileno(), 0o444)
        os.fsync(file.fileno())
