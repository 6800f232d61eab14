"""`env_file` of a service: variables of the task's files, underneath its `environment`.

Source: docs.docker.com/compose/how-tos/environment-variables/variable-interpolation, `.env` file
syntax; `format: raw` as `docker run --env-file`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from belljar.compose.interpolate import MAX_CHARACTERS, expand_defined
from belljar.compose.service import Converted
from belljar.compose.task_files import TaskFiles, reason
from belljar.compose.words import CannotKeepError, mapping, refusal, switch, text
from belljar.units import printable

MAX_FILES: Final = 16
MAX_VARIABLES: Final = 1024
_KEYS: Final = frozenset({"path", "required", "format"})
_START: Final = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.\-]*)[ \t]*", re.ASCII)
_BLANK: Final = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_SINGLE: Final = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_DOUBLE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_CONTROL: Final[Mapping[str, str]] = {"n": "\n", "r": "\r", "t": "\t", "$": "$$"}
_COMMENT: Final = re.compile(r"(?:^|[ \t])#.*")


def add_env_files(converted: Converted, written: object, files: TaskFiles | None) -> None:
    """Put a service's files of variables under its `environment`. Raises `CannotKeepError`."""
    if not written:
        return
    where = f"service {converted.service}"
    if files is None:
        why = "the compose configuration is not a file, so the task's directory is not known"
        raise refusal(where, "env_file", why)
    found: dict[str, str] = {}
    for path, required, is_raw in _listed(written, where):
        try:
            content = files.read_text(files.path(path))
            variables = read_raw(content) if is_raw else read_dotenv(content, found)
        except FileNotFoundError as error:
            if required:
                hint = "make it; an example is often beside it"
                raise refusal(where, "env_file", f"{path}: it does not exist", hint=hint) from error
            converted.changed("env_file", f"{path} does not exist, and is not required")
            continue
        except (OSError, ValueError) as error:
            why = str(error) if isinstance(error, CannotKeepError) else reason(error)
            raise refusal(where, "env_file", f"{printable(path)}: {printable(why)}") from error
        found |= _with_values(variables)
        if unset := sorted(name for name, value in variables.items() if value is None):
            names = ", ".join(unset)
            converted.changed("env_file", f"{path}: variables without a value are not set ({names})")
    if len(found) > MAX_VARIABLES:
        raise refusal(where, "env_file", f"more than {MAX_VARIABLES:,} variables")
    converted.words["env"] = {**found, **converted.words.get("env", {})}


def _listed(written: Any, where: str) -> Iterator[tuple[str, bool, bool]]:  # noqa: ANN401 - YAML
    """Paths, whether each is required, and whether it is read as it is."""
    items = written if isinstance(written, list) else [written]
    if len(items) > MAX_FILES:
        raise refusal(where, "env_file", f"{len(items)} files; at most {MAX_FILES}")
    for item in items:
        fields = {"path": item} if isinstance(item, str) else mapping(item, "env_file")
        if set(fields) - _KEYS or fields.get("format") not in (None, "raw"):
            raise refusal(where, "env_file", "only `path`, `required` and `format: raw` are read")
        required = switch(fields.get("required", True))
        yield text(fields.get("path") or ""), required, fields.get("format") == "raw"


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
        value, at = _value(text, name.end(), {**defined, **_with_values(found)})
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


def _with_values(variables: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if value is not None}


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
