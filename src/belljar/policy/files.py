"""Files that are copied into a cell, as a policy names them."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from belljar.policy import fields as kinds
from belljar.policy.resources import Strict

MAX_FILES: Final = 256


class FileCopy(Strict):
    """A file that is copied into the cell before its first command.

    No path of the host is ever shared with a cell.
    """

    source: Annotated[str, kinds.SOURCE] = Field(
        description="The file, below the policy's own directory and relative to it."
    )
    target: Annotated[str, kinds.TARGET] = Field(
        description="Its path in the cell, absolute or relative to the working directory."
    )
    mode: Annotated[int, kinds.MODE] | None = Field(
        default=None, description='Permissions as octal digits in quotes; default "0644".'
    )
    owner: Annotated[str, kinds.USER] | None = Field(
        default=None, description="Who owns it in the cell; default the cell's user."
    )


def _as_tuple(value: object) -> object:
    if isinstance(value, tuple):
        return value
    if not isinstance(value, list):
        raise ValueError(f"a list of files is needed, but this is {kinds.kind_of(value)}")
    if len(value) > MAX_FILES:
        raise ValueError(f"{len(value)} files; at most {MAX_FILES}. Put many files into an image")
    return tuple(value)


def _each_target_once(files: tuple[FileCopy, ...]) -> tuple[FileCopy, ...]:
    seen: set[str] = set()
    for file in files:
        if file.target in seen:
            raise ValueError(f"two files have the target {kinds.quoted(file.target)}")
        seen.add(file.target)
    return files


FilesField: TypeAlias = Annotated[
    tuple[FileCopy, ...],
    BeforeValidator(_as_tuple, json_schema_input_type=list[FileCopy]),
    AfterValidator(_each_target_once),
]
"""A list of files, no two of them with one target."""
