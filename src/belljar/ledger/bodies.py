"""Bodies of a run being written: their references, and the files that hold them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.events import Body
from belljar.ledger.chain import sha256_hex
from belljar.ledger.files import BODIES, write_all
from belljar.store.home import sync_file

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PreparedBody:
    """A body, its digest, and its reference in the line."""

    digest: str
    content: bytes
    ref: dict[str, Any]


def prepare_body(body: Body) -> PreparedBody:
    """Digest a body. Raises `ValueError` for a bad name, size or digest. Pure."""
    kept, digest = len(body.content), sha256_hex(body.content)
    if not _NAME.fullmatch(body.name):
        raise ValueError(f"{body.name!r} is not a body's name")
    if kept > body.total_bytes:
        raise ValueError(f"body {body.name}: {kept} bytes kept of {body.total_bytes}")
    if kept == body.total_bytes and body.sha256 not in {digest, ""}:
        raise ValueError(f"body {body.name}: its digest is of other bytes")
    whole = body.sha256 or (digest if kept == body.total_bytes else None)
    ref: dict[str, Any] = {
        "name": body.name,
        "sha256": whole,
        "kept_bytes": kept,
        "total_bytes": body.total_bytes,
    }
    if kept and digest != whole:
        ref["stored_sha256"] = digest
    return PreparedBody(digest, body.content, ref)


class BodyStore:
    """The `bodies` directory of a run being written. Not thread-safe."""

    def __init__(self, run_dir: Path) -> None:
        self._root = run_dir / BODIES
        self._known: set[bytes] = set()
        self._folders: set[str] = set()
        self._unsynced: list[str] = []
        self.bytes = 0
        self._root.mkdir(mode=0o700)

    def __len__(self) -> int:
        return len(self._known)

    def keep(self, body: PreparedBody) -> None:
        """Store it whole, unless it is stored or empty. Raises `OSError`."""
        name = bytes.fromhex(body.digest)
        if not body.content or name in self._known:
            return
        folder, part = self._root / body.digest[:2], self._root / ".part"
        if body.digest[:2] not in self._folders:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._folders.add(body.digest[:2])
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(part, flags, 0o600)
        try:
            write_all(fd, body.content)
        finally:
            os.close(fd)
        part.rename(folder / body.digest)
        self._known.add(name)
        self._unsynced.append(body.digest)
        self.bytes += len(body.content)

    def take_unsynced(self) -> list[str]:
        """The digests stored since the last call; the caller syncs them."""
        taken, self._unsynced = self._unsynced, []
        return taken

    def sync(self, digests: list[str]) -> None:
        """Force these bodies and their directories to the disk."""
        for digest in digests:
            fd = os.open(self._root / digest[:2] / digest, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        for folder in {digest[:2] for digest in digests}:
            sync_file(self._root / folder)
        if digests:
            sync_file(self._root)
