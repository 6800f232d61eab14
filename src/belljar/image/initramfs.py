"""The initramfs: guest agent, probe program and kernel modules, as a cpio archive.

Pure: bytes in, bytes out, the same bytes for the same input.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from typing import Final

REQUIRED_MODULES: Final = (
    *(
        "virtio_ring",
        "virtio",
        "virtio_mmio",
        "virtio_blk",
        "virtio_console",
        "rng-core",
        "virtio-rng",
    ),
    *("squashfs", "overlay", "virtio_net"),
)
"""What a guest needs, each after what it depends on.

From `modules.dep` of Debian's 6.12 cloud kernels. On amd64 `virtio_ring`, `virtio`,
`virtio_console` and `rng-core` are built in.
"""
NIC_MODULES: Final = frozenset({"failover", "net_failover", "dimlib", "virtio_net"})
"""Those that only a guest with a network device loads, by their files' names."""

_MODULE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_DIRECTORIES: Final = ("dev", "m", "proc", "r", "sys")
_S_IFDIR, _S_IFREG, _S_IFCHR = 0o040000, 0o100000, 0o020000
_MAX_MODULES: Final = 100


def build(
    agent: bytes, modules: Sequence[tuple[str, bytes]], *, probe: bytes | None = None
) -> bytes:
    """The gzipped archive: `/init`, the probe program `/p`, and `/m/NN-name.ko` in load order.

    Args:
        agent: the static agent program of the guest's architecture.
        modules: (name without `.ko`, contents) of each module, uncompressed.
        probe: the static probe program; None: the guest has none.

    Raises:
        ValueError: no module's name, not an ELF file, or more than 100 modules.
    """
    programs = [("init", agent), *([("p", probe)] if probe is not None else [])]
    if len(modules) > _MAX_MODULES:
        raise ValueError(f"{len(modules)} modules; the guest takes at most {_MAX_MODULES}")
    for name, contents in [*programs, *modules]:
        if _MODULE_NAME.fullmatch(name) is None:
            raise ValueError(
                f"{name!r} is not a module's name; letters, digits, _ and - only, without .ko"
            )
        if not contents.startswith(b"\x7fELF"):
            raise ValueError(
                f"{name} is not an ELF file; decompress it first if its name ends in .xz"
            )
    return gzip.compress(b"".join(_archive(programs, modules)), compresslevel=6, mtime=0)


def _archive(
    programs: Sequence[tuple[str, bytes]], modules: Sequence[tuple[str, bytes]]
) -> Iterator[bytes]:
    inode = iter(range(1, 1_000_000))
    for directory in _DIRECTORIES:
        yield _entry(next(inode), directory, _S_IFDIR | 0o755)
    yield _entry(next(inode), "dev/console", _S_IFCHR | 0o600, device=(5, 1))
    for name, contents in programs:
        # An unreadable program can't be traced: the container has no uid of the guest's root.
        yield _entry(next(inode), name, _S_IFREG | (0o711 if name == "p" else 0o755), contents)
    for number, (name, contents) in enumerate(modules):
        yield _entry(next(inode), f"m/{number:02d}-{name}.ko", _S_IFREG | 0o644, contents)
    yield _entry(0, "TRAILER!!!", 0)


def _entry(
    inode: int, path: str, mode: int, contents: bytes = b"", *, device: tuple[int, int] = (0, 0)
) -> bytes:
    """One member in the "newc" format, padded to four bytes."""
    name = path.encode("ascii") + b"\0"
    links = 2 if mode & 0o170000 == _S_IFDIR else 1
    fields = (inode, mode, 0, 0, links, 0, len(contents), 0, 0, *device, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name) + _padded(contents)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
