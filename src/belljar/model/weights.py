"""The weights store: files and directories by digest, which model cells share read-only.

    weights/<digest>/{data/…,weights.json,disk.sqfs}

A file's digest is its SHA-256; a directory's is that of its sorted lines `sha256  path`. Adding
makes a reflink, else a hard link, else a copy. A hard link shares its inode with the file that was
added: what the kernel says of each file (size, inode, times of content and inode) is compared at
each use, and the digest computed again where it differs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.errors import HostError, PolicyError
from belljar.isolation.program_root import file_stamp
from belljar.policy.loaded import ReadOnlyData
from belljar.store.home import HINT_SPACE, belljar_home, make_store_dir, need_space
from belljar.store.locks import locked, retire_unclaimed
from belljar.store.scratch import MAKING, owned_dir, remove_tree, sweep
from belljar.units import format_size, printable

DIRECTORY: Final = "weights"
MAX_FILES: Final = 10_000
_FORMAT: Final = 1
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PREFIX: Final = re.compile(r"(?:sha256:)?([0-9a-f]{6,64})")
_FICLONE: Final = 0x40049409  # linux/fs.h
_READABLE: Final = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
"""A cell's ids are none of this host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """One entry; `stamps`: of each file, by its path below `data`."""

    digest: str
    name: str
    is_directory: bool
    size_bytes: int
    files: Mapping[str, str]
    stamps: Mapping[str, list[int]]
    path: Path

    @property
    def data(self) -> ReadOnlyData:
        """What a cell is given."""
        directory, disk = self.path / "data", self.path / "disk.sqfs"
        return ReadOnlyData(digest=self.digest, directory=directory, disk=disk)

    @property
    def served(self) -> str:
        """The path of the weights below the directory that a cell sees; "" for all of it."""
        return "" if self.is_directory else self.name

    def to_json(self) -> dict[str, Any]:
        """For `belljar model ls --json`."""
        return {
            "digest": self.digest,
            "name": self.name,
            "directory": self.is_directory,
            "files": len(self.files),
            "size_bytes": self.size_bytes,
        }


def digest_of_files(files: Mapping[str, str]) -> str:
    """A directory's digest. Pure."""
    lines = "".join(f"{files[path]}  {path}\n" for path in sorted(files))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def add_weights(
    source: Path, *, home: Path | None = None, report: Callable[[str], None] = lambda _line: None
) -> StoredWeights:
    """Put a file or a directory into the store; what is there already is kept.

    Raises `PolicyError`: it is neither, holds links or special files, or has too many files.
    `HostError`: the store can't be written, the disk is full, or it changed meanwhile.
    """
    home = home or belljar_home()
    parent = home / DIRECTORY
    try:
        listed = dict(_listed(source))
        total_bytes = sum(each.stat().st_size for each in listed.values())
        make_store_dir(home)
        make_store_dir(parent)
        with owned_dir(parent, prefix=MAKING) as scratch:
            report(f"reading {format_size(total_bytes)}")
            files = {name: _take(path, scratch / "data" / name) for name, path in listed.items()}
            is_directory = source.is_dir()
            digest = digest_of_files(files) if is_directory else files[source.name]
            with locked(home, DIRECTORY):
                with suppress(HostError):
                    return find_weights(digest, home=home)
                for each in (scratch, *filter(Path.is_dir, scratch.rglob("*"))):
                    each.chmod(0o755)
                about = {
                    "format": _FORMAT,
                    "name": source.resolve().name,
                    "directory": is_directory,
                    "size_bytes": total_bytes,
                    "files": files,
                    "stamps": {name: file_stamp(scratch / "data" / name) for name in files},
                }
                (scratch / "weights.json").write_text(json.dumps(about, sort_keys=True))
                if (parent / digest).exists():  # its description is damaged
                    remove_tree(parent / digest)
                scratch.rename(parent / digest)
            return find_weights(digest, home=home)
    except OSError as error:
        raise HostError(
            f"the weights can't be added: {error.strerror}",
            where=printable(str(error.filename or source)),
            hint=HINT_SPACE,
        ) from error


def find_weights(ref: str, *, home: Path | None = None) -> StoredWeights:
    """The entry of a digest, of the unique beginning of one, or of a name. Files are not looked at.

    Raises `HostError`.
    """
    found = list_weights(home)
    match = _PREFIX.fullmatch(ref)
    prefix = match[1] if match else None
    fit = [
        each for each in found if each.name == ref or (prefix and each.digest.startswith(prefix))
    ]
    if len(fit) == 1:
        return fit[0]
    shown = f"sha256:{prefix[:12]}" if prefix else printable(ref, max_chars=100)
    if fit:
        raise HostError(f"{shown} means several weights", hint="`belljar model ls` lists them")
    hint = "add them: `belljar model add FILE`, or `belljar model get smollm2` for the example's"
    raise HostError(f"the weights {shown} are not in the store", where="weights", hint=hint)


