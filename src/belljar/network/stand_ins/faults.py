"""What is wrong with an author's setting or file of a stand-in, as data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from belljar.dataclass import dataclass
from belljar.policy.yaml_tree import Path, field_name
from belljar.units import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        path: of the value below the stand-in's settings, or below the root of `file`.
        file: the file as the author named it, or its path; "" if a setting is wrong.
        line, column: in the file, from 1; 0 if the file as a whole is meant.
    """

    message: str
    path: Path = ()
    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        """`file:line:column: field: message`, without the parts that are empty."""
        place = ":".join(str(part) for part in (self.line, self.column) if part)
        file = ":".join(part for part in (printable(self.file), place) if part)
        return ": ".join(part for part in (file, field_name(self.path), self.message) if part)


Faults: TypeAlias = tuple[Fault, ...]


def missing_settings(settings: Mapping[str, object], names: Iterable[str]) -> Faults:
    """A fault for each setting that is not there."""
    return tuple(
        Fault(path=(name,), message="is missing") for name in names if name not in settings
    )
