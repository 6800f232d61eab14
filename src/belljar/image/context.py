"""A build's context: the files that `.dockerignore` leaves in, their digest and a copy.

Only files below the directory are read; links are never followed. Source: Docker's `.dockerignore`
(Go's `filepath.Match` with `**`; the last matching line decides).
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

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
# A character that makes a name a pattern.
PATTERN: Final = re.compile(r"[*?[\\]")


@dataclass(frozen=True, slots=True)
class Ignored:
    """Patterns of relative paths, and whether each takes back what earlier ones left out."""

    rules: tuple[tuple[re.Pattern[str], bool], ...] = ()

    def __contains__(self, path: str) -> bool:
        decided = False
        for pattern, takes_back in self.rules:
            if pattern.match(f"{path}/"):
                decided = not takes_back
        return decided

    @property
    def takes_back(self) -> bool:
        """True when an excluded directory may contain included files."""
        return any(takes_back for _, takes_back in self.rules)


def parse_ignore(text: str) -> Ignored:
    """Parse a `.dockerignore`. Raises `PolicyError` beyond `MAX_RULES`."""
    rules = list[tuple[re.Pattern[str], bool]]()
    for line in text.removeprefix("\ufeff").splitlines():
        written = line.strip()
        if not written or line.startswith("#"):
            continue
        takes_back = written.startswith("!")
        path = os.path.normpath(written.removeprefix("!").strip()).strip("/")
        if path not in {".", ""}:
            rules.append((_rule(path), takes_back))
        if len(rules) > MAX_RULES:
            raise PolicyError(f"it has more than {MAX_RULES:,} patterns", where=".dockerignore")
    return Ignored(tuple(rules))


def read_ignore(context: Path, dockerfile: Path) -> Ignored:
    """From `NAME.dockerignore` beside the Dockerfile, or the context."""
    for directory, name in (
        (dockerfile.parent, f"{dockerfile.name}.dockerignore"),
        (context, ".dockerignore"),
    ):
        try:
            return parse_ignore(
                read_regular(directory, name, _MAX_IGNORE_BYTES).decode("utf-8", "replace")
            )
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise _refused(f"it can't be read: {error}", directory / name) from error
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


def plain(path: str) -> str:
    """Return a path's plain parts: none that is empty, `.` or `..`."""
    return posixpath.normpath("/" + path).strip("/")


def names_like_patterns(context: Path, source: str) -> list[str]:
    """Return what a pattern names in a context where buildah takes the found name as a pattern.

    For a match `[xyz]/f` it would copy `x/f`.
    """
    found = [context]
    for part in plain(source).split("/"):
        pattern = re.compile(_part(part))
        found = [
            entry
            for path in found
            if path.is_dir() and not path.is_symlink()
            for entry in path.iterdir()
            if pattern.fullmatch(entry.name)
        ]
    names = [str(path.relative_to(context)) for path in found]
    return list(filter(PATTERN.search, names))


def _refused(what: str, where: Path | str, hint: str = "") -> PolicyError:
    return PolicyError(what, where=printable(str(where)), hint=hint)


def _too_large(context: Path) -> PolicyError:
    what = f"the context is larger than {format_size(MAX_BYTES)}"
    return _refused(what, context, "leave files out by a .dockerignore")


def _paths(context: Path, ignored: Ignored) -> Iterator[Path]:
    """Every included entry in a fixed order, after its parents, be they excluded."""
    known = {context, *context.parents}
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
            if not (here / name).is_symlink() and (ignored.takes_back or here / name in known)
        )


def _raise(error: OSError) -> NoReturn:
    raise _refused(f"it can't be read: {error.strerror}", error.filename) from error


def _rule(path: str) -> re.Pattern[str]:
    """Match the beginning of `PATH/`: the path, or what is below it.

    What is between two `**` (in a part: two `*`) is taken where it comes first, which bounds the
    time of a match.
    """
    groups: list[str] = [""]
    for part in path.split("/"):
        if part == "**":
            groups.append("")
        else:
            groups[-1] += f"{_part(part)}/"
    first, *rest = groups
    between = "".join(f"(?>(?:[^/]+/)*?{group})" for group in rest[:-1])
    # At the end, `**` stands for one name at least.
    last = f"(?:[^/]+/)*{rest[-1] or '[^/]+/'}" if rest else ""
    return re.compile(first + between + last, re.DOTALL)


def _part(part: str) -> str:
    chunks = [""]
    for token in re.findall(r"\*+|\?|\[[^\]]*\]|\\.|.", part, re.DOTALL):
        if token[0] == "*":
            chunks.append("")
        else:
            chunks[-1] += _expression(token)
    first, *rest = chunks
    between = "".join(f"(?>[^/]*?{chunk})" for chunk in rest[:-1])
    return first + between + (f"[^/]*{rest[-1]}" if rest else "")


def _expression(glob: str) -> str:
    if glob == "?":
        return "[^/]"
    if not glob.startswith("[") or len(glob) <= 2:
        return re.escape(glob[-1] if glob.startswith("\\") else glob)
    # Python gives these characters another meaning in a class than Go does.
    found = "(?!/)[" + re.sub(r"\\.|[\[&|~]", lambda each: re.escape(each[0][-1]), glob[1:])
    try:
        re.compile(found)
    except re.error:
        return re.escape(glob)
    return found
