"""Packing a tar stream into the read-only file system that a guest mounts. Owners and modes come from the stream, so no privilege is needed."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Protocol

from belljar.errors import HostError
from belljar.image.tools import drained, failed, plain_env, started, tool

# Measured in an emulated guest (design/0007): reading lz4 is as fast as or faster than reading plain data, at half the size.
_COMPRESSION: Final = ("-comp", "lz4")
_BLOCK: Final = ("-b", "128K")
_ROOT: Final = ("-root-mode", "755", "-root-uid", "0", "-root-gid", "0")


class Member(Protocol):
    """One entry of a packed tree: its tar header, and its content if it is a regular file."""

    @property
    def info(self) -> tarfile.TarInfo:
        """The header that is written."""
        ...

    @property
    def chunks(self) -> Iterable[bytes]:
        """The content, exactly `info.size` bytes; empty for all but regular files."""
        ...


def pack(members: Iterable[Member], into: Path, *, made_s: int) -> None:
    """Write `members` as a squashfs file `into`; equal members give equal bytes.

    `made_s` is the file system's own time stamp, and no entry's is later.

    An entry for the root directory (".") is left out: it is always root's, mode 0755. Directories come before what is in them.

    Raises `HostError` when the packer is missing, fails or finds no space.
    """
    argv = [tool("sqfstar"), *_COMPRESSION, *_BLOCK, *_ROOT, "-exit-on-error", "-no-progress", "-quiet", str(into)]
    # The option for the root directory's time does nothing in squashfs-tools 4.5; this variable sets it, and caps all others.
    env = plain_env(SOURCE_DATE_EPOCH=str(made_s))
    with started(argv, stdin=subprocess.PIPE, env=env) as process, drained(process) as complaint:
        # If it ends early, its status and last words say why.
        with suppress(BrokenPipeError):
            _write(members, process)
        status = process.wait()
    if status != 0:
        raise _packing_failed(argv, status, bytes(complaint))
    into.chmod(0o444)


def _write(members: Iterable[Member], process: subprocess.Popen[bytes]) -> None:
    if process.stdin is None:
        raise ValueError("the packer was started without an input")
    with process.stdin as sink:
        for member in members:
            if member.info.name != ".":
                write_member(member, sink)
        sink.write(bytes(2 * tarfile.BLOCKSIZE))


def write_member(member: Member, sink: IO[bytes]) -> None:
    """Write one entry with its content and padding. Raises `ValueError` if the content is not as long as the header says."""
    info = member.info
    sink.write(
        info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if info.pax_headers
        else info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    )
    if not info.isreg():
        return
    written = 0
    for chunk in member.chunks:
        sink.write(chunk)
        written += len(chunk)
    if written != info.size:
        raise ValueError(f"an entry of {info.size} bytes gave {written}")
    sink.write(bytes(-written % tarfile.BLOCKSIZE))


def _packing_failed(argv: list[str], status: int, complaint: bytes) -> HostError:
    if b"No space left" in complaint:
        return HostError(
            "no space is left to pack the image",
            where=str(Path(argv[-1]).parent),
            hint="free some space there, or set BELLJAR_HOME to a directory on a larger disk",
        )
    return failed(argv, status, complaint)
