"""The kinds of value a policy holds, as pydantic annotations that describe themselves to an editor.

A refusal is a `ValueError` whose text goes to the author.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from belljar.dataclass import dataclass
from belljar.policy.reference import IMAGE_ID, PATTERN, parse_reference
from belljar.units import format_duration, format_size, parse_duration, parse_size, quoted

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}|[0-9]{1,5}(:[0-9]{1,5})?", re.ASCII)
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_MODE: Final = re.compile(r"0?[0-7]{3}", re.ASCII)
_URL_PATH: Final = re.compile(r"/[\x21-\x7e]{0,1023}", re.ASCII)
MAX_ID: Final = 65534
MAX_LINE_CHARS: Final = 4096
MAX_TEXT_CHARS: Final = 64 * 1024
MAX_PATH_BYTES: Final = 4095
MAX_ENV_VALUE_BYTES: Final = 128 * 1024
_KERNELS_OWN: Final = ("/proc", "/sys", "/dev")
_KINDS: Final = {
    bool: "true/false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
    type(None): "nothing",
}


# ---- words of messages


def listed(names: Iterable[str]) -> str:
    """Names as a list for a sentence: `a`, `b`, `c`."""
    return ", ".join(f"`{name}`" for name in names)


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The allowed name most like `word`, or ""."""
    matches = difflib.get_close_matches(word.lower()[:64], list(allowed), n=1, cutoff=0.6)
    return matches[0] if matches else ""


def did_you_mean(word: object, allowed: Iterable[str]) -> str:
    """The end of a message, with the nearest allowed name."""
    near = nearest(word, allowed) if isinstance(word, str) else ""
    return f"; did you mean `{near}`?" if near else ""


