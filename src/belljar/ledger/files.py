"""The files of a run directory: safe reading and writing, bodies, and the manifest.

An attacker may have made what is read: no symlink is followed, nothing is unbounded.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from belljar.errors import LedgerError
from belljar.ledger.chain import parse_canonical, sha256_hex
from belljar.ledger.schema import MAX_LINE_BYTES, Checkpoint, check_manifest
from belljar.units import printable

# Two files: signing, with its fsync, must not take turns with recording.
LEDGER: Final = "ledger.jsonl"
CHECKPOINTS: Final = "checkpoints.jsonl"
# O_NONBLOCK: a pipe in a file's place must not make us wait.
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# A link in place of a directory is refused, in a run directory that others may have written.
_DIRECTORY: Final = _READ | os.O_DIRECTORY
# `walk_files` calls itself, and holds a descriptor a level.
_MAX_DEPTH: Final = 16


def write_all(fd: int, content: bytes) -> None:
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
    """Yield a directory's descriptor; `path` may be a link. Raises `OSError`."""
    # The operator named this path; only what lies below it may be an attacker's.
    fd = os.open(path, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)


def open_beneath(directory: int, path: str) -> BinaryIO:
    """Open a regular file by a relative path without symlinks.

    Raises `FileNotFoundError`, or `LedgerError` for a link or special file.
    """
    *folders, name = path.split("/")
    opened: list[int] = []
    try:
        for folder in folders:
            opened.append(os.open(folder, _DIRECTORY, dir_fd=opened[-1] if opened else directory))
        fd = os.open(name, _READ, dir_fd=opened[-1] if opened else directory)
    except OSError as error:
        # A link, which is ENOTDIR where a directory is due; a socket; a device without a driver
        # (open(2)).
        if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV}:
            what = "a link or special file where a plain file belongs"
            raise LedgerError(what, where=path) from error
        raise
    finally:
        for folder_fd in opened:
            os.close(folder_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LedgerError("not a plain file", where=path)
    return os.fdopen(fd, "rb", buffering=1 << 18)


def read_beneath(directory: int, path: str, *, max_bytes: int) -> bytes:
    """Read a file. Raises `ValueError` over `max_bytes`, and as `open_beneath`."""
    with open_beneath(directory, path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"longer than {max_bytes} bytes")
    return content


def exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def digest_file(file: BinaryIO) -> tuple[str, int]:
    """Return SHA-256 (hex) and size of the file's rest."""
    digest, size = hashlib.sha256(), 0
    while piece := file.read(1 << 20):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


def has_digest(file: BinaryIO, sha256: str, size_bytes: int) -> bool:
    size = os.fstat(file.fileno()).st_size
    # An attacker's file may be of any size.
    return size == size_bytes and digest_file(file) == (sha256, size_bytes)


def raw_lines(file: BinaryIO, *, max_bytes: int, name: str) -> Iterator[tuple[int, bytes, bool]]:
    """Yield line number, bytes without newline, and whether there was one.

    Raises `LedgerError` over `max_bytes`.
    """
    number = 0
    while raw := file.readline(max_bytes + 1):
        number += 1
        if len(raw) > max_bytes:
            raise LedgerError(f"longer than {max_bytes} bytes", where=f"{name}:{number}")
        yield number, raw.removesuffix(b"\n"), raw.endswith(b"\n")


def read_raw(run_dir: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the ledger's lines as `raw_lines`. Raises `OSError`, `LedgerError`."""
    with open_directory(run_dir) as root, open_beneath(root, LEDGER) as file:
        yield from raw_lines(file, max_bytes=MAX_LINE_BYTES, name=LEDGER)


def is_being_written(run_dir: Path) -> bool:
    """Return True if the run's writer lives. Raises `OSError` without a ledger."""
    fd = os.open(run_dir / LEDGER, _READ)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def walk_files(directory: int, prefix: str = "") -> Iterator[str]:
    """Yield the relative path of every file below, sorted by folder.

    Raises `LedgerError` for a link, special file, unprintable name, or nesting over 16.
    """
    if prefix.count("/") > _MAX_DEPTH:
        raise LedgerError(f"folders nested more than {_MAX_DEPTH} deep", where=prefix)
    with os.scandir(directory) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        path = prefix + entry.name
        # It would be shown in messages, where it could act on a terminal or look like another name.
        if not path.isprintable():
            raise LedgerError("a file's name that can't be shown as text", where=printable(path))
        if entry.is_dir(follow_symlinks=False):
            child = os.open(entry.name, _DIRECTORY, dir_fd=directory)
            try:
                yield from walk_files(child, f"{path}/")
            finally:
                os.close(child)
        elif entry.is_file(follow_symlinks=False):
            yield path
        else:
            raise LedgerError("a link or special file", where=path)


# Named by their digests: equal ones are one file.
BODIES: Final = "bodies"


def body_path(digest: str) -> str:
    return f"{BODIES}/{digest[:2]}/{digest}"


MANIFEST: Final = "manifest.json"
MANIFEST_PART: Final = "manifest.json.new"  # until the final checkpoint is on the disk
# It is read whole; hundreds of thousands of files fit.
_MAX_MANIFEST_BYTES: Final = 64 << 20


def digests_of(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Sync every listed file, and return its digest and size.

    Raises `OSError`, and `LedgerError` at a link or special file.
    """
    digests = {}
    with open_directory(run_dir) as root:
        for path in walk_files(root):
            # The final checkpoint, which is yet to come, holds the manifest's digest; bodies are
            # named by theirs.
            if path in {MANIFEST, MANIFEST_PART, CHECKPOINTS} or path.startswith(f"{BODIES}/"):
                continue
            with open_beneath(root, path) as file:
                os.fsync(file.fileno())
                sha256, size = digest_file(file)
            digests[path] = {"sha256": sha256, "bytes": size}
    return digests


def check_finished_files(
    root: int, final: Checkpoint, bodies: Mapping[bytes, int], beside: Collection[str] = ()
) -> tuple[list[str], set[str]]:
    """Check manifest and files against the final checkpoint; return warnings and missing files.

    `beside`: names of files that the caller checks. The caller judges what may be missing.

    Raises `LedgerError` at the first file, by name, that is changed or added.
    """
    name, warnings = MANIFEST, list[str]()
    # After a crash between final checkpoint and rename, the complete manifest has its first name.
    if not exists(root, MANIFEST) and exists(root, MANIFEST_PART):
        name = MANIFEST_PART
        warnings = [f"the process died as it put {MANIFEST} in place; {name} is complete"]
    due = _load(root, name, final)
    for path in walk_files(root):
        if path.startswith(f"{BODIES}/"):
            try:
                digest = bytes.fromhex(path.rpartition("/")[2])
            except ValueError:
                digest = b""
            # A digest has one spelling: with capitals or blanks it is another file.
            if digest not in bodies or path != body_path(digest.hex()):
                raise LedgerError("added: no event names it", where=path)
        elif path not in {name, CHECKPOINTS, *beside}:
            expected = due.pop(path, None)
            if expected is None:
                raise LedgerError("added: the manifest doesn't list it", where=path)
            with open_beneath(root, path) as file:
                if not has_digest(file, expected["sha256"], expected["bytes"]):
                    raise LedgerError("changed: its digest is not the manifest's", where=path)
    return warnings, set(due)


def _load(root: int, name: str, final: Checkpoint) -> dict[str, dict[str, Any]]:
    try:
        content = read_beneath(root, name, max_bytes=_MAX_MANIFEST_BYTES)
    except FileNotFoundError as error:
        raise LedgerError("missing", where=name) from error
    except ValueError as error:
        raise LedgerError(str(error), where=name) from error
    if sha256_hex(content) != final.manifest_sha256:
        raise LedgerError("changed: its digest is not the one in the final checkpoint", where=name)
    try:
        manifest = parse_canonical(content.removesuffix(b"\n"))
        check_manifest(manifest)
    except ValueError as error:
        raise LedgerError(f"not a manifest: {error}", where=name) from error
    for field in ("run_id", "key", "public_key"):
        if manifest[field] != getattr(final, field):
            raise LedgerError("of another run or key than the final checkpoint", where=name)
    files: dict[str, dict[str, Any]] = manifest["files"]
    return files
