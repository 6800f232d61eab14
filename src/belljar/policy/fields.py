"""The kinds of value a policy holds, as pydantic annotations that describe themselves to an editor.

A refusal is a `ValueError` whose text goes to the author.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core import CoreSchema, core_schema

from belljar.dataclass import dataclass, field
from belljar.units import (
    did_you_mean,
    format_duration,
    format_size,
    kind_of,
    listed,
    parse_duration,
    parse_size,
    quoted,
)

# YAML can write one; no program, file or record can hold it.
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# It begins with a letter or digit: `..`, a hidden file's name and an option are none.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
# useradd's own rule; a number needs no entry in the image's /etc/passwd.
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}|[0-9]{1,10}(:[0-9]{1,10})?", re.ASCII)
# POSIX's names: a shell in the cell can read each of them.
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
# Without set-user-ID, set-group-ID and sticky: a policy's file gives nobody a right.
_MODE: Final = re.compile(r"0?[0-7]{3}", re.ASCII)
# Printable ASCII, as a request line has it: no space can begin a second word.
_URL_PATH: Final = re.compile(r"/[\x21-\x7e]{0,1023}", re.ASCII)
# Of a microVM's guest (native/guest/agent.h).
MAX_ID: Final = 0xFFFF_FFFD - 100_000
# A reviewer reads it in one look, and a message can show it whole.
MAX_LINE_CHARS: Final = 4096
# As many as a whole policy file has bytes at most (`yaml_tree.MAX_BYTES`).
MAX_TEXT_CHARS: Final = 64 * 1024
# Linux's PATH_MAX without the zero at the end.
MAX_PATH_BYTES: Final = 4095
# The kernel starts no program with a longer string (MAX_ARG_STRLEN).
MAX_ENV_VALUE_BYTES: Final = 128 * 1024
# The kernel answers there: a file of a policy's would hide it, or never be seen.
_KERNELS_OWN: Final = ("/proc", "/sys", "/dev")


def expected(what: str, value: object, *, shows_text: bool = False) -> ValueError:
    """The refusal of a value of the wrong kind; `what` was expected.

    Text may be a secret: it is shown only on request.
    """
    # `type`, not `isinstance`: of `true` its kind is told, which is more than `True`.
    is_shown = shows_text if isinstance(value, str) else type(value) in (int, float)
    shown = f" ({quoted(value)})" if is_shown else ""
    return ValueError(f"expected {what}, got {kind_of(value)}{shown}")


# Context of a `model_dump` whose values are written as a person writes them, to be read again.
WRITTEN: Final = {"written": True}


# ---- models and lists


class Strict(BaseModel):
    """Strict, frozen, no unknown fields."""

    # An unknown field is an error: a misspelt limit that is ignored would not limit. Values stay
    # out of messages, as they may be secrets.
    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True
    )


class AtError(ValueError):
    """A refusal, with a path below the checked field."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


def list_of(
    what: str,
    max_count: int,
    *,
    min_count: int = 1,
    schema: Any = list[Any],  # noqa: ANN401 - a type
) -> BeforeValidator:
    """A list of so many things, read into a tuple."""

    def read(value: object) -> object:
        if not isinstance(value, (list, tuple)):
            raise expected(f"a list of {what}", value)
        if not min_count <= len(value) <= max_count:
            raise ValueError(f"{len(value)} {what}; from {min_count} to {max_count} are allowed")
        return tuple(value)

    return BeforeValidator(read, json_schema_input_type=schema)


def mapping_of(what: str, *, empty: object = None) -> Callable[[object], object]:
    """Reads a mapping; None is `empty`."""

    def read(value: object) -> object:
        if value is not None and not isinstance(value, Mapping):
            raise expected(f"a mapping {what}", value)
        return empty if value is None else value

    return read


# ---- kinds of value


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldKind:
    """A kind of value, as a pydantic annotation.

    Attributes:
        read: returns the value as the program uses it, or raises `ValueError`.
        schema: JSON Schema of what a person may write, for editors.
        write: returns the value as a person writes it.
    """

    read: Callable[[object], Any]
    schema: dict[str, Any] = field(hash=False)
    write: Callable[[Any], Any] = lambda value: value

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(
            lambda value, info: self.write(value) if info.context == WRITTEN else value,
            info_arg=True,
        )
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return dict(self.schema)


def text_kind(read: Callable[[object], Any], *, types: str | list[str] = "string") -> FieldKind:
    """Text with its reader."""
    return FieldKind(read=read, schema={"type": types})


