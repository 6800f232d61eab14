"""Faults of a stand-in's settings and of an author's files, each with its place."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from belljar.dataclass import dataclass
from belljar.errors import PolicyError
from belljar.policy.files import read_regular
from belljar.policy.yaml_tree import Path as FieldPath
from belljar.policy.yaml_tree import field_name
from belljar.units import format_size, printable, quoted

MAX_FAULTS: Final = 50  # More of one file help no author.


@dataclass(frozen=True, slots=True)
class Fault:
    """`path`: below the settings, or the root of `file`. `line` and `column` count from 1."""

    message: str
    path: FieldPath = ()
    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        """Return `file:line:column: field: message`, without the parts that are empty."""
        place = ":".join(str(part) for part in (self.line, self.column) if part)
        file = ":".join(part for part in (printable(self.file), place) if part)
        return ": ".join(part for part in (file, field_name(self.path), self.message) if part)


Faults: TypeAlias = tuple[Fault, ...]


def read_file(directory: Path | None, name: object, max_bytes: int | None) -> bytes | Fault:
    """Return a file's bytes, or why it can't be read. Links that lead out are refused.

    `max_bytes` None: it may have any size, and its first byte is enough.
    """
    if not isinstance(name, str) or not name or "\0" in name or directory is None:
        return Fault(f"{quoted(name)} is no file's name, or there is no directory of files")
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        return Fault(f"{quoted(name)} is not below the stand-in's directory")
    try:
        data = read_regular(directory, str(relative), 1 if max_bytes is None else max_bytes + 1)
    except (ValueError, OSError) as exc:  # a link that leads out is one
        return Fault(f"can't be read: {getattr(exc, 'strerror', None) or exc}", file=name)
    if max_bytes is not None and len(data) > max_bytes:
        return Fault(f"larger than {format_size(max_bytes)}", file=name)
    return data


def refuse_faults(faults: Iterable[Fault], where: str) -> None:
    """Raise `PolicyError` with all of them, if there are any."""
    if text := "; ".join(map(str, faults)):
        raise PolicyError(text, where=where)
