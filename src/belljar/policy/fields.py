"""The kinds of value a policy holds, as pydantic annotations that describe themselves to an editor.

A refusal is a `ValueError` whose text goes to the author.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from belljar.dataclass import dataclass
from belljar.policy.reference import IMAGE_ID, PATTERN, parse_reference
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

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}|[0-9]{1,10}(:[0-9]{1,10})?", re.ASCII)
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_MODE: Final = re.compile(r"0?[0-7]{3}", re.ASCII)
_URL_PATH: Final = re.compile(r"/[\x21-\x7e]{0,1023}", re.ASCII)
MAX_ID: Final = 0xFFFF_FFFD - 100_000
"""Of a microVM's guest (native/guest/agent.h)."""
MAX_LINE_CHARS: Final = 4096
MAX_TEXT_CHARS: Final = 64 * 1024
MAX_PATH_BYTES: Final = 4095
MAX_ENV_VALUE_BYTES: Final = 128 * 1024
_KERNELS_OWN: Final = ("/proc", "/sys", "/dev")


def expected(what: str, value: object, *, shows_text: bool = False) -> ValueError:
    """The refusal of a value of the wrong kind; `what` was expected.

    Text may be a secret: it is shown only on request.
    """
    is_shown = shows_text if isinstance(value, str) else type(value) in (int, float)
    shown = f" ({quoted(value)})" if is_shown else ""
    return ValueError(f"expected {what}, got {kind_of(value)}{shown}")


WRITTEN: Final = {"written": True}
"""Context of a `model_dump` whose values are written as a person writes them, to be read again."""


# ---- kinds of value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A plain validator and the JSON Schema that an editor sees."""

    def read(self, value: object) -> Any:  # noqa: ANN401 - each kind has its own type
        """The value as the program uses it. Raises `ValueError`."""
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        """JSON Schema of what a person may write."""
        raise NotImplementedError

    def write(self, value: Any) -> Any:  # noqa: ANN401 - each kind has its own type
        """The value as a person writes it."""
        return value

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
        return self.schema()