def list_weights(home: Path | None = None) -> list[StoredWeights]:
    """All entries that can be read, by name."""
    parent = (home or belljar_home()) / DIRECTORY
    paths = sorted(parent.iterdir()) if parent.is_dir() else []
    entries = (_read(path) for path in paths if _DIGEST.fullmatch(path.name))
    return sorted((each for each in entries if each), key=lambda each: (each.name, each.digest))


def remove_weights(ref: str, *, home: Path | None = None) -> StoredWeights:
    """Remove an entry. Raises `HostError`: unknown, or a cell uses it."""
    home = home or belljar_home()
    found = find_weights(ref, home=home)
    with locked(home, DIRECTORY):
        retired = retire_unclaimed(found.path)
        if retired is None and found.path.exists():
            hint = "end the model cells that use them: `belljar ps`"
            raise HostError("the weights are in use", where=printable(found.name), hint=hint)
        if retired is not None:
            remove_tree(retired)
        sweep(found.path.parent, prefix=MAKING)
    return found


def verify_weights(weights: StoredWeights) -> None:
    """Compare each file with its stamp, and where one differs, its content with the digest.

    Blocking. Raises `HostError` for what is missing, truncated or changed.
    """
    directory = weights.path / "data"
    where = f"weights {printable(weights.name)} sha256:{weights.digest[:12]}"
    hint = "remove them (`belljar model rm`) and add the right ones"
    try:
        present = dict(_listed(directory))
        now = {name: file_stamp(path) for name, path in present.items()}
        if now == weights.stamps:
            return
        files = {name: file_digest(path) for name, path in present.items()}
    except OSError as error:
        raise HostError(f"they can't be read: {error.strerror}", where=where, hint=hint) from error
    if files != weights.files:
        wrong = sorted(dict(files.items() ^ weights.files.items()))
        what = f"{printable(wrong[0])} is not what was added: missing, truncated or changed"
        raise HostError(what, where=where, hint=hint)
    # The same bytes: a hard link was made or removed elsewhere, or a time was set
    draft = weights.path / f".weights.json.{os.getpid()}"
    with suppress(OSError):
        about = json.loads((weights.path / "weights.json").read_text())
        draft.write_text(json.dumps({**about, "stamps": now}, sort_keys=True))
        draft.replace(weights.path / "weights.json")


# ---- files


def _listed(source: Path) -> Iterator[tuple[str, Path]]:
    """(path below the source's directory, path) of each regular file."""
    if source.is_file():
        yield source.name, source
        return
    if not source.is_dir():
        raise PolicyError("no such file or directory", where=printable(str(source)))
    paths = [path for path in sorted(source.rglob("*")) if path.is_symlink() or not path.is_dir()]
    if len(paths) > MAX_FILES:
        raise PolicyError(f"more than {MAX_FILES} files", where=printable(str(source)))
    for path in paths:
        # Model hubs keep files as links into a cache: their content is what is meant
        if not path.is_file():
            raise PolicyError("neither a file nor a directory", where=printable(str(path)))
        yield path.relative_to(source).as_posix(), path


def _take(source: Path, target: Path) -> str:
    """A reflink, a hard link or a copy of a file; its digest."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file:
        before = os.fstat(file.fileno())
        if not _reflink(file.fileno(), target) and not _link(source, target, before):
            need_space(target.parent, before.st_size, "a copy of the weights")
            with target.open("xb") as copy:
                shutil.copyfileobj(file, copy, 1 << 20)
                os.fchmod(copy.fileno(), 0o444)
    return file_digest(target)


def _reflink(source: int, target: Path) -> bool:
    with target.open("xb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), _FICLONE, source)
        except OSError:  # another file system, or one without shared blocks
            target.unlink()
            return False
        os.fchmod(copy.fileno(), 0o444)
    return True


def _link(source: Path, target: Path, found: os.stat_result) -> bool:
    """False where no link can be made, or a cell could not read it."""
    if found.st_mode & _READABLE != _READABLE:
        return False
    try:
        os.link(source.resolve(), target)
    except OSError:
        return False
    return True


def file_digest(path: Path) -> str:
    """A file's SHA-256. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> StoredWeights | None:
    try:
        about = json.loads((path / "weights.json").read_text())
        if about["format"] != _FORMAT:
            return None
        return StoredWeights(
            digest=path.name,
            name=str(about["name"]),
            is_directory=bool(about["directory"]),
            size_bytes=int(about["size_bytes"]),
            files={str(name): str(digest) for name, digest in about["files"].items()},
            stamps={str(name): list(stamp) for name, stamp in about["stamps"].items()},
            path=path,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
