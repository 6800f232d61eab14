"""A jail's root: a directory tree with one program, what it loads, the points to mount on, and
nothing else, made once for each version in the store.

`<directory>/<key>/root/…` and `<directory>/<key>/<directory>.json`. The key is the digest of every
file in it. It is found again by looking at the files it was made from (size, times, inode): a new
version of the program or of one of its libraries makes another root.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.errors import HostError
from belljar.store.locks import locked
from belljar.store.scratch import MAKING, owned_name, remove_tree, retire

STORE_HINT: Final = "make room there, or set BELLJAR_HOME to a directory that this user can write"
_FORMAT: Final = 1
_NAME: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LIBRARY: Final = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.ASCII)
_NOT_DYNAMIC: Final = ("not a dynamic executable", "statically linked")
_Stamp = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRoot:
    """A root that stands. `program` is its path inside it, `digest` covers everything in it."""

    root: Path
    program: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a root is made.

    Attributes:
        directory: below the store, for all roots of this kind.
        program: on the host; `inside` is its path in the root, the same unless said.
        what: its name for a person. hint: what to do when it or a part of it is missing.
        files: (path in the root, original) of everything it opens.
        version: asks the program. Raises `HostError`.
        own: files of this installation that must be among them: another one on this host, with the
            same store, may have others.
        file_points, directory_points: what is mounted on later: empty files, empty directories.
        unreadable: paths in the root that others than the store's owner may run and not read.
    """

    directory: str
    program: Path
    what: str
    hint: str
    files: Callable[[], Iterable[tuple[str, Path]]]
    version: Callable[[], str]
    own: tuple[Path, ...] = ()
    file_points: tuple[str, ...] = ()
    directory_points: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    inside: str = ""

    @property
    def inner_program(self) -> str:
        """The program's path in the root."""
        return self.inside or str(self.program)


def ensure_root(home: Path, recipe: Recipe) -> ProgramRoot:
    """The root for the installed program, made once. Blocking.

    Raises `HostError`: the program is missing or too old, or the store can't be written.
    """
    directory = home / recipe.directory
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o711)
        if (found := _find(directory, recipe)) is not None:
            return found
        with locked(home, recipe.directory):
            return _find(directory, recipe) or _make(directory, recipe)
    except OSError as exc:
        raise HostError(
            f"the root of {recipe.what} could not be made: {exc.strerror}",
            where=str(exc.filename or directory),
            hint=STORE_HINT,
        ) from exc


def libraries(binary: Path, *, what: str, hint: str) -> list[Path]:
    """What the dynamic loader would load, itself included; none for a static program."""
    result = subprocess.run(
        ["/usr/bin/ldd", str(binary)],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
        env={"LC_ALL": "C"},
    )
    if any(word in result.stdout + result.stderr for word in _NOT_DYNAMIC):
        return []
    if result.returncode or "not found" in result.stdout:
        raise HostError(f"the libraries of {what} can't be found", where=str(binary), hint=hint)
    return [
        Path(match[1]) for line in result.stdout.splitlines() if (match := _LIBRARY.match(line))
    ]


def with_libraries(binary: Path, *, what: str, hint: str) -> Iterator[tuple[str, Path]]:
    """(path in the root, original) of a program and what it loads."""
    yield str(binary), binary
    for library in libraries(binary, what=what, hint=hint):
        yield str(library), library


def _find(directory: Path, recipe: Recipe) -> ProgramRoot | None:
    for description in sorted(directory.glob(f"*/{recipe.directory}.json")):
        try:
            data = json.loads(description.read_text())
        except (OSError, ValueError):
            continue
        if (
            data.get("format") == _FORMAT
            and data.get("program") == str(recipe.program)
            and data.get("inside", data["program"]) == recipe.inner_program
            and data.get("points", _points(recipe)) == _points(recipe)
            and all(str(path) in data.get("sources", {}) for path in recipe.own)
            and _unchanged(description.parent / "root", data)
        ):
            return _root_of(description.parent, data)
    return None


