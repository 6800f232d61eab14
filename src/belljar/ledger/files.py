"""The files of a run directory: safe reading and writing, bodies, and the manifest.

An attacker may have made what is read: no symlink is followed, nothing is unbounded.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from belljar.dataclass import dataclass
from belljar.errors import LedgerError
from belljar.events import Body
from belljar.ledger.chain import parse_canonical, sha256_hex
from belljar.ledger.schema import Checkpoint, Manifest
from belljar.store.home import sync_file
from belljar.units import printable

LEDGER: Final = "ledger.jsonl"
CHECKPOINTS: Final = "checkpoints.jsonl"
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_MAX_DEPTH: Final = 16


def write_all(fd: int, content: bytes) -> None:
    """Write all of it. Raises `OSError`."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def write_file(path: Path, content: bytes) -> None:
    """Make a new file, 0600, synced. Raises `OSError`."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        write_all(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def open_directory(path: Path) -> Iterator[int]:
    """A directory's descriptor during the block. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def open_beneath(dir_fd: int, path: str) -> BinaryIO:
    """Open a regular file by a relative path without symlinks.

    Raises `FileNotFoundError`, or `LedgerError` for a link or special file.
    """
    *folders, name = path.split("/")
    opened: list[int] = []
    try:
        for folder in folders:
            opened.append(
                os.open(folder, _READ | os.O_DIRECTORY, dir_fd=opened[-1] if opened else dir_fd)
            )
        # O_NONBLOCK: a pipe in a file's place must not make us wait.
        fd = os.open(name, _READ | os.O_NONBLOCK, dir_fd=opened[-1] if opened else dir_fd)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV}:
            raise LedgerError(
                "a link or special file where a plain file belongs", where=path
            ) from error
        raise
    finally:
        for folder_fd in opened:
            os.close(folder_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LedgerError("not a plain file", where=path)
    return os.fdopen(fd, "rb", buffering=1 << 18)


def read_beneath(dir_fd: int, path: str, *, max_bytes: int) -> bytes:
    """All of a file below `dir_fd`. Raises `ValueError` over `max_bytes`."""
    with open_beneath(dir_fd, path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"longer than {max_bytes} bytes")
    return content


def exists(dir_fd: int, path: str) -> bool:
    """Whether there is an entry of that name."""
    try:
        os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def digest_file(file: BinaryIO) -> tuple[str, int]:
    """SHA-256 (hex) and size of the rest of the file."""
    digest, size = hashlib.sha256(), 0
    while piece := file.read(1 << 20):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


def has_digest(file: BinaryIO, sha256: str, size_bytes: int) -> bool:
    """Whether the file has this size and digest; a wrong size is noticed without reading."""
    size = os.fstat(file.fileno()).st_size
    return size == size_bytes and digest_file(file) == (sha256, size_bytes)


def raw_lines(file: BinaryIO, *, max_bytes: int, name: str) -> Iterator[tuple[int, bytes, bool]]:
    """(line number, bytes without newline, complete?). Raises `LedgerError` over `max_bytes`."""
    number = 0
    while raw := file.readline(max_bytes + 1):
        number += 1
        if len(raw) > max_bytes:
            raise LedgerError(f"longer than {max_bytes} bytes", where=f"{name}:{number}")
        yield number, raw.removesuffix(b"\n"), raw.endswith(b"\n")


def walk_files(dir_fd: int, prefix: str = "") -> Iterator[str]:
    """The relative path of every file below, sorted by folder.

    Raises `LedgerError` for a link, special file, unprintable name, or nesting over 16.
    """
    if prefix.count("/") > _MAX_DEPTH:
        raise LedgerError(f"folders nested more than {_MAX_DEPTH} deep", where=prefix)
    with os.scandir(dir_fd) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        path = prefix + entry.name
        if not path.isprintable():
            raise LedgerError("a file's name that can't be shown as text", where=printable(path))
        if entry.is_dir(follow_symlinks=False):
            child = os.open(entry.name, _READ | os.O_DIRECTORY, dir_fd=dir_fd)
            try:
                yield from walk_files(child, f"{path}/")
            finally:
                os.close(child)
        elif entry.is_file(follow_symlinks=False):
            yield path
        else:
            raise LedgerError("a link or special file", where=path)


BODIES: Final = "bodies"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)


def body_path(digest: str) -> str:
    """A body's path in the run directory."""
    return f"{BODIES}/{digest[:2]}/{digest}"


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


MANIFEST: Final = "manifest.json"
MANIFEST_PART: Final = "manifest.json.new"  # until the final checkpoint is on the disk
_MAX_MANIFEST_BYTES: Final = 64 << 20


def digests_of(run_dir: Path, *, synced: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Digest and size of every listed file; all but `synced` ones are synced.

    Raises `OSError`, and `LedgerError` at a link or special file.
    """
    digests = {}
    with open_directory(run_dir) as root:
        for path in walk_files(root):
            if path in {MANIFEST, MANIFEST_PART, CHECKPOINTS} or path.startswith(f"{BODIES}/"):
                continue
            with open_beneath(root, path) as file:
                if path not in synced:
                    os.fsync(file.fileno())
                sha256, size = digest_file(file)
            digests[path] = {"sha256": sha256, "bytes": size}
    return digests


def check_finished_files(root: int, final: Checkpoint, bodies: Mapping[bytes, int]) -> list[str]:
    """Check manifest and files against the final checkpoint; returns warnings.

    Raises `LedgerError` at the first file, by name, that is changed, added or missing.
    """
    name, warnings = MANIFEST, list[str]()
    # After a crash between final checkpoint and rename, the complete manifest has its first name.
    if not exists(root, MANIFEST) and exists(root, MANIFEST_PART):
        name = MANIFEST_PART
        warnings = [f"the process died as it put {MANIFEST} in place; {name} is complete"]
    due = dict(_load(root, name, final).files)
    for path in walk_files(root):
        if path.startswith(f"{BODIES}/"):
            digest = path.rpartition("/")[2]
            try:
                named = path == body_path(digest) and bytes.fromhex(digest) in bodies
            except ValueError:
                named = False
            if not named:
                raise LedgerError("added: no event names it", where=path)
        elif path not in {name, CHECKPOINTS}:
            expected = due.pop(path, None)
            if expected is None:
                raise LedgerError("added: the manifest doesn't list it", where=path)
            with open_beneath(root, path) as file:
                if not has_digest(file, expected.sha256, expected.bytes):
                    raise LedgerError("changed: its digest is not the manifest's", where=path)
    if due:
        raise LedgerError("missing: the manifest lists it", where=min(due))
    return warnings


def _load(root: int, name: str, final: Checkpoint) -> Manifest:
    try:
        content = read_beneath(root, name, max_bytes=_MAX_MANIFEST_BYTES)
    except FileNotFoundError as error:
        raise LedgerError("missing", where=name) from error
    except ValueError as error:
        raise LedgerError(str(error), where=name) from error
    if sha256_hex(content) != final.manifest_sha256:
        raise LedgerError("changed: its digest is not the one in the final checkpoint", where=name)
    try:
        manifest = Manifest.read(parse_canonical(content.removesuffix(b"\n")))
    except ValueError as error:
        raise LedgerError(f"not a manifest: {error}", where=name) from error
    signer = (final.run_id, final.key, final.public_key)
    if (manifest.run_id, manifest.key, manifest.public_key) != signer:
        raise LedgerError("of another run or key than the final checkpoint", where=name)
    return manifest
