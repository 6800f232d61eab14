"""The files that `env_file` names, as Compose reads them. Pure: text in, variables out.

Source: docs.docker.com/compose/how-tos/environment-variables/variable-interpolation, `.env` file
syntax; `format: raw` as `docker run --env-file`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from belljar.compose.interpolate import MAX_CHARACTERS, expand_defined

MAX_VARIABLES: Final = 1024
_START: Final = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.\-]*)[ \t]*", re.ASCII)
_BLANK: Final = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_SINGLE: Final = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_DOUBLE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_CONTROL: Final[Mapping[str, str]] = {"n": "\n", "r": "\r", "t": "\t", "$": "$$"}
_COMMENT: Final = re.compile(r"(?:^|[ \t])#.*")


def read_dotenv(text: str, defined: Mapping[str, str]) -> dict[str, str | None]:
    """The variables of a file; None: named without a value, which Compose would take from the host.

    Args:
        defined: variables of the files before it: with its own they are all that a `$` refers to.

    Raises:
        CannotKeepError: a reference to a variable that has no value here.
        ValueError: a line that is no assignment, an open quote, more than `MAX_VARIABLES`.
    """
    text = text.replace("\r\n", "\n")
    found: dict[str, str | None] = {}
    at = total = 0
    while at < len(text):
        if blank := _BLANK.match(text, at):
            at = blank.end()
            continue
        name = _START.match(text, at)
        if name is None:
            raise ValueError(f"line {_line(text, at)} is no `NAME=VALUE`")
        value, at = _value(text, name.end(), {**defined, **_known(found)})
        found[name[1]] = value
        total += len(value or "")
        if len(found) > MAX_VARIABLES or total > MAX_CHARACTERS:
            raise ValueError(f"more than {MAX_VARIABLES:,} variables or {MAX_CHARACTERS:,} characters")
    return found


def read_raw(text: str) -> dict[str, str | None]:
    """The same of a file with `format: raw`: each line as it is. Raises `ValueError`."""
    found: dict[str, str | None] = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.lstrip().partition("=")
        if not name or any(character.isspace() for character in name):
            raise ValueError(f"line {number} is no `NAME=VALUE`")
        found[name] = value if equals else None
        if len(found) > MAX_VARIABLES:
            raise ValueError(f"more than {MAX_VARIABLES:,} variables")
    return found


def _known(found: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in found.items() if value is not None}


def _value(text: str, at: int, defined: Mapping[str, str]) -> tuple[str | None, int]:
    """The value behind a name that ends at `at`, and where the next line begins."""
    if text[at : at + 1] in ("", "\n", "#"):
        return None, _end_of_line(text, at)
    if text[at] not in "=:":
        raise ValueError(f"line {_line(text, at)} is no `NAME=VALUE`")
    at = re.compile(r"[ \t]*").match(text, at + 1).end()  # type: ignore[union-attr] # it matches nothing too
    quote = text[at : at + 1]
    if quote not in ("'", '"'):
        end = _end_of_line(text, at)
        plain = _COMMENT.sub("", text[at:end].removesuffix("\n")).strip()
        return expand_defined(plain, defined), end
    whole = (_SINGLE if quote == "'" else _DOUBLE).match(text, at)
    rest = _BLANK.match(text, whole.end()) if whole else None
    if whole is None or rest is None:
        raise ValueError(f"line {_line(text, at)} has an open quote, or something behind a closed one")
    if quote == "'":
        return whole[1].replace("\\'", "'"), rest.end()
    inner = _ESCAPE.sub(lambda found: _CONTROL.get(found[1], found[1]), whole[1])
    return expand_defined(inner, defined), rest.end()


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
