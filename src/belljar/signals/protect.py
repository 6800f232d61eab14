"""Reads protected files: bytes in, known values out."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from belljar.errors import PolicyError
from belljar.policy.guarding import Protected
from belljar.signals.values import (
    MAX_VALUE_BYTES,
    MAX_VALUES,
    MAX_VALUES_BYTES,
    MIN_VALUE_BYTES,
    KnownValue,
    Source,
)
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy.loaded import LoadedPolicy

MAX_FILE_BYTES: Final = MAX_VALUES_BYTES
_HINT_SIZE: Final = "split it, or name the columns that matter"


def protected_values(item: Protected, content: bytes | None = None) -> tuple[KnownValue, ...]:
    """The values of one entry of `guard.protect`; `content` is its file's.

    A CSV file with a header (`columns`), JSON lines (a name that ends in `.jsonl`), or one value a
    line. Values shorter than 10 bytes are left out: they would be found everywhere.

    Raises:
        PolicyError: the file is no text, lacks a column, is too large or has no value that can be
            looked for.
    """
    where = item.file or f"guard.protect {item.id}"
    if not item.file:
        texts: Iterator[str] = iter((item.value,))
    elif content is None:
        raise PolicyError("the protected file was not read", where=where)
    else:
        texts = _texts(item, content)
    values: dict[str, KnownValue] = {}
    for text in texts:
        stripped = text.strip()
        size = len(stripped.encode())
        if size > MAX_VALUE_BYTES:
            raise PolicyError(
                f"a protected value has {size} bytes; at most {MAX_VALUE_BYTES}",
                where=where,
                hint=_HINT_SIZE,
            )
        if size >= MIN_VALUE_BYTES and stripped not in values:
            values[stripped] = KnownValue(
                id=f"{item.id}/{len(values) + 1}" if item.file else item.id,
                text=stripped,
                source=Source.PROTECTED,
                case_sensitive=False,
            )
        if len(values) > MAX_VALUES:
            raise PolicyError(
                f"more than {MAX_VALUES} protected values", where=where, hint=_HINT_SIZE
            )
    if not values:
        raise PolicyError(
            f"nothing in it is {MIN_VALUE_BYTES} bytes or longer, so nothing can be looked for",
            where=where,
        )
    return tuple(values.values())


def _texts(item: Protected, content: bytes) -> Iterator[str]:
    if len(content) > MAX_FILE_BYTES:
        raise PolicyError(
            f"a protected file has at most {MAX_FILE_BYTES >> 20} MiB",
            where=item.file,
            hint=_HINT_SIZE,
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PolicyError(
            f"it is no UTF-8 text (byte {error.start})", where=item.file, hint="export it as CSV"
        ) from error
    if item.file.endswith((".jsonl", ".ndjson")):
        yield from _of_json(item, text)
    elif item.columns:
        yield from _of_columns(item, text)
    else:
        yield from text.splitlines()


def _of_columns(item: Protected, text: str) -> Iterator[str]:
    rows = csv.DictReader(text.splitlines(), strict=True)
    try:
        missing = [column for column in item.columns if column not in (rows.fieldnames or ())]
        if missing:
            raise PolicyError(
                f"there is no column {missing[0]!r}",
                where=item.file,
                hint="its first line names them",
            )
        for row in rows:
            for column in item.columns:
                yield row[column] or ""
    except csv.Error as error:
        raise PolicyError(f"it is no CSV: {error}", where=f"{item.file}:{rows.line_num}") from error


def _of_json(item: Protected, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PolicyError(f"it is no JSON: {error}", where=f"{item.file}:{number}") from error
        fields = row if isinstance(row, dict) else {"": row}
        for column in item.columns or fields:
            value = fields.get(column)
            if isinstance(value, str | int):
                yield str(value)


def read_protected(loaded: LoadedPolicy) -> tuple[KnownValue, ...]:
    """All that a policy protects, read from its files. Raises PolicyError."""
    from belljar.policy.files import read_regular

    values: list[KnownValue] = []
    for item in loaded.policy.guard_rules.protect:
        content = None
        if item.file:
            if loaded.base is None:
                raise PolicyError(
                    "a policy without a directory has no protected files", where=item.file
                )
            try:
                content = read_regular(loaded.base, item.file, MAX_FILE_BYTES + 1)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise PolicyError(
                    f"the protected file can't be read: {reason}",
                    where=printable(item.file),
                    hint="a protected file is a readable regular file below the policy's directory",
                ) from error
        values += protected_values(item, content)
    return tuple(values)
