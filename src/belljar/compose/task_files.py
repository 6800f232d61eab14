"""The files that a compose file may name: those of its task, below one root, and nothing else of
this host.

The root is the Python package that the compose file is in (the nearest directory, its own or one
above, with an `__init__.py`), because tasks of a package share files; without one it is the compose
file's own directory. Never the home directory nor `/`.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from belljar.policy.directories import Tree, list_tree
from belljar.policy.regular import read_regular
from belljar.policy.task_data import MAX_ENTRIES
from belljar.units import format_size

DIRECTORY_KEY: Final = "x-belljar-directory"
"""Where a parsed file says what directory it was read from. Only `read_document` writes it."""
_read_here: Final[set[str]] = set()
"""The directories, and roots, of the tasks' files that this process itself has read."""
_MAX_ABOVE: Final = 8
MAX_TEXT_BYTES: Final = 256 << 10
"""Of a file that is read as text: variables, another compose file."""
_OUTSIDE: Final = "nothing of this host is shown in a cell but files below the task's own directory"


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """A root, and the directory below it that written paths are relative to (`.` for the root)."""

    root: Path
    directory: str = "."

    def path(self, written: str) -> str:
        """A written path as one below the root. Pure. Raises `ValueError` for one that is not."""
        if not written or written.startswith(("/", "~", "\\")) or written[1:2] == ":":
            raise ValueError(_OUTSIDE)
        found = posixpath.normpath(posixpath.join(self.directory, written))
        if found == ".." or found.startswith("../") or "\0" in found:
            raise ValueError(_OUTSIDE)
        return found

    def read_text(self, path: str) -> str:
        """A text of at most `MAX_TEXT_BYTES`, by its path below the root.

        Raises `OSError`, `ValueError`.
        """
        content = read_regular(self.root, path, MAX_TEXT_BYTES + 1)
        if len(content) > MAX_TEXT_BYTES:
            raise ValueError(f"it is larger than {format_size(MAX_TEXT_BYTES)}")
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError("it is not UTF-8") from None

    def tree(self, path: str) -> Tree:
        """What is there, by its path below the root. Raises as `list_tree`."""
        return list_tree(self.root, path, max_entries=MAX_ENTRIES)


def files_of(directory: Path) -> TaskFiles:
    """The files of the task whose compose file is in this directory."""
    own = directory.resolve()
    above = [own, *own.parents][: _MAX_ABOVE + 1]
    barred = {Path("/"), Path.home().resolve()}
    for candidate in above:
        if candidate in barred:
            break
        if os.path.lexists(candidate / "__init__.py"):
            return TaskFiles(candidate, own.relative_to(candidate).as_posix())
    return TaskFiles(own)


def mark_read(document: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """The parsed file with the directory that it was read from, whose files it may name from now
    on."""
    own = directory.resolve()
    _read_here.update((str(own), str(files_of(own).root)))
    return {**document, DIRECTORY_KEY: str(own)}


def was_read_here(directory: str) -> bool:
    """Whether a task's file was read from there by this process: what a log says of it is no reason
    to read anything of this host.
    """
    return directory in _read_here


def files_named_by(document: Mapping[str, Any]) -> TaskFiles | None:
    """The files of the task that a parsed file belongs to; None for one that was read from none."""
    directory = document.get(DIRECTORY_KEY)
    return files_of(Path(directory)) if isinstance(directory, str) and directory else None


def reason(error: OSError | ValueError) -> str:
    """Why a file can't be used, for a sentence."""
    return (error.strerror or "an error").lower() if isinstance(error, OSError) else str(error)