def version(number: int) -> FieldKind:
    """Exactly this version of the policy format."""

    def read(value: object) -> int:
        # The commonest mistake has its own message.
        if value == str(number):
            raise ValueError(f"write {number} without quotes")
        # `true` is an int of Python's, and equal to 1.
        if type(value) is not int or value != number:
            raise ValueError(f"{quoted(value)} is not a known version; write {number}")
        return value

    return FieldKind(read=read, schema={"const": number})


def choice(words: type[Enum]) -> FieldKind:
    """One word of an enumeration; a member is read as itself."""
    allowed = [str(word.value) for word in words]

    def read(value: object) -> Enum:
        if isinstance(value, words):
            return value
        if isinstance(value, str) and value in allowed:
            return words(value)
        hint = did_you_mean(value, allowed)
        raise ValueError(f"{quoted(value)} is not one of {listed(allowed)}{hint}")

    return FieldKind(read=read, schema={"type": "string", "enum": allowed})


def whole(least: int, most: int) -> FieldKind:
    """A whole number between two bounds, both allowed."""

    def read(value: object) -> int:
        if type(value) is not int:
            raise expected(f"a whole number from {least} to {most}", value, shows_text=True)
        if not least <= value <= most:
            raise ValueError(f"{quoted(value)} is out of range: from {least} to {most}")
        return value

    return FieldKind(read=read, schema={"type": "integer", "minimum": least, "maximum": most})


def size(least: str, most: str) -> FieldKind:
    """A size as people write it (`512MiB`), read into bytes."""
    return FieldKind(
        read=lambda value: int(_measure(value, least, most, "a size such as `512MiB`", parse_size)),
        write=lambda size_bytes: f"{size_bytes}B",
        schema={
            "type": "string",
            "examples": ["512MiB", "2GiB"],
            "description": f"From {least} to {most}.",
        },
    )


def duration(least: str, most: str) -> FieldKind:
    """A duration as people write it (`1h30m`), read into seconds."""
    return FieldKind(
        read=lambda value: _measure(value, least, most, "a duration such as `30m`", parse_duration),
        write=lambda seconds: f"{seconds:.6f}s",
        schema={
            "type": "string",
            "examples": ["30s", "10m", "1h30m"],
            "description": f"From {least} to {most}.",
        },
    )


def _measure(
    value: object, least: str, most: str, what: str, parse: Callable[[str], float]
) -> float:
    if not isinstance(value, str):
        raise expected(what, value)
    amount = parse(value)
    if not parse(least) <= amount <= parse(most):
        raise ValueError(f"{quoted(value)} is out of range: from {least} to {most}")
    return amount


def read_text(value: object, what: str) -> str:
    """Return text without NUL bytes. Raises `ValueError`, which names `what`."""
    if not isinstance(value, str):
        raise ValueError(f"{expected(what, value)}; if it is meant as text, put it in quotes")
    if "\0" in value:
        raise ValueError(f"{what} can't contain a NUL byte")
    if _SURROGATE.search(value):
        raise ValueError(f"{what} can't contain half a character, as `\\ud800` writes it")
    return value


def checked(
    what: str,
    error: str,
    accepts: Callable[[str], object],
    *,
    convert: Callable[[str], Any] = str,
) -> FieldKind:
    """Text that `accepts` finds true; `error` follows one that it doesn't."""

    def read(value: object) -> Any:  # noqa: ANN401 - the converter's type
        text = read_text(value, what)
        if not accepts(text):
            raise ValueError(f"{quoted(text)} {error}")
        return convert(text)

    return text_kind(read)


def matching(
    what: str, pattern: re.Pattern[str], error: str, *, convert: Callable[[str], Any] = str
) -> FieldKind:
    """Text that a pattern matches; `error` follows another."""
    return checked(what, error, pattern.fullmatch, convert=convert)


def _read_user(value: object) -> str:
    user = str(value) if type(value) is int else read_text(value, "a user")
    ids = (int(part) for part in user.split(":") if part.isascii() and part.isdigit())
    if not _USER.fullmatch(user) or any(number > MAX_ID for number in ids):
        raise ValueError(
            f"{quoted(user)} is not a valid user: write a name, a user id from 0 to {MAX_ID}, or "
            f"`uid:gid`"
        )
    return user


def _bounded(what: str, most: str, is_too_long: Callable[[str], bool]) -> FieldKind:
    def read(value: object) -> str:
        text = read_text(value, what)
        if is_too_long(text):
            raise ValueError(f"{what} can have at most {most}")
        return text

    return text_kind(read)


# ---- paths


