"""A build's context: the files that `.dockerignore` leaves in, their digest and a copy.

Only files below the directory are read; links are never followed. Source: Docker's `.dockerignore`
(Go's `filepath.Match` with `**`; the last matching line decides).
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

from belljar.errors import PolicyError
from belljar.image.layers import MAX_DEPTH
from belljar.policy.files import open_regular, read_regular, reason
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
    rules: tuple[tuple[_Rule, bool], ...] = ()

    def __contains__(self, path: str) -> bool:
        decided, parts = False, path.split("/")
        for rule, takes_back in self.rules:
            if decided == takes_back and _matches(rule, parts):
                decided = not takes_back
        return decided


def parse_ignore(text: str) -> Ignored:
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
    """Read the Dockerfile's `NAME.dockerignore`, else the context's."""
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
    """Return a context's digest (names, kinds, modes, contents); copy it `into` a directory.

    Raises `PolicyError` for a special file, and beyond `MAX_ENTRIES`, `MAX_BYTES` or `MAX_DEPTH`.
    """
    try:
        return _take_all(context, ignored, into)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        where = getattr(error, "filename", None) or context
        raise _refused(f"it can't be read: {reason(error)}", where) from error


def _take_all(context: Path, ignored: Ignored, into: Path | None) -> str:
    digest, left_bytes = hashlib.sha256(), MAX_BYTES
    links: list[tuple[Path, str]] = []
    for number, path in enumerate(_paths(context, ignored)):
        if number >= MAX_ENTRIES:
            raise _refused(f"the context holds more than {MAX_ENTRIES:,} files", context)
        name, found = path.relative_to(context), path.lstat()
        mode, content = stat.S_IMODE(found.st_mode), b""
        target = into / name if into else None
        if target:
            target.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISDIR(found.st_mode):
            kind = "directory"
            if target:
                target.mkdir(exist_ok=True)
                # Else what is below could not be copied.
                target.chmod(mode | 0o700)
        elif stat.S_ISLNK(found.st_mode):
            kind, mode, to = "link", 0, str(path.readlink())
            content = os.fsencode(to)
            links += [(target, to)] if target else []
        else:
            kind = "file"
            content, size_bytes = _copied(context, name, target, left_bytes)
            left_bytes -= size_bytes
            if target:
                target.chmod(mode | 0o600)
                os.utime(target, ns=(found.st_mtime_ns, found.st_mtime_ns))
        for part in (kind.encode(), os.fsencode(name), b"%o" % mode, content):
            # With lengths, no two contexts give the same bytes.
            digest.update(b"%d:" % len(part) + part)
    for target, to in links:  # last, so that no file is written through one
        target.symlink_to(to)
    return digest.hexdigest()


def _copied(context: Path, name: Path, target: Path | None, left_bytes: int) -> tuple[bytes, int]:
    digest, size_bytes = hashlib.sha256(), 0
    with open_regular(context, str(name)) as fd:
        if os.fstat(fd).st_size > left_bytes:
            raise _too_large(context)
        with Path(target or os.devnull).open("wb") as into:
            while chunk := os.read(fd, _CHUNK_BYTES):
                size_bytes += len(chunk)
                if size_bytes > left_bytes:
                    raise _too_large(context)
                digest.update(chunk)
                into.write(chunk)
    return digest.digest(), size_bytes


def _refused(what: str, where: Path | str, hint: str = "") -> PolicyError:
    return PolicyError(what, where=printable(str(where)), hint=hint)


def _too_large(context: Path) -> PolicyError:
    what = f"the context is larger than {format_size(MAX_BYTES)}"
    return _refused(what, context, "leave files out by a .dockerignore")


def _raise(error: OSError) -> NoReturn:
    raise error


def _paths(context: Path, ignored: Ignored) -> Iterator[Path]:
    """Yield entries in a fixed order, each after its parents."""
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


def _matches(rule: _Rule, parts: Sequence[str]) -> bool:
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
