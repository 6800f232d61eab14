"""Packing a tar stream into the read-only file system that a guest mounts.

Owners and modes come from the stream, so no privilege is needed.
"""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from belljar.errors import HostError
from belljar.image.tools import drained, failed, plain_env, started, tool

# In an emulated guest, lz4 reads as fast as plain data at half the size (design/policy.md).
_COMPRESSION: Final = ("-comp", "lz4")
_BLOCK: Final = ("-b", "128K")
_ROOT: Final = ("-root-mode", "755", "-root-uid", "0", "-root-gid", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An entry to pack: its header and, of a regular file, exactly `info.size` bytes."""

    info: tarfile.TarInfo
    chunks: Iterable[bytes] = ()


def pack(members: Iterable[Member], into: Path, *, made_s: int) -> None:
    """Write `members` as a squashfs file `into`; equal members give equal bytes.

    Directories come before what is in them. The root directory is always root's, mode 0755: an
    entry for it (".") is left out. No time is later than `made_s`, the file system's own.
    Raises `HostError` when the packer is missing, fails or finds no space.
    """
    argv = [
        tool("sqfstar"),
        *_COMPRESSION,
        *_BLOCK,
        *_ROOT,
        "-exit-on-error",
        "-no-progress",
        "-quiet",
        str(into),
    ]
    # squashfs-tools 4.5 ignores its option for the root directory's time; this sets and caps all.
    env = plain_env(SOURCE_DATE_EPOCH=str(made_s))
    with started(argv, stdin=subprocess.PIPE, env=env) as process, drained(process) as complaint:
        if process.stdin is None:
            raise ValueError("the packer was started without an input")
        # If it ends early, its status and last words say why.
        with suppress(BrokenPipeError), process.stdin as sink:
            for member in members:
                if member.info.name != ".":
                    _write(member, sink)
            sink.write(bytes(2 * tarfile.BLOCKSIZE))
        status = process.wait()
    if status != 0 and b"No space left" in complaint:
        raise HostError(
            "no space is left to pack the image",
            where=str(into.parent),
            hint="free some space there, or set BELLJAR_HOME to a directory on a larger disk",
        )
    if status != 0:
        raise failed(argv, status, bytes(complaint))
    into.chmod(0o444)


def _write(member: Member, sink: IO[bytes]) -> None:
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