def _path(value: object, what: str) -> tuple[str, PurePosixPath]:
    text = read_text(value, what)
    if not text or len(text.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES:
        raise ValueError(f"{what} must have 1 to {MAX_PATH_BYTES} bytes")
    # Not resolved: behind a link it would lead elsewhere than it reads.
    if ".." in text.split("/"):
        raise ValueError(f"{quoted(text)} contains `..`, which is not allowed in {what}")
    return text, PurePosixPath(text)


def _normal(path: PurePosixPath) -> str:
    # `PurePosixPath` keeps two slashes at the beginning, as POSIX lets them mean something else.
    return "/" + str(path).lstrip("/") if path.is_absolute() else str(path)


def _paths(what: str, error: str, is_wrong: Callable[[str, PurePosixPath], bool]) -> FieldKind:
    """Paths, normalised; `error` follows one that is wrong."""

    def read(value: object) -> str:
        text, path = _path(value, what)
        if is_wrong(text, path):
            raise ValueError(f"{quoted(text)} {error}")
        return _normal(path)

    return text_kind(read)


def _read_target(value: object) -> str:
    target, path = _path(value, "a target")
    if target.endswith("/") or path.name == "":
        raise ValueError(f"{quoted(target)} is a directory; write the path of the file in the cell")
    shown = _normal(path)
    if any(shown == own or shown.startswith(f"{own}/") for own in _KERNELS_OWN):
        raise ValueError(
            f"{quoted(target)} is under {listed(_KERNELS_OWN)}, which belong to the cell's kernel"
        )
    return shown


NAME: Final = matching(
    "a name",
    _NAME,
    "is not a valid name: use at most 64 letters, digits, `.`, `_` and `-`, and begin with a "
    "letter or digit",
)
# An integer too: YAML reads `user: 1000` as one.
USER: Final = text_kind(_read_user, types=["string", "integer"])
WORKDIR: Final = _paths(
    "a working directory",
    "is not absolute; write the whole path, as in `/home/user`",
    lambda _, path: not path.is_absolute(),
)
# A whole path of a file: nothing is copied under a name that the author didn't write.
TARGET: Final = text_kind(_read_target)
# No absolute path: what a policy may copy must lie beside it, where its reviewer finds it.
SOURCE: Final = _paths(
    "a source",
    "is not a valid source: write the path of a file below the policy's directory, relative to it",
    lambda text, path: path.is_absolute() or text.endswith("/") or path.name == "",
)
# Text: a plain `0644` is the number 644 by YAML 1.2's core schema.
MODE: Final = matching(
    "a mode",
    _MODE,
    'is not a valid mode: write three octal digits in quotes, as in "0644" (set-user-ID, '
    "set-group-ID and sticky bits are not allowed)",
    convert=lambda text: int(text, 8),
)
ENV_NAME: Final = matching(
    "a variable's name",
    _ENV_NAME,
    "is not a valid name of a variable: use at most 128 letters, digits and `_`, and don't begin "
    "with a digit",
)
# The kernel's bound is in bytes; a lone surrogate is measured, too, not an encoding error.
ENV_VALUE: Final = _bounded(
    "a variable's value",
    format_size(MAX_ENV_VALUE_BYTES),
    lambda text: len(text.encode("utf-8", "surrogatepass")) > MAX_ENV_VALUE_BYTES,
)
# Not the policy's own directory, which holds the policy and whatever lies beside it.
DIRECTORY: Final = _paths(
    "a directory",
    "is not a valid directory: write the path of one below the policy's directory, relative to it",
    lambda _, path: path.is_absolute() or str(path) == ".",
)
# Without line breaks or controls, it can't forge a second line of a plan or report.
LINE: Final = checked(
    "text",
    f"is not one line of printable text of at most {MAX_LINE_CHARS} characters",
    lambda text: text.strip() and len(text) <= MAX_LINE_CHARS and text.isprintable(),
)
TEXT: Final = _bounded(
    "text", f"{MAX_TEXT_CHARS} characters", lambda text: len(text) > MAX_TEXT_CHARS
)
URL_PATH: Final = checked(
    "a path", "is not the path of a URL, as in `/health`", _URL_PATH.fullmatch
)


def written_size(size_bytes: int) -> str:
    """Bytes as they would stand in a policy: `512MiB`."""
    shown = format_size(size_bytes).replace(" ", "")
    return shown if parse_size(shown) == size_bytes else f"{size_bytes}B"


def written_duration(seconds: float) -> str:
    """Seconds as they would stand in a policy: `30m`."""
    shown = format_duration(seconds).replace(" ", "")
    return shown if parse_duration(shown) == seconds else f"{seconds}s"
