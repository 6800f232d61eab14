"""Faults of a stand-in's settings and of an author's files, each with its place."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TypeAlias

from belljar.dataclass import dataclass
from belljar.policy.files import read_regular
from belljar.policy.yaml_tree import Path as FieldPath
from belljar.policy.yaml_tree import field_name
from belljar.units import format_size, printable, quoted


@dataclass(frozen=True, slots=True)
class Fault:
    """`path`: below the settings, or the root of `file`."""

    message: str
    path: FieldPath = ()
    file: str = ""

    def __str__(self) -> str:
        """Return `file: field: message`, without the parts that are empty."""
        parts = (printable(self.file), field_name(self.path), self.message)
        return ": ".join(part for part in parts if part)


Faults: TypeAlias = tuple[Fault, ...]


def read_file(directory: Path | None, name: object, max_bytes: int | None) -> bytes | Fault:
    """Return a file's bytes, or why it can't be read. Links that lead out are refused.

    `max_bytes` None: it may have any size, and its first byte is enough.
    """
    relative = PurePosixPath(name if isinstance(name, str) else "")
    if directory is None or relative.is_absolute() or ".." in relative.parts:
        return Fault(f"{quoted(name)} is not below the stand-in's directory")
    most = 0 if max_bytes is None else max_bytes
    try:
        data = read_regular(directory, str(relative), most + 1)
    except (ValueError, OSError) as exc:  # a link that leads out is one
        return Fault(f"can't be read: {getattr(exc, 'strerror', None) or exc}", file=str(relative))
    if max_bytes is not None and len(data) > most:
        return Fault(f"larger than {format_size(most)}", file=str(relative))
    return data
