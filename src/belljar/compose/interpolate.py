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
    blanks: bool = False
    what: str = "its compose file"
    is_environment: bool = False
    shaping: set[str] = field(default_factory=set)
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
            if not self.is_environment:
                self.shaping.add(name)
        elif operator:
            self.defaulted.add(name)
        if value or (value is not None and operator != ":-"):
            return value
        if operator:
            return word
        if self.blanks and self.is_environment and is_metadata:
            return ""
        why = "this host's environment is never read"
        if is_metadata:
            why = "it is not in this sample's metadata"
        raise CannotKeepError(
            f"{self.what} asks for ${printable(name)}, and {why}",
            hint=f"give it by the sample's metadata (${METADATA_PREFIX}…), or write a default: "
            f"${{{printable(name)}:-…}}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpolated:
    """`shaping`: metadata used outside `environment`."""

    document: dict[str, Any]
    shaping: frozenset[str]
    differences: tuple[Difference, ...]


def interpolate(
    document: Mapping[str, Any], variables: Mapping[str, str], *, blanks: bool = False
) -> Interpolated:
    """Replace all references. Raises `CannotKeepError` for one without a value or default.

    `blanks`: no sample is known yet, so missing metadata in `environment` is empty.
    """
    reading = _Reading(variables, blanks=blanks)
    made = _walk(document, reading, ())
    kind = DifferenceKind.CHANGED
    why = "this host's environment is not read: the variable has its default"
    facts = (
        Difference(kind=kind, key=f"${each}", detail=why) for each in sorted(reading.defaulted)
    )
    return Interpolated(document=made, shaping=frozenset(reading.shaping), differences=tuple(facts))


def references(document: Mapping[str, Any]) -> frozenset[str]:
    """Return all metadata that a file names."""
    return frozenset(re.findall(_OURS, json.dumps(document, default=str, skipkeys=True)))


def expand_metadata(env: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Replace only metadata. Raises `CannotKeepError`."""
    reading = _Reading(variables, what="its `env`")
    return {name: _OF_METADATA.sub(reading.put, value) for name, value in env.items()}


def literal(value: str) -> str:
    """Escape a text for a policy's `env`."""
    return _METADATA.sub("$$", value)


def _walk(value: Any, reading: _Reading, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - YAML
    if isinstance(value, str):
        reading.is_environment = path[:1] == ("services",) and path[2:3] == ("environment",)
        return _REFERENCE.sub(reading.put, value)
    if isinstance(value, Mapping):
        # What a file keeps under `x-` for its anchors is also at the place of use.
        used = ((str(k), item) for k, item in value.items() if path or not str(k).startswith("x-"))
        return {key: _walk(item, reading, (*path, key)) for key, item in used}
    if isinstance(value, (list, tuple)):
        return [_walk(item, reading, (*path, "")) for item in value]
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