@dataclass(frozen=True, slots=True, kw_only=True)
class Version(_Kind):
    """The version of the policy format."""

    version: int

    def read(self, value: object) -> int:
        """Exactly the version."""
        if value == str(self.version):
            raise ValueError(f"write {self.version} without quotes")
        if type(value) is not int or value != self.version:
            raise ValueError(f"{quoted(value)} is not a known version; write {self.version}")
        return value

    def schema(self) -> dict[str, Any]:
        """A constant."""
        return {"const": self.version}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(_Kind):
    """One word of an enumeration."""

    words: type[Enum]

    def read(self, value: object) -> Enum:
        """The member; a member is returned as it is."""
        if isinstance(value, self.words):
            return value
        allowed = [str(word.value) for word in self.words]
        if isinstance(value, str) and value in allowed:
            return self.words(value)
        hint = did_you_mean(value, allowed)
        raise ValueError(f"{quoted(value)} is not one of {listed(allowed)}{hint}")

    def schema(self) -> dict[str, Any]:
        """The words."""
        return {"type": "string", "enum": [word.value for word in self.words]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(_Kind):
    """A whole number between two bounds, both allowed."""

    min: int
    max: int

    def read(self, value: object) -> int:
        """The number."""
        if type(value) is not int:
            what = f"a whole number from {self.min} to {self.max}"
            raise expected(what, value, shows_text=True)
        if not self.min <= value <= self.max:
            raise ValueError(f"{quoted(value)} is out of range: from {self.min} to {self.max}")
        return value

    def schema(self) -> dict[str, Any]:
        """An integer and its range."""
        return {"type": "integer", "minimum": self.min, "maximum": self.max}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(_Kind):
    """A size as people write it (`512MiB`), in bytes."""

    min: str
    max: str

    def read(self, value: object) -> int:
        """Bytes."""
        return int(_measure(value, self, "a size such as `512MiB`", parse_size))

    def write(self, value: int) -> str:
        """Bytes."""
        return f"{value}B"

    def schema(self) -> dict[str, Any]:
        """A string with a pattern, because editors check patterns."""
        return {
            "type": "string",
            "pattern": r"^\s*\d+(\.\d+)?\s*([KMGTkmgt][Ii]?)?[Bb]\s*$",
            "examples": ["512MiB", "2GiB"],
            "description": f"From {self.min} to {self.max}.",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration(_Kind):
    """A duration as people write it (`1h30m`), in seconds."""

    min: str
    max: str

    def read(self, value: object) -> float:
        """Seconds."""
        return _measure(value, self, "a duration such as `30m`", parse_duration)

    def write(self, value: float) -> str:
        """Seconds."""
        return f"{value:.6f}s"

    def schema(self) -> dict[str, Any]:
        """A string with a pattern, because editors check patterns."""
        return {
            "type": "string",
            "pattern": r"^\s*(\d+(\.\d+)?\s*(ms|s|m|h|d)\s*)+$",
            "examples": ["30s", "10m", "1h30m"],
            "description": f"From {self.min} to {self.max}.",
        }


def _measure(
    value: object, bounds: Size | Duration, what: str, parse: Callable[[str], float]
) -> float:
    if not isinstance(value, str):
        raise expected(what, value)
    amount = parse(value)
    if not parse(bounds.min) <= amount <= parse(bounds.max):
        raise ValueError(f"{quoted(value)} is out of range: from {bounds.min} to {bounds.max}")
    return amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(_Kind):
    """Text with a reader and an editor's pattern."""

    reader: Callable[[object], Any]
    pattern: str
    types: tuple[str, ...] = ("string",)

    def read(self, value: object) -> Any:  # noqa: ANN401 - the reader's type
        """What the reader makes of it."""
        return self.reader(value)

    def schema(self) -> dict[str, Any]:
        """A string with a pattern."""
        types = self.types[0] if len(self.types) == 1 else list(self.types)
        return {"type": types, "pattern": self.pattern}


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{expected(what, value)}; if it is meant as text, put it in quotes")
    if "\0" in value:
        raise ValueError(f"{what} can't contain a NUL byte")
    return value


def checked(
    what: str,
    error: str,
    accepts: Callable[[str], object],
    pattern: str,
    *,
    convert: Callable[[str], Any] = str,
) -> Text:
    """Text that `accepts` finds true; `error` follows one that it doesn't."""

    def read(value: object) -> Any:  # noqa: ANN401 - the converter's type
        text = _text(value, what)
        if not accepts(text):
            raise ValueError(f"{quoted(text)} {error}")
        return convert(text)

    return Text(reader=read, pattern=pattern)


def matching(
    what: str, pattern: re.Pattern[str], error: str, *, convert: Callable[[str], Any] = str
) -> Text:
    """Text that a pattern matches; `error` follows another."""
    return checked(what, error, pattern.fullmatch, f"^{pattern.pattern}$", convert=convert)


def _read_image(value: object) -> str:
    """As written; it is normalised where it is looked up."""
    image = _text(value, "an image")
    if not IMAGE_ID.fullmatch(image):
        parse_reference(image)
    return image


def _read_user(value: object) -> str:
    user = str(value) if type(value) is int else _text(value, "a user")
    ids = (int(part) for part in user.split(":") if part.isascii() and part.isdigit())
    if not _USER.fullmatch(user) or any(number > MAX_ID for number in ids):
        raise ValueError(
            f"{quoted(user)} is not a valid user: write a name, a user id from 0 to {MAX_ID}, or "
            f"`uid:gid`"
        )
    return user


def _bounded(what: str, most: str, is_too_long: Callable[[str], bool]) -> Text:
    def read(value: object) -> str:
        text = _text(value, what)
        if is_too_long(text):
            raise ValueError(f"{what} can have at most {most}")
        return text

    return Text(reader=read, pattern="")


# ---- paths


def _path(value: object, what: str) -> tuple[str, PurePosixPath]:
    text = _text(value, what)
    if not text or len(text.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES:
        raise ValueError(f"{what} must have 1 to {MAX_PATH_BYTES} bytes")
    if ".." in text.split("/"):
        raise ValueError(f"{quoted(text)} contains `..`, which is not allowed in {what}")
    return text, PurePosixPath(text)


def _normal(path: PurePosixPath) -> str:
    return "/" + str(path).lstrip("/") if path.is_absolute() else str(path)


def _paths(
    what: str, error: str, is_wrong: Callable[[str, PurePosixPath], bool], pattern: str
) -> Text:
    """Paths, normalised; `error` follows one that is wrong."""

    def read(value: object) -> str:
        text, path = _path(value, what)
        if is_wrong(text, path):
            raise ValueError(f"{quoted(text)} {error}")
        return _normal(path)

    return Text(reader=read, pattern=pattern)


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
IMAGE: Final = Text(reader=_read_image, pattern=f"^({IMAGE_ID.pattern}|{PATTERN})$")
USER: Final = Text(reader=_read_user, pattern=f"^({_USER.pattern})$", types=("string", "integer"))
WORKDIR: Final = _paths(
    "a working directory",
    "is not absolute; write the whole path, as in `/home/user`",
    lambda _, path: not path.is_absolute(),
    "^/",
)
TARGET: Final = Text(reader=_read_target, pattern="[^/]$")
SOURCE: Final = _paths(
    "a source",
    "is not a valid source: write the path of a file below the policy's directory, relative to it",
    lambda text, path: path.is_absolute() or text.endswith("/") or path.name == "",
    "^[^/].*[^/]$|^[^/]$",
)
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
ENV_VALUE: Final = _bounded(
    "a variable's value",
    format_size(MAX_ENV_VALUE_BYTES),
    lambda text: len(text.encode("utf-8", "surrogatepass")) > MAX_ENV_VALUE_BYTES,
)
DIRECTORY: Final = _paths(
    "a directory",
    "is not a valid directory: write the path of one below the policy's directory, relative to it",
    lambda _, path: path.is_absolute() or str(path) == ".",
    "^[^/]",
)
LINE: Final = checked(
    "text",
    f"is not one line of printable text of at most {MAX_LINE_CHARS} characters",
    lambda text: text.strip() and len(text) <= MAX_LINE_CHARS and text.isprintable(),
    r"\S",
)
TEXT: Final = _bounded(
    "text", f"{MAX_TEXT_CHARS} characters", lambda text: len(text) > MAX_TEXT_CHARS
)
URL_PATH: Final = checked(
    "a path", "is not the path of a URL, as in `/health`", _URL_PATH.fullmatch, "^/"
)


def written_size(size_bytes: int) -> str:
    """Bytes as they would stand in a policy: `512MiB`."""
    shown = format_size(size_bytes).replace(" ", "")
    return shown if parse_size(shown) == size_bytes else f"{size_bytes}B"


def written_duration(seconds: float) -> str:
    """Seconds as they would stand in a policy: `30m`."""
    shown = format_duration(seconds).replace(" ", "")
    return shown if parse_duration(shown) == seconds else f"{seconds}s"
