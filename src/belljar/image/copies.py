"""Prepares the sources of a COPY or ADD where buildah 1.28 lacks a flag, or misreads a pattern.

`--chmod=u=rwX,go=rX`, `--exclude`, `--parents` and `--checksum` are done on a copy of the sources.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from belljar.image.context import parse_ignore, take_context
from belljar.image.parser import DockerfileError
from belljar.image.store import file_sha256
from belljar.image.tools import run_tool, tool

CHMOD: Final = re.compile(r"[ugoa]*([-+=]([rwxXst]+|[ugo])?)+(,[ugoa]*([-+=]([rwxXst]+|[ugo])?)+)*")
"""A symbolic mode."""
# gzip, bzip2, xz, zstd; a tar file has its mark at 257.
_ARCHIVES: Final = (b"\x1f\x8b\x08", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")
EMPTY: Final = "empty"
"""An empty directory beside what `prepare` makes."""
PATTERN: Final = re.compile(r"[*?[\\]")
"""A character that makes a source a pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Sources of the instruction at `line`, as written; `chmod`: symbolic or empty.

    `number`: of no other instruction.
    """

    number: int
    line: int
    is_add: bool
    sources: tuple[str, ...]
    excludes: tuple[str, ...]
    has_parents: bool
    chmod: str
    checksum: str

    @property
    def source(self) -> str:
        """The source for buildah, in the directory that `prepare` fills."""
        return f"{self.number}/0/0/d/" if self.has_parents else f"{self.number}/0/*/*"


def prepare(copy: Copy, context: Path, into: Path) -> None:
    """Copy what the instruction takes of `context` below `into`. Raises `DockerfileError`.

    Both are private: no step has run. No link is followed.
    """
    into, number = into / f"{copy.number}/0", 0
    for source in copy.sources:
        parent, has_pivot, below = source.partition("/./")
        if copy.has_parents and not has_pivot:
            parent, below = "", source
        excludes = copy.excludes
        if copy.has_parents:
            excludes = ("*", f"!{plain(below) or '**'}", *excludes)
        for path in _matching(copy.line, context, parent if copy.has_parents else source):
            target = into / ("0" if copy.has_parents else f"{number:06}")
            ignored, number = parse_ignore("\n".join(excludes)), number + 1
            if path.is_dir():
                (target / "d").mkdir(parents=True, exist_ok=True)
                take_context(path, ignored, target / "d")
            elif path.name not in ignored:
                _check_name(copy.line, path.name)
                _check_file(copy, path)
                target.mkdir(parents=True)
                shutil.copy2(path, target)
        is_found = any(into.glob("0/d/*" if copy.has_parents else "*/*"))
        if not copy.excludes and not PATTERN.search(source) and not is_found:
            raise DockerfileError(f"line {copy.line}: the context has no {source}")
    if not into.is_dir():  # every file is excluded: an empty directory is copied
        (into / "0/d").mkdir(parents=True)
    if copy.chmod:
        shell = [tool("sh"), "-c", 'umask 022; exec chmod -R -- "$@"', "sh"]
        run_tool([*shell, copy.chmod, str(into.parent)], timeout_s=600)


def plain(path: str) -> str:
    """A path's plain parts: none that is empty, `.` or `..`."""
    return posixpath.normpath("/" + path).strip("/")


def check_names(line: int, context: Path, source: str) -> None:
    """Raises `DockerfileError` where a pattern's match is for buildah a pattern again."""
    for path in _matching(line, context, source, may_link=True):
        _check_name(line, str(path.relative_to(context)))


def _check_name(line: int, name: str) -> None:
    if PATTERN.search(name):
        what = f"{name} has one of *?[ in its name: copy a directory above it, without a pattern"
        raise DockerfileError(f"line {line}: {what}")


def _matching(line: int, context: Path, source: str, *, may_link: bool = False) -> Iterator[Path]:
    """The entries that a source names, by Go's `filepath.Match`; none behind a link."""
    found = [context]
    for part in filter(None, plain(source).split("/")):
        rule, names = parse_ignore(re.sub("^([#!])", r"\\\1", part)), [part]
        parents, found = found, []
        for path in parents:
            if path.is_symlink() or not path.is_dir():
                continue
            if PATTERN.search(part):
                names = sorted(each.name for each in path.iterdir() if each.name in rule)
            found += [path / name for name in names if os.path.lexists(path / name)]
        if not may_link and any(path.is_symlink() for path in found):
            raise DockerfileError(f"line {line}: {source} is a link, which can't be copied so")
    yield from found


def _check_file(copy: Copy, path: Path) -> None:
    """Raises `DockerfileError` for another checksum, and for an archive that ADD would unpack."""
    with path.open("rb") as file:
        head = file.read(512)
    if copy.is_add and (head.startswith(_ARCHIVES) or head[257:262] == b"ustar"):
        what = f"ADD would unpack {path.name}: use RUN tar, or drop the flag"
        raise DockerfileError(f"line {copy.line}: {what}")
    if copy.checksum and f"sha256:{file_sha256(path)}" != copy.checksum:
        what = f"{path.name} is not the file of --checksum={copy.checksum}"
        raise DockerfileError(f"line {copy.line}: {what}")
