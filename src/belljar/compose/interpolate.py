"""`$` references and files of variables, without this host's environment. Pure.

Source: compose-spec 12-interpolation; Docker's docs on interpolation, `.env` file syntax.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from belljar.compose.values import CannotKeepError
from belljar.dataclass import dataclass, field
from belljar.differences import Difference, DifferenceKind
from belljar.errors import PolicyError
from belljar.units import printable

METADATA_PREFIX: Final = "SAMPLE_METADATA_"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Files of variables have names with dots and dashes too, which no reference can ask for.
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
# A `$` before neither a name nor a brace stays. `odd`: what else Compose reads behind a brace.
_REFERENCE: Final = re.compile(
    rf"\$(?:(?P<dollar>\$)|(?P<plain>{_NAME.pattern})"
    rf"|\{{(?P<name>{_NAME.pattern})(?:(?P<operator>:?-)(?P<word>[^{{}}$]*))?\}}|(?P<odd>\{{))",
    re.ASCII,
)
# Of a policy's `env`, where `$$` is a dollar sign before such a name alone.
_OURS: Final = METADATA_PREFIX + r"[A-Za-z0-9_]+"
_OF_METADATA: Final = re.compile(
    rf"\$(?:(?P<dollar>\$)(?=\{{?{_OURS})|(?P<plain>{_OURS})"
    rf"|\{{(?P<name>{_OURS})(?:(?P<operator>:?-)(?P<word>[^{{}}]*))?\}}|(?P<odd>(?!)))"
)
_METADATA: Final = re.compile(rf"\$(?=\{{?{_OURS})")  # what would be a reference, and is escaped
# Of a line of such a file, after a blank or at a value's beginning.
_COMMENT: Final = re.compile(r"\s#|^#")
_ODD: Final = {"'": {"'"}, '"': {'"', "\\", "$"}, "": {"'", '"', "\\", "$"}}
MAX_CHARACTERS: Final = 1 << 20  # of all inserted text
MAX_VARIABLES: Final = 1024  # of all of a service's files of variables


@dataclass
class _Reading:
    variables: Mapping[str, str]
    what: str = "its compose file"
    defaulted: set[str] = field(default_factory=set)
    put_chars: int = 0

    def put(self, found: re.Match[str]) -> str:
        if found["odd"]:
            shown = printable(found.string[found.start() :], max_chars=60)
            why = "write `$NAME`, `${NAME}` or `${NAME:-default}`"
            raise CannotKeepError(f"{self.what} has {shown}, which is not read here: {why}")
        name = found["plain"] or found["name"]
        value = "$" if found["dollar"] else self._value(name, found["operator"], found["word"])
        self.put_chars += len(value)
        if self.put_chars > MAX_CHARACTERS:
            why = f"{self.what}'s references stand for more than {MAX_CHARACTERS:,} characters"
            raise CannotKeepError(why)
        return value

    def _value(self, name: str, operator: str | None, word: str) -> str:
        value, is_metadata = None, name.startswith(METADATA_PREFIX)
        if is_metadata:
            value = self.variables.get(name)
        elif operator:
            self.defaulted.add(name)
        if value or (value is not None and operator != ":-"):
            return value
        if operator:
            return word
        why, shown = "this host's environment is never read", printable(name)
        if is_metadata:
            why = "it is not in this sample's metadata"
        own = f"give it by the sample's metadata (${METADATA_PREFIX}…)"
        hint = f"{own}, or write a default: ${{{shown}:-…}}"
        raise CannotKeepError(f"{self.what} asks for ${shown}, and {why}", hint=hint)


def interpolate(
    document: Mapping[str, Any], variables: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[Difference, ...]]:
    """Raises `CannotKeepError` for a reference without a value."""
    reading = _Reading(variables)
    made = _walk(document, reading)
    kind, names = DifferenceKind.CHANGED, sorted(reading.defaulted)
    why = "this host's environment is not read: the variable has its default"
    return made, tuple(Difference(kind=kind, key=f"${name}", detail=why) for name in names)


def references(document: Mapping[str, Any]) -> frozenset[str]:
    """Return all metadata that a file names."""
    return frozenset(re.findall(_OURS, json.dumps(document, default=str, skipkeys=True)))


def expand_metadata(
    env: Mapping[str, str], variables: Mapping[str, str], *, where: str
) -> dict[str, str]:
    """Replace only metadata. Raises `PolicyError`."""
    reading = _Reading(variables, what="its `env`")
    try:
        return {name: _OF_METADATA.sub(reading.put, value) for name, value in env.items()}
    except CannotKeepError as error:
        raise PolicyError(str(error), where=where, hint=error.hint) from error


def literal(value: str) -> str:
    """Escape a text for a policy's `env`."""
    return _METADATA.sub("$$", value)


def _walk(value: Any, reading: _Reading, *, is_top: bool = True) -> Any:  # noqa: ANN401 - YAML
    if isinstance(value, str):
        return _REFERENCE.sub(reading.put, value)
    if isinstance(value, Mapping):
        # What a file keeps under `x-` for its anchors is also at the place of use.
        used = ((str(key), item) for key, item in value.items())
        kept = (pair for pair in used if not (is_top and pair[0].startswith("x-")))
        return {key: _walk(item, reading, is_top=False) for key, item in kept}
    if isinstance(value, (list, tuple)):
        return [_walk(item, reading, is_top=False) for item in value]
    return value


def read_dotenv(text: str) -> dict[str, str | None]:
    """Raises `ValueError` for references and escapes."""
    found: dict[str, str | None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if name.startswith("#") or not (name or equals):
            continue
        quote = value[0] if value[:1] in ("'", '"') and value[1:].endswith(value[0]) else ""
        plain = value[1:-1] if quote else _COMMENT.split(value, maxsplit=1)[0]
        if not (_VARIABLE.fullmatch(name) and _ODD[quote].isdisjoint(plain)):
            why = "no `NAME=VALUE`, or has a `$`, backslash or quote outside of single quotes"
            raise ValueError(f"line {number} is {why}")
        found[name] = plain if equals else None
    return found
