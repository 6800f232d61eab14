"""What a COPY or ADD takes from the context, made ready where buildah 1.28 lacks the flag for it.

`--chmod=u=rwX,go=rX`, `--exclude`, `--parents` and `--checksum` are done on a copy of the sources.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from belljar.image.context import Ignored, parse_ignore
from belljar.image.parser import DockerfileError

_CLAUSE: Final = re.compile(r"([ugoa]*)((?:[-+=](?:[rwxXst]+|[ugo]|))+)")
_OPERATION: Final = re.compile(r"([-+=])([rwxXst]+|[ugo]|)")
_OF: Final = {"u": 0o4700, "g": 0o2070, "o": 0o1007, "a": 0o7777, "": 0o7755}
_BITS: Final = {"r": 0o444, "w": 0o222, "x": 0o111, "s": 0o6000, "t": 0o1000}
_SHIFT: Final = {"u": 6, "g": 3, "o": 0}
# gzip, bzip2, xz, zstd; a tar file has its mark at 257.
_ARCHIVES: Final = (b"\x1f\x8b\x08", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")

Chmod = Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Sources of the instruction at `line`, as written; `chmod`: symbolic or empty."""

    line: int
    is_add: bool
    sources: tuple[str, ...]
    excludes: tuple[str, ...]
    has_parents: bool
    chmod: str
    checksum: str

    @property
    def source(self) -> str:
        """What an instruction copies of the directory that `prepare` fills."""
        return f"{self.line}/0/d/" if self.has_parents else f"{self.line}/*/*"


def symbolic_chmod(text: str) -> Chmod:
    """The permissions after `chmod text` with umask 022, of a mode as `stat` gives it."""
    clauses = [_CLAUSE.fullmatch(clause) for clause in text.split(",")]
    if not all(clauses):
        raise DockerfileError(f"--chmod={text} is no mode")

    def change(found: int) -> int:
        mode = stat.S_IMODE(found)
        for clause in filter(None, clauses):
            who = clause[1]
            mask = 0
            for name in who or ("",):
                mask |= _OF[name]
            for operator, letters in _OPERATION.findall(clause[2]):
                bits = 0
                for letter in letters:
                    if letter in _SHIFT:
                        bits |= (mode >> _SHIFT[letter] & 7) * 0o111
                    elif letter == "X":
                        bits |= 0o111 if stat.S_ISDIR(found) or mode & 0o111 else 0
                    else:
                        bits |= _BITS[letter]
                bits &= mask
                if operator == "=":
                    mode = mode & ~(mask if who else 0o7777) | bits
                else:
                    mode = mode | bits if operator == "+" else mode & ~bits
        return mode

    return change


def prepare(copy: Copy, context: Path, into: Path) -> None:
    """Copy what the instruction takes of `context` below `into`. Raises `DockerfileError`.

    Both are private: no step has run. No link is followed.
    """
    try:
        _prepare(copy, context, into / str(copy.line))
    except DockerfileError as error:
        raise DockerfileError(f"line {copy.line}: {error}") from None


def _prepare(copy: Copy, context: Path, into: Path) -> None:
    chmod = symbolic_chmod(copy.chmod) if copy.chmod else stat.S_IMODE
    excluded, number = parse_ignore("\n".join(copy.excludes)), 0
    is_pattern = bool(copy.excludes)
    for source in copy.sources:
        parent, has_pivot, pattern = source.partition("/./")
        if copy.has_parents and not has_pivot:
            parent, pattern = "", source
        found = list(_matching(context, parent if copy.has_parents else source))
        is_pattern = is_pattern or bool(re.search(r"[*?[]", source))
        for path in found:
            if copy.has_parents:
                wanted = _plain(pattern)
                _take(path, into / "0/d", excluded, chmod, _rule(wanted) if wanted else None)
            elif path.is_dir():
                _take(path, into / f"{number:04}/d", excluded, chmod)
            elif path.name not in excluded:
                _check_file(copy, path)
                _take_file(path, into / f"{number:04}" / path.name, chmod)
            number += 1
        is_empty = copy.has_parents and not (into / "0/d").is_dir()
        if (not found or is_empty) and not is_pattern:
            raise DockerfileError(f"the context has no {source}")
    if not into.is_dir():  # every file is excluded: an empty directory is copied
        (into / "0/d").mkdir(parents=True)


def _plain(path: str) -> str:
    return posixpath.normpath("/" + path).strip("/")


def _rule(pattern: str) -> Ignored:
    """What a source names: its first character has no meaning of its own."""
    return parse_ignore(re.sub(r"^([#!])", r"\\\1", pattern))


def _matching(context: Path, source: str) -> Iterator[Path]:
    """The entries that a source names, by Go's `filepath.Match`."""
    found = [context]
    for part in filter(None, _plain(source).split("/")):
        rule, is_pattern = _rule(part), re.search(r"[*?[\\]", part)
        found = [
            path / name
            for path in found
            if path.is_dir()
            for name in (sorted(each.name for each in path.iterdir()) if is_pattern else [part])
            if os.path.lexists(path / name) and (not is_pattern or name in rule)
        ]
        for path in found:
            if path.is_symlink():
                raise DockerfileError(f"{source} is a link: its flags need a file or a directory")
    yield from found


def _take(
    tree: Path, into: Path, excluded: Ignored, chmod: Chmod, only: Ignored | None = None
) -> None:
    """Copy a tree; `only`: what matches, or lies below what matches, with its parents."""
    made: dict[Path, int] = {}

    def make(directory: Path) -> None:
        for each in (*reversed(directory.parents), directory):
            if each not in made:
                (into / each).mkdir(parents=True, exist_ok=True)
                made[each] = chmod((tree / each).stat().st_mode)

    if only is None:
        make(Path())
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree)
        if str(name) in excluded or (only is not None and str(name) not in only):
            continue
        if path.is_dir() and not path.is_symlink():
            make(name)
        else:
            make(name.parent)
            _take_file(path, into / name, chmod)
    for name, mode in made.items():
        (into / name).chmod(mode)


def _take_file(path: Path, target: Path, chmod: Chmod) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = path.lstat().st_mode
    if os.path.lexists(target):  # two sources of --parents name it
        return
    if path.is_symlink():
        target.symlink_to(path.readlink())
    elif (wanted := chmod(mode)) == stat.S_IMODE(mode):
        os.link(path, target)
    else:
        shutil.copy2(path, target)
        target.chmod(wanted)


def _check_file(copy: Copy, path: Path) -> None:
    """Raises `DockerfileError` for another checksum, and for an archive that ADD would unpack."""
    with path.open("rb") as file:
        head = file.read(512)
        if copy.is_add and (head.startswith(_ARCHIVES) or head[257:262] == b"ustar"):
            raise DockerfileError(f"ADD would unpack {path.name}: use RUN tar, or drop the flag")
        file.seek(0)
        if copy.checksum and f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" != (
            copy.checksum
        ):
            raise DockerfileError(f"{path.name} is not the file of --checksum={copy.checksum}")
