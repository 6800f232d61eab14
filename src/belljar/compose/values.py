"""Readers of a compose file's values, and their error."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from math import isfinite
from typing import Any, Final

from belljar.differences import Difference, DifferenceKind, sentences
from belljar.units import parse_size, printable

_UNIT: Final = re.compile(r"([kmgt])i?b?$")  # Docker's, which count by 1024
SETTLE_S: Final = 1.0  # a program without a health check is ready after this time
MAX_COMMAND_CHARS: Final = 64 << 10  # of one command, as text or as a list
GATEWAY: Final = "host-gateway"
OUTSIDE_TASK: Final = (
    "a cell sees only files below the task's own directory: put them beside the compose file, or "
    "into the image"
)
# One name of a hosts file's line: a space or a line break would make further names.
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", re.ASCII)
_SEPARATOR: Final = re.compile(r"[=:]")
_MAX_HOSTS: Final = 256  # lines of a cell's hosts file
# YAML 1.1's words, which Docker's reader takes.
_SWITCHES: Final = dict.fromkeys(("true", "yes", "y", "on"), True) | dict.fromkeys(
    ("false", "no", "n", "off"), False
)


class CannotKeepError(ValueError):
    """`differences` begin with the refused keys."""

    def __init__(
        self, message: str = "", *, hint: str = "", refused: Iterable[Difference] = ()
    ) -> None:
        written = Difference(kind=DifferenceKind.REFUSED, detail=message, hint=hint)
        self.differences = tuple(refused) or (written,)
        super().__init__("; ".join(sentences(self.differences)))
        self.hint = self.differences[0].hint if len(self.differences) == 1 else ""
        self._refused = {(fact.where, fact.key) for fact in self.differences}

    def add(self, others: Iterable[Difference]) -> None:
        """Append differences, but none on refused keys."""
        more = (fact for fact in others if (fact.where, fact.key) not in self._refused)
        self.differences = tuple(dict.fromkeys((*self.differences, *more)))


def refusal(where: str, key: str, detail: str, *, hint: str = "") -> CannotKeepError:
    fact = Difference(kind=DifferenceKind.REFUSED, where=where, key=key, detail=detail, hint=hint)
    return CannotKeepError(refused=(fact,))


class Refusals:
    """Collects refused keys, which are shown all at once."""

    def __init__(self) -> None:
        self._found: list[Difference] = []

    def add(self, where: str, key: str, detail: str, *, hint: str = "") -> None:
        self._found += refusal(where, key, detail, hint=hint).differences

    @contextmanager
    def collected(self) -> Iterator[None]:
        try:
            yield
        except CannotKeepError as error:
            self._found += error.differences

    def raise_all(self) -> None:
        """Raises one `CannotKeepError` if anything was refused."""
        if self._found:
            raise CannotKeepError(refused=dict.fromkeys(self._found))


def mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise CannotKeepError(f"its compose file's {printable(where)} is no mapping")
    return {str(key): item for key, item in (value or {}).items()}


def names_in(value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, (Sequence, Mapping)):
        raise ValueError("no list of names")
    return [str(name) for name in value]


def switch(value: object) -> bool:
    found = _SWITCHES.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise ValueError("neither true nor false")
    return found


def text(value: object) -> str:
    """Write it as Compose does."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if not isfinite(value) or float(f"{value:g}") != value:
            raise ValueError(f"{value}: write a number so long in quotes")
        return f"{value:g}"  # as Go prints it
    if not isinstance(value, (str, int)):
        raise ValueError("no text")
    return str(value)


_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")


def words(value: object) -> list[str]:
    """Refuse what readers split differently."""
    if not isinstance(value, Sequence):
        raise ValueError("no command")
    parts = [value] if isinstance(value, str) else [text(word) for word in value]
    if sum(map(len, parts)) > MAX_COMMAND_CHARS:
        raise ValueError(f"a command of more than {MAX_COMMAND_CHARS:,} characters")
    if not isinstance(value, str):
        return parts
    if "\\" in value or not set("'\"`;&|<>()").isdisjoint(_QUOTED.sub("", value)):
        why = "a backslash, an open quote, or a shell's operator: write a list, or `sh -c '…'`"
        raise ValueError(f"no command is read with {why}")
    return shlex.split(value)


def limit(value: object) -> str | None:
    """0 and -1 are Docker's "no limit"."""
    written = text(value).strip()
    return None if written in ("0", "-1") else written


def size(value: object) -> str | None:
    """`k` is 1024, as in Docker."""
    written = limit(value)
    if written is None:
        return None
    written = f"{written}b" if written[-1:].isdigit() else _UNIT.sub(r"\1ib", written.lower())
    in_bytes = parse_size(written)
    return f"{in_bytes}B" if in_bytes else None


def each(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def pairs(value: object) -> dict[str, str | None]:
    if isinstance(value, Mapping):
        return {str(name): None if item is None else text(item) for name, item in value.items()}
    split = [text(line).partition("=") for line in names_in(value)]
    return {name: item if equals else None for name, equals, item in split}


def hosts(value: object) -> list[tuple[str, str]]:
    """Read lines `NAME:ADDRESS` or `NAME=ADDRESS`."""
    written = [_SEPARATOR.split(text(line), maxsplit=1) for line in names_in(value)]
    found = [(line[0].strip(), line[-1].strip().strip("[]")) for line in written]
    for name, address in found:
        # (a zone behind % may be any text)
        if not _HOST_NAME.fullmatch(name) or "%" in address or len(found) > _MAX_HOSTS:
            raise ValueError(f"{name} is no host name, or there are more than {_MAX_HOSTS}")
        if address != GATEWAY:
            ip_address(address)
    return found


def health_test(value: object) -> list[str] | None:
    """None is `NONE`; [] is the image's."""
    written: Any = [text(word) for word in value] if isinstance(value, (list, tuple)) else value
    match written:
        case str(shell) | ["CMD-SHELL", shell]:
            return ["sh", "-c", shell]
        case ["CMD", _, *_]:
            return list(written[1:])
        case ["NONE", *_]:
            return None
        case []:
            return []
    raise ValueError("a test that begins with none of CMD, CMD-SHELL, NONE")


def place_of(target: str) -> str:
    found = posixpath.normpath(target)
    if not target.startswith("/") or found in ("/", "//") or "\0" in found:
        raise ValueError("its place is no directory below /")
    return found


def tmpfs_of(value: object) -> str:
    """Read `PATH:OPTIONS`, by default anybody's directory."""
    target, _, written = text(value).partition(":")
    options = dict(option.partition("=")[::2] for option in written.split(","))
    # Only what a directory has too: sizes and flags of a mount mean nothing for it.
    named = {"mode": "1777", **{k: v for k, v in options.items() if k in {"mode", "uid", "gid"}}}
    return f"{place_of(target)}:{','.join(f'{k}={v}' for k, v in named.items())}"