def kind_of(value: object) -> str:
    """What was written, in the author's words."""
    return _KINDS.get(type(value), type(value).__name__)


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

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)

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
            raise ValueError(f"this is text: write {self.version} without quotes")
        if type(value) is not int or value != self.version:
            raise ValueError(
                f"the format's version is {self.version}: write `belljar: {self.version}`, not "
                f"{quoted(value)}"
            )
        return value

    def schema(self) -> dict[str, Any]:
        """A constant."""
        return {"const": self.version}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(_Kind):
    """One word of an enumeration."""

    words: type[Enum]

    def read(self, value: object) -> Enum:
        """The member; one that is one already passes."""
        if isinstance(value, self.words):
            return value
        allowed = [str(word.value) for word in self.words]
        if isinstance(value, str) and value in allowed:
            return self.words(value)
        hint = did_you_mean(value, allowed)
        raise ValueError(f"{quoted(value)} is none of {listed(allowed)}{hint}")

    def schema(self) -> dict[str, Any]:
        """The words."""
        return {"type": "string", "enum": [word.value for word in self.words]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(_Kind):
    """A whole number between two bounds, both allowed."""

    least: int
    most: int

    def read(self, value: object) -> int:
        """The number."""
        if type(value) is not int:
            raise ValueError(
                f"a whole number from {self.least} to {self.most} is needed, but this is "
                f"{kind_of(value)} ({quoted(value)})"
            )
        if not self.least <= value <= self.most:
            raise ValueError(f"{quoted(value)} is out of range: from {self.least} to {self.most}")
        return value

    def schema(self) -> dict[str, Any]:
        """An integer and its range."""
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(_Kind):
    """A size as people write it (`512MiB`), in bytes."""

    least: str
    most: str

    def read(self, value: object) -> int:
        """Bytes."""
        return int(_measure(value, self, "a size", "512MiB", parse_size))

    def schema(self) -> dict[str, Any]:
        """A string with a pattern, because editors check patterns."""
        return {
            "type": "string",
            "pattern": r"^\s*\d+(\.\d+)?\s*([KMGTkmgt][Ii]?)?[Bb]\s*$",
            "examples": ["512MiB", "2GiB"],
            "description": f"From {self.least} to {self.most}.",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration(_Kind):
    """A duration as people write it (`1h30m`), in seconds."""

    least: str
    most: str

    def read(self, value: object) -> float:
        """Seconds."""
        return _measure(value, self, "a duration", "30m", parse_duration)

    def schema(self) -> dict[str, Any]:
        """A string with a pattern, because editors check patterns."""
        return {
            "type": "string",
            "pattern": r"^\s*(\d+(\.\d+)?\s*(ms|s|m|h|d)\s*)+$",
            "examples": ["30s", "10m", "1h30m"],
            "description": f"From {self.least} to {self.most}.",
        }


def _measure(
    value: object, bounds: Size | Duration, what: str, example: str, parse: Callable[[str], float]
) -> float:
    if not isinstance(value, str):
        raise ValueError(
            f"{what} is a number and its unit, as in `{example}`, but this is {kind_of(value)} "
            f"({quoted(value)})"
        )
    amount = parse(value)
    if not parse(bounds.least) <= amount <= parse(bounds.most):
        raise ValueError(f"{quoted(value)} is out of range: from {bounds.least} to {bounds.most}")
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
        shown = "" if value is None or isinstance(value, (list, dict)) else f" ({quoted(value)})"
        raise ValueError(
            f"{what} is text, but this is {kind_of(value)}{shown}; put it in quotes if it is meant "
            f"as text"
        )
    if "\0" in value:
        raise ValueError(f"{what} can't hold a NUL byte")
    return value


def matching(pattern: re.Pattern[str], error: str, *, what: str = "") -> Text:
    """Text that a pattern matches; `error` follows the value."""

    def read(value: object) -> str:
        text = _text(value, what) if what else value
        if not isinstance(text, str) or not pattern.fullmatch(text):
            raise ValueError(f"{quoted(text)} {error}")
        return text

    return Text(reader=read, pattern=f"^{pattern.pattern}$")


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
            f"{quoted(user)} is no user: a name, a user id from 0 to {MAX_ID}, or `uid:gid`"
        )
    return user


def _read_mode(value: object) -> int:
    if not isinstance(value, str) or not _MODE.fullmatch(value):
        raise ValueError(
            f'{quoted(value)} is no mode: three octal digits in quotes, as in "0644" (no '
            f"set-user-id, set-group-id or sticky bit)"
        )
    return int(value, 8)


def _bounded(what: str, most: str, is_too_long: Callable[[str], bool]) -> Text:
    def read(value: object) -> str:
        text = _text(value, what)
        if is_too_long(text):
            raise ValueError(f"{what} has at most {most}")
        return text

    return Text(reader=read, pattern="")


def _read_line(value: object) -> str:
    text = _text(value, "this")
    if not text.strip() or len(text) > MAX_LINE_CHARS or not text.isprintable():
        raise ValueError(
            f"{quoted(text)} can't be used: one line of printable text, at most {MAX_LINE_CHARS} "
            f"characters"
        )
    return text


# ---- paths


def _path(value: object, what: str) -> tuple[str, PurePosixPath]:
    text = _text(value, what)
    if not text or len(text.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES:
        raise ValueError(f"{what} has from 1 to {MAX_PATH_BYTES} bytes")
    if ".." in text.split("/"):
        raise ValueError(f"{quoted(text)} goes up with `..`, which {what} can't")
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
        raise ValueError(
            f"{quoted(target)} names a directory; a target is the file's own path in the cell"
        )
    shown = _normal(path)
    if any(shown == own or shown.startswith(f"{own}/") for own in _KERNELS_OWN):
        raise ValueError(
            f"{quoted(target)} lies under {listed(_KERNELS_OWN)}, which belong to the cell's kernel"
        )
    return shown


NAME: Final = matching(
    _NAME,
    "is no name: letters, digits, `.`, `_` and `-`, at most 64, a letter or digit first",
    what="a name",
)
IMAGE: Final = Text(reader=_read_image, pattern=f"^({IMAGE_ID.pattern}|{PATTERN})$")
USER: Final = Text(reader=_read_user, pattern=f"^({_USER.pattern})$", types=("string", "integer"))
WORKDIR: Final = _paths(
    "a working directory",
    "is relative; a working directory is absolute, as in `/home/user`",
    lambda _, path: not path.is_absolute(),
    "^/",
)
TARGET: Final = Text(reader=_read_target, pattern="[^/]$")
SOURCE: Final = _paths(
    "a source",
    "can't be a source: a file below the policy's own directory, written relative to it",
    lambda text, path: path.is_absolute() or text.endswith("/") or path.name == "",
    "^[^/].*[^/]$|^[^/]$",
)
MODE: Final = Text(reader=_read_mode, pattern=f"^{_MODE.pattern}$")
ENV_NAME: Final = matching(
    _ENV_NAME, "is no name of a variable: letters, digits and `_`, at most 128, no digit first"
)
ENV_VALUE: Final = _bounded(
    "a variable's value",
    format_size(MAX_ENV_VALUE_BYTES),
    lambda text: len(text.encode("utf-8", "surrogatepass")) > MAX_ENV_VALUE_BYTES,
)
DIRECTORY: Final = _paths(
    "a directory",
    "can't be used: a directory below the policy's own, written relative to it, so that nothing "
    "beside it is shown",
    lambda _, path: path.is_absolute() or str(path) == ".",
    "^[^/]",
)
LINE: Final = Text(reader=_read_line, pattern=r"\S")
TEXT: Final = _bounded(
    "this", f"{MAX_TEXT_CHARS} characters", lambda text: len(text) > MAX_TEXT_CHARS
)
URL_PATH: Final = Text(
    reader=matching(_URL_PATH, "is no path of a URL, as in `/health`", what="a path").read,
    pattern="^/",
)


def written_size(size_bytes: int) -> str:
    """Bytes as they would stand in a policy: `512MiB`."""
    shown = format_size(size_bytes).replace(" ", "")
    return shown if parse_size(shown) == size_bytes else f"{size_bytes}B"


def written_duration(seconds: float) -> str:
    """Seconds as they would stand in a policy: `30m`."""
    shown = format_duration(seconds).replace(" ", "")
    return shown if parse_duration(shown) == seconds else f"{seconds}s"
