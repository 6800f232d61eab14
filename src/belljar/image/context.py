"""A build's context: the files that `.dockerignore` leaves in, their digest and a copy.

Only files below the directory are read; links are never followed. Source: Docker's `.dockerignore`
(Go's `filepath.Match` with `**`; the last matching line decides).
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

from belljar.errors import PolicyError
from belljar.image.layers import MAX_DEPTH
from belljar.policy.files import open_regular, read_regular
from belljar.units import format_size, printable

# As an image's layers (`ImportLimits.max_bytes`): what goes in has to come out.
MAX_BYTES: Final = 8 << 30
MAX_ENTRIES: Final = 200_000
# Each path is tried against each of them.
MAX_RULES: Final = 1000
_MAX_IGNORE_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 20
# One for each part of a path; None (`**`) stands for any parts.
_Rule: TypeAlias = "tuple[re.Pattern[str] | None, ...]"


@dataclass(frozen=True, slots=True)
class Ignored:
    """Patterns of relative paths; whether each takes earlier ones back."""

    rules: tuple[tuple[_Rule, bool], ...] = ()

    def __contains__(self, path: str) -> bool:
        decided, parts = False, path.split("/")
        for rule, takes_back in self.rules:
            if decided == takes_back and _matches(rule, parts):
                decided = not takes_back
        return decided


def parse_ignore(text: str) -> Ignored:
    """Parse a `.dockerignore`. Raises `PolicyError` for backslashes or beyond `MAX_RULES`."""
    rules = list[tuple[_Rule, bool]]()
    for line in text.removeprefix("\ufeff").splitlines():
        written = line.strip()
        if not written or line.startswith("#"):
            continue
        takes_back = written.startswith("!")
        path = os.path.normpath(written.removeprefix("!").strip()).strip("/")
        if path not in {".", ""}:
            # Go negates a class by `^`.
            words = [part.replace("[^", "[!") for part in path.split("/")]
            rule = [None if word == "**" else re.compile(fnmatch.translate(word)) for word in words]
            rules.append((tuple(rule), takes_back))
        if len(rules) > MAX_RULES or "\\" in path:
            what = f"it has a backslash, or more than {MAX_RULES:,} patterns"
            raise PolicyError(what, where=".dockerignore")
    return Ignored(tuple(rules))


def read_ignore(context: Path, dockerfile: Path) -> Ignored:
    """The rules of the Dockerfile's `NAME.dockerignore`, else of the context's."""
    beside = (dockerfile.parent, f"{dockerfile.name}.dockerignore")
    for directory, name in (beside, (context, ".dockerignore")):
        try:
            raw = read_regular(directory, name, _MAX_IGNORE_BYTES)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise _refused(f"it can't be read: {error}", directory / name) from error
        return parse_ignore(raw.decode("utf-8", "replace"))
    return Ignored()


def take_context(context: Path, ignored: Ignored, into: Path | None = None) -> str:
    """The digest of a context (names, kinds, modes and contents), copied `into` an empty directory.

    Raises `PolicyError` for a special file, and beyond `MAX_ENTRIES`, `MAX_BYTES` or `MAX_DEPTH`.
    """
    digest, left_bytes = hashlib.sha256(), MAX_BYTES
    links: list[tuple[Path, str]] = []
    for number, path in enumerate(_paths(context, ignored)):
        if number >= MAX_ENTRIES:
            raise _refused(f"the context holds more than {MAX_ENTRIES:,} files", context)
        name = path.relative_to(context)
        try:
            found = path.lstat()
        except OSError as error:  # it went away while the context was read
            _raise(error)
        target = into / name if into else None
        kind, content = _take(context, name, found, target, left_bytes)
        if target and kind == "link":
            links.append((target, os.fsdecode(content)))
        left_bytes -= found.st_size if kind == "file" else 0
        mode = 0 if kind == "link" else stat.S_IMODE(found.st_mode)
        for part in (kind.encode(), os.fsencode(name), b"%o" % mode, content):
            # With lengths, no two contexts give the same bytes.
            digest.update(b"%d:" % len(part) + part)
    for target, to in links:  # last, so that no file is written through one
        try:
            target.symlink_to(to)
        except FileExistsError:
            why = "it was a link and something else while the context was read"
            raise _refused(why, target.name) from None
    return digest.hexdigest()


def _take(
    context: Path, name: Path, found: os.stat_result, target: Path | None, left_bytes: int
) -> tuple[str, bytes]:
    if stat.S_ISDIR(found.st_mode):
        if target:
            target.mkdir(parents=True, exist_ok=True)
            # Else what is below could not be copied.
            target.chmod(stat.S_IMODE(found.st_mode) | 0o700)
        return "directory", b""
    if target:
        target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(found.st_mode):
        return "link", os.fsencode((context / name).readlink())
    if not stat.S_ISREG(found.st_mode):
        raise _refused("it is neither a file, a directory nor a link", context / name)
    if found.st_size > left_bytes:
        raise _too_large(context)
    content = _copied(context, name, target, left_bytes)
    if target:
        target.chmod(stat.S_IMODE(found.st_mode) | 0o600)
        os.utime(target, ns=(found.st_mtime_ns, found.st_mtime_ns))
    return "file", content


def _copied(context: Path, name: Path, target: Path | None, left_bytes: int) -> bytes:
    digest = hashlib.sha256()
    try:
        sink = Path(target or os.devnull)
        with open_regular(context, str(name)) as fd, sink.open("wb") as into:
            while chunk := os.read(fd, _CHUNK_BYTES):
                left_bytes -= len(chunk)
                if left_bytes < 0:
                    raise _too_large(context)
                digest.update(chunk)
                into.write(chunk)
    except (OSError, ValueError) as error:
        free = shutil.disk_usage(target.parent if target else context).free
        if isinstance(error, OSError) and target and free < _CHUNK_BYTES:
            raise
        raise _refused(f"it can't be read: {error}", context / name) from error
    return digest.digest()


def _refused(what: str, where: Path | str, hint: str = "") -> PolicyError:
    return PolicyError(what, where=printable(str(where)), hint=hint)


def _too_large(context: Path) -> PolicyError:
    what = f"the context is larger than {format_size(MAX_BYTES)}"
    return _refused(what, context, "leave files out by a .dockerignore")


def _paths(context: Path, ignored: Ignored) -> Iterator[Path]:
    """Every included entry in fixed order, after its parents, even excluded ones."""
    known = {context, *context.parents}
    # An excluded directory may then hold included files.
    may_take_back = any(takes_back for _, takes_back in ignored.rules)
    for folder, folders, files in os.walk(context, onerror=_raise):
        here = Path(folder)
        if len(here.relative_to(context).parts) > MAX_DEPTH:
            raise _refused(f"the context is more than {MAX_DEPTH} directories deep", context)
        folders.sort()
        for path in (here / name for name in (*folders, *sorted(files))):
            if path.relative_to(context).as_posix() not in ignored:
                new = [each for each in (path, *path.parents) if each not in known]
                known.update(new)
                yield from reversed(new)
        folders[:] = (
            name
            for name in folders
            if not (here / name).is_symlink() and (may_take_back or here / name in known)
        )


def _raise(error: OSError) -> NoReturn:
    raise _refused(f"it can't be read: {error.strerror}", error.filename) from error


def _matches(rule: _Rule, parts: Sequence[str]) -> bool:
    """Match the path or a parent directory, in time bounded by both lengths."""
    at = {0}  # so many parts may be matched by now
    for number, pattern in enumerate(rule, 1):
        if pattern is None:
            # At the end, `**` stands for one name at least.
            at = {*range(min(at) + (number == len(rule)), len(parts) + 1)}
        else:
            at = {each + 1 for each in at if each < len(parts) and pattern.match(parts[each])}
        if not at:
            return False
    return True
