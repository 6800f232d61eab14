"""An author's files: YAML 1.2 (JSON is YAML, too), with places.

Every fault is named with file and field, with line and column. The rules are a policy's, but empty
values and plain numbers as names are allowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeAlias

from belljar.dataclass import dataclass, field
from belljar.errors import PolicyError
from belljar.policy.files import OutsideError, read_regular
from belljar.policy.yaml_tree import Path as FieldPath
from belljar.policy.yaml_tree import Reading, YamlTree, closest_mark, field_name, read_tree
from belljar.units import format_size, printable, quoted


@dataclass(frozen=True, slots=True)
class Fault:
    """`path`: below the settings, or the root of `file`. `line` and `column` count from 1."""

    message: str
    path: FieldPath = ()
    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        """`file:line:column: field: message`, if not empty."""
        place = ":".join(str(part) for part in (self.line, self.column) if part)
        file = ":".join(part for part in (printable(self.file), place) if part)
        return ": ".join(part for part in (file, field_name(self.path), self.message) if part)


Faults: TypeAlias = tuple[Fault, ...]


MAX_YAML_BYTES: Final = 512 << 10
MAX_PROBLEMS: Final = 50
_MAX_DEPTH: Final = 64


@dataclass(kw_only=True)
class Document:
    """A document, or the policy's own value (`source` "")."""

    source: str
    value: Any = None
    tree: YamlTree | None = None
    problems: list[Fault] = field(default_factory=list)

    def problem(self, path: FieldPath, message: str, *, key: bool = False) -> None:
        """At a value, or at its name; up to `MAX_PROBLEMS`."""
        if len(self.problems) >= MAX_PROBLEMS:
            return
        if self.tree is None:
            self.problems.append(Fault(message, path))
            return
        mark = closest_mark(self.tree, path, key=key)
        self.problems.append(Fault(message, path, self.source, mark.line, mark.column))


def read_file(directory: Path | None, name: object, max_bytes: int) -> bytes | Fault:
    """A file's bytes, or why it can't be read. Links that lead out are refused."""
    if not isinstance(name, str) or not name or "\0" in name:
        return Fault(f"{quoted(name)} is no file's name")
    if directory is None:
        return Fault(f"{quoted(name)} can't be read: the stand-in has no directory of files")
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        outside = f"{quoted(name)} is not below the stand-in's directory"
        return Fault(f"{outside}: write it relative, without `..`")
    try:
        data = read_regular(directory, str(relative), max_bytes + 1)
    except OutsideError:
        return Fault("leads out of the stand-in's directory by a link", file=name)
    except FileNotFoundError:
        return Fault("there is no such file in the stand-in's directory", file=name)
    except (ValueError, OSError) as exc:
        return Fault(f"can't be read: {getattr(exc, 'strerror', None) or exc}", file=name)
    if len(data) > max_bytes:
        return Fault(f"larger than {format_size(max_bytes)}", file=name)
    return data


def read_document(directory: Path | None, name: object, *, what: str) -> Document:
    """`Document.problems`: why it can't be read."""
    document = Document(source=str(name))
    data = read_file(directory, name, MAX_YAML_BYTES)
    if isinstance(data, Fault):
        document.problems.append(data)
        return document
    reading = Reading(
        what=what,
        max_bytes=MAX_YAML_BYTES,
        max_depth=_MAX_DEPTH,
        empty_values=True,
        plain_names=True,
    )
    document.tree = read_tree(data, reading)
    document.value = document.tree.value
    document.problems += [
        Fault(
            ": ".join(part for part in (problem.field, problem.message) if part),
            file=document.source,
            line=problem.mark.line,
            column=problem.mark.column,
        )
        for problem in document.tree.problems
    ]
    return document


def refuse_faults(faults: Iterable[Fault], where: str) -> None:
    """Raises `PolicyError` with all of them, if there are any."""
    if text := "; ".join(map(str, faults)):
        raise PolicyError(text, where=where)