def outdated_roots(directory: Path) -> list[Path]:
    """Roots whose sources have changed or are gone, so that no program can use them."""
    return [
        root
        for root in sorted(directory.glob("*"))
        if _NAME.fullmatch(root.name) and not _is_current(root)
    ]


def remove_root(home: Path, root: Path) -> None:
    """Remove it, in turn with its makers, unless it was made anew. Raises `FileNotFoundError`."""
    with locked(home, root.parent.name):
        if _is_current(root):
            return
        remove_tree(retire(root))


def _is_current(root: Path) -> bool:
    try:
        return _unchanged(
            root / "root", json.loads((root / f"{root.parent.name}.json").read_text())
        )
    except (OSError, ValueError):
        return False


def _points(recipe: Recipe) -> list[str]:
    return [
        *recipe.file_points,
        *(f"{point}/" for point in recipe.directory_points),
        *(f"{path} unreadable" for path in recipe.unreadable),
    ]


def _unchanged(root: Path, data: Mapping[str, Any]) -> bool:
    try:
        originals = all(file_stamp(Path(path)) == stamp for path, stamp in data["sources"].items())
        return originals and all(
            file_stamp(root / path.lstrip("/")) == stamp for path, stamp in data["copies"].items()
        )
    except (OSError, KeyError, TypeError):
        return False


def _root_of(directory: Path, data: Mapping[str, Any]) -> ProgramRoot:
    program = data.get("inside", data["program"])
    return ProgramRoot(
        root=directory / "root", program=program, version=data["version"], digest=data["digest"]
    )


def file_stamp(path: Path) -> _Stamp:
    """Changes with every write: ctime can't be set."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _make(directory: Path, recipe: Recipe) -> ProgramRoot:
    version = recipe.version()
    sources = dict(recipe.files())
    scratch = Path(tempfile.mkdtemp(prefix=owned_name(MAKING), dir=directory))
    try:
        digests = _fill(scratch / "root", sources, recipe)
        points = _points(recipe)
        digest = hashlib.sha256(
            json.dumps([_FORMAT, digests, points], sort_keys=True).encode()
        ).hexdigest()
        scratch.chmod(0o711)
        final = directory / digest
        # Its description was out of date: the files' stamps changed, their contents did not
        if final.exists():
            remove_tree(final)
        scratch.rename(final)
    except BaseException:
        remove_tree(scratch)
        raise
    data = {
        "format": _FORMAT,
        "program": str(recipe.program),
        "inside": recipe.inner_program,
        "version": version,
        "digest": digest,
        "sources": {str(original): file_stamp(original) for original in sources.values()},
        "copies": {target: file_stamp(final / "root" / target.lstrip("/")) for target in sources},
        "files": digests,
        "points": points,
    }
    draft = final / f".{recipe.directory}.json"
    draft.write_text(json.dumps(data, sort_keys=True, indent=1))
    draft.rename(final / f"{recipe.directory}.json")
    return _root_of(final, data)


def _fill(root: Path, sources: Mapping[str, Path], recipe: Recipe) -> dict[str, str]:
    digests = {
        target: _copy(original, root / target.lstrip("/"))
        for target, original in sorted(sources.items())
    }
    for target in recipe.unreadable:
        (root / target.lstrip("/")).chmod(0o511)
    for target in recipe.file_points:
        point = root / target.lstrip("/")
        point.parent.mkdir(parents=True, exist_ok=True)
        point.touch(mode=0o444)
    for target in recipe.directory_points:
        (root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir():
            path.chmod(0o555)
    root.chmod(0o555)
    return digests


def _copy(original: Path, target: Path) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with original.open("rb") as source, target.open("wb") as copy:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
            copy.write(chunk)
    target.chmod(0o555 if os.access(original, os.X_OK) else 0o444)
    return digest.hexdigest()
