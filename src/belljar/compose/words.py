"""The small words of a compose file: switches, sizes, times, commands.

Pure; each raises `CannotKeepError` or `ValueError` for what it can't read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from belljar.differences import Difference, Kind, sentences
from belljar.units import printable

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.ASCII | re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIME: Final = re.compile(r"(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h|d|w))+")
_TIME_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h|d|w)")
_SECONDS: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}
_MAX_TIME_CHARS: Final = 40
MAX_COMMAND_CHARS: Final = 64 << 10
"""Of one command, whether it is a text or a list."""
_PIECE: Final = re.compile(
    r"""(?P<space>[ \t\r\n]+)|(?P<plain>[^ \t\r\n'"\\]+)|\\(?P<escaped>.)"""
    r"""|'(?P<single>[^']*)'|["](?P<double>[^"\\]*(?:\\.[^"\\]*)*)["]""",
    re.DOTALL,
)
_ESCAPED: Final = re.compile(r"""\\(["\\])""")


class CannotKeepError(ValueError):
    """A cell would not be what the file says.

    Attributes:
        differences: what is refused, each key of each service for itself, and then what else of
            the file differs, as far as it was read.
        hint: what to do, "" for the usual.
    """

    def __init__(self, message: str = "", *, hint: str = "", differences: Iterable[Difference] = ()) -> None:
        found = tuple(differences) or (Difference(kind=Kind.REFUSED, detail=message, hint=hint),)
        refused = [fact for fact in found if fact.kind is Kind.REFUSED]
        super().__init__(message or "; ".join(sentences(refused)))
        self.differences = tuple(refused)
        self.hint = hint or (refused[0].hint if len(refused) == 1 else "")
        self.add(found)

    def add(self, others: Iterable[Difference]) -> None:
        """Say what else differs, behind what is known. What is refused is nothing else."""
        refused = {(fact.where, fact.key) for fact in self.differences if fact.kind is Kind.REFUSED}
        more = (fact for fact in others if (fact.where, fact.key) not in refused)
        self.differences = tuple(dict.fromkeys((*self.differences, *more)))


def refusal(where: str, key: str, detail: str, *, hint: str = "") -> CannotKeepError:
    """The error for one key of one part: `service web`, `network lan`."""
    fact = Difference(kind=Kind.REFUSED, where=where, key=key, detail=detail, hint=hint)
    return CannotKeepError(differences=(fact,))


class Refusals:
    """Collects what is refused of a file, so that its author sees all of it at once."""

    def __init__(self) -> None:
        self._found: list[Difference] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """What is refused in the block is kept for `raise_all`."""
        try:
            yield
        except CannotKeepError as error:
            self._found += error.differences

    def raise_all(self, others: Iterable[Difference] = ()) -> None:
        """Raises one `CannotKeepError` if anything was refused. `others`: what else differs."""
        if self._found:
            raise CannotKeepError(differences=(*dict.fromkeys(self._found), *others))


def mapping(value: object, where: str) -> Mapping[str, Any]:
    """A mapping with names as text; nothing is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise CannotKeepError(f"its compose file's {printable(where)} is no mapping")
    return {str(key): item for key, item in value.items()}


def names_in(value: object) -> list[str]:
    """A list of names, or the names of a mapping."""
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, (Sequence, Mapping)):
        raise ValueError("no list of names")
    return [str(name) for name in value]


def switch(value: object) -> bool:
    """`true` or `false`, also as text: what was put in for a `$` is text."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def text(value: object) -> str:
    """A scalar as Compose writes it: `true`, and 1 for 1.0."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, (str, int, float)):
        raise ValueError("no text")
    return str(value)


def words(value: object) -> list[str]:
    """A command of at most `MAX_COMMAND_CHARS`: a list as it is, text split as a shell would."""
    if not isinstance(value, Sequence):
        raise ValueError("no command")
    parts = [value] if isinstance(value, str) else [text(word) for word in value]
    if sum(map(len, parts)) > MAX_COMMAND_CHARS:
        raise CannotKeepError(f"its compose file has a command of more than {MAX_COMMAND_CHARS:,} characters")
    return split(value) if isinstance(value, str) else parts


def split(command: str) -> list[str]:
    """As `shlex.split`, which copies a word for each of its characters.

    Raises `ValueError` for an open quote, and for a backslash at the end.
    """
    found: list[str] = []
    word: list[str] = []
    at = 0
    while at < len(command):
        piece = _PIECE.match(command, at)
        if piece is None:
            raise ValueError("an open quote, or a backslash at the end")
        at = piece.end()
        if piece.lastgroup == "space":
            found += _whole(word)
            word = []
        else:
            word.append(_ESCAPED.sub(r"\1", piece["double"]) if piece["double"] else piece[piece.lastgroup or 0])
    return [*found, *_whole(word)]


def _whole(pieces: list[str]) -> list[str]:
    """The word that they are; nothing where none began. (`''` is an empty word.)"""
    return ["".join(pieces)] if pieces else []


def size(value: object) -> str:
    """A size in a policy's words; a thousand is 1024, as for Docker."""
    found = _SIZE.fullmatch(text(value).strip())
    if found is None:
        raise ValueError("no size")
    return f"{int(float(found[1]) * _UNITS[found[2].lower()])}B"


def count(value: object) -> int:
    """A whole number above 0: -1 and 0, which are no limit to Docker, are none to a cell."""
    number = int(text(value))
    if number < 1:
        raise ValueError("not above 0")
    return number


def processors(value: object) -> int:
    """Whole processors, as a cell has them; a part of one is rounded up."""
    return max(1, int(-(-float(text(value)) // 1)))


def seconds(value: object) -> float:
    """A time as Go writes it: `1m30s`, `1.5h`, `200ms`."""
    written = "".join(str(value).split())
    if written == "0":
        return 0.0
    if len(written) > _MAX_TIME_CHARS or not _TIME.fullmatch(written):
        raise CannotKeepError(f"its compose file has {printable(str(value), max_chars=40)}, which is no time")
    return sum(float(number) * _SECONDS[unit] for number, unit in _TIME_PART.findall(written))


_WAITING: Final = frozenset({"tail -f /dev/null", "sleep infinity", "sleep inf"})
_SHELLS: Final = frozenset(f"{place}{shell}" for place in ("", "/bin/", "/usr/bin/") for shell in ("sh", "bash", "ash"))


def is_idle(command: Sequence[str]) -> bool:
    """Whether it does nothing but keep a container from ending: waiting, or a shell that nobody
    types into."""
    if not command:
        return True
    words = list(command)
    if words[0] in _SHELLS:
        if len(words) == 1:
            return True
        if words[1] in ("-c", "-lc") and len(words) == 3:
            words = words[2].removeprefix("exec ").split()
    return " ".join(words).strip() in _WAITING
