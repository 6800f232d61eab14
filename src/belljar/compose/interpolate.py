"""The `$` in a compose file's values, as Compose has it, with a sample's metadata as the only
variables.

Pure.

This host's environment is never read: a file that runs in a cell must not draw anything of this
host into it. So a variable that is no metadata is unset: its default is put in and reported, and
without one the file is refused by the variable's name. What is put in is data: no `$` of it means
anything.

Source: compose-spec 12-interpolation; Inspect names a sample's metadata `SAMPLE_METADATA_<KEY>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from belljar.compose.words import CannotKeepError
from belljar.differences import Difference, Kind
from belljar.units import printable

METADATA_PREFIX: Final = "SAMPLE_METADATA_"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OPERATOR: Final = re.compile(r":?[-?+]")
_METADATA: Final = re.compile(rf"\$(?=\{{?{METADATA_PREFIX}[A-Za-z0-9_])")
MAX_NODES: Final = 20_000
"""Values of a file, each counted as often as it stands there: an alias of YAML is all that it
names."""
MAX_CHARACTERS: Final = 1 << 20
"""Of all its texts together, counted likewise; and once more of all that is put in for references.
"""
MAX_DEPTH: Final = 64
_MAX_NESTED: Final = 16


@dataclass
class _Reading:
    """One pass over a file. `variables`: a sample's; `defined`: a file's own; `blanks`: no
    sample is known yet, and what is missing from `environment` does not matter."""

    variables: Mapping[str, str]
    defined: Mapping[str, str] = field(default_factory=dict)
    blanks: bool = False
    is_environment: bool = False
    names: set[str] = field(default_factory=set)
    shaping: set[str] = field(default_factory=set)
    defaulted: set[str] = field(default_factory=set)
    nodes: int = 0
    read_chars: int = 0
    put_chars: int = 0

    def count(self, value: object, depth: int) -> None:
        """One more value. Raises `CannotKeepError` beyond the bounds."""
        self.nodes += 1
        self.read_chars += len(value) if isinstance(value, str) else 0
        if self.nodes > MAX_NODES:
            raise CannotKeepError(f"its compose file has more than {MAX_NODES:,} values")
        if self.read_chars > MAX_CHARACTERS:
            raise CannotKeepError(f"its compose file has more than {MAX_CHARACTERS:,} characters")
        if depth > MAX_DEPTH:
            raise CannotKeepError(f"its compose file is nested deeper than {MAX_DEPTH} levels")

    def putting(self, text: str) -> str:
        """The same text, counted before it is put in. Raises `CannotKeepError` beyond the bound."""
        self.put_chars += len(text)
        if self.put_chars > MAX_CHARACTERS:
            raise CannotKeepError(f"its compose file's references stand for more than {MAX_CHARACTERS:,} characters")
        return text

    def value_of(self, name: str) -> str | None:
        """None: unset."""
        if name in self.defined:
            return self.defined[name]
        if not name.startswith(METADATA_PREFIX):
            return None
        self.names.add(name)
        if not self.is_environment:
            self.shaping.add(name)
        return self.variables.get(name)

    def missing(self, name: str, why: str = "") -> str:
        """What a variable that must be set, and isn't, comes to. Raises `CannotKeepError`."""
        if self.blanks and self.is_environment and name.startswith(METADATA_PREFIX):
            return ""
        reason = f": {printable(why, max_chars=200)}" if why else ""
        if name.startswith(METADATA_PREFIX):
            raise CannotKeepError(
                f"its compose file asks for ${name}, which is not in this sample's metadata{reason}",
                hint=f"add it to the sample's metadata, or give a default: ${{{name}:-…}}",
            )
        raise CannotKeepError(
            f"its compose file asks for ${printable(name)}, and this host's environment is never read{reason}",
            hint=f"give a default (${{{printable(name)}:-…}}), or use the sample's metadata: ${METADATA_PREFIX}…",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpolated:
    """A file without references.

    `names`: the metadata it asked for; `shaping`: those of them that stand elsewhere than in
    `environment`.
    """

    document: dict[str, Any]
    names: frozenset[str]
    shaping: frozenset[str]
    differences: tuple[Difference, ...]


def interpolate(document: Mapping[str, Any], variables: Mapping[str, str], *, blanks: bool = False) -> Interpolated:
    """Replace every reference in the values of a parsed file; keys stay.

    `blanks`: no sample is known yet: metadata that is missing in a service's `environment` is empty
    there.

    Raises:
        CannotKeepError: a variable that has neither a value nor a default, a reference that Compose
            does not know, or a file that is too large or too deep.
    """
    reading = _Reading(variables, blanks=blanks)
    made = _walk(document, reading, ())
    return Interpolated(
        document=made,
        names=frozenset(reading.names),
        shaping=frozenset(reading.shaping),
        differences=tuple(_differences(reading)),
    )


def references(document: Mapping[str, Any]) -> frozenset[str]:
    """The metadata that a file asks for anywhere, also in a default that would not be used.

    Raises as `interpolate` for its size.
    """
    found = (name for text in _texts(document, _Reading({}), 0) for name in _NAME.findall(text))
    return frozenset(name for name in found if name.startswith(METADATA_PREFIX))


def literal(value: str) -> str:
    """A text so written that a policy's `env`, in which metadata is put in for references, means
    exactly it."""
    return _METADATA.sub("$$", value)


def _differences(reading: _Reading) -> Iterator[Difference]:
    why = "this host's environment is not read: the variable has its default"
    for name in sorted(reading.defaulted):
        yield Difference(kind=Kind.CHANGED, key=f"${name}", detail=why)


def _texts(value: object, reading: _Reading, depth: int) -> Iterator[str]:
    reading.count(value, depth)
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item, reading, depth + 1)


def _walk(value: Any, reading: _Reading, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - YAML
    reading.count(value, len(path))
    if isinstance(value, str):
        reading.is_environment = path[:1] == ("services",) and path[2:3] == ("environment",)
        return expand(value, reading)
    if isinstance(value, Mapping):
        # What a file keeps under `x-` for its anchors stands where it is used, too.
        used = ((str(key), item) for key, item in value.items() if path or not str(key).startswith("x-"))
        return {key: _walk(item, reading, (*path, key)) for key, item in used}
    if isinstance(value, (list, tuple)):
        return [_walk(item, reading, (*path, "")) for item in value]
    return value


def expand_defined(text: str, defined: Mapping[str, str]) -> str:
    """One value of a file of variables, in which a `$` refers to these and to nothing else.

    Raises `CannotKeepError` for a variable that has neither a value nor a default.
    """
    return expand(text, _Reading({}, defined))


def expand(text: str, reading: _Reading, *, nested: int = 0) -> str:
    """One value. A `$` before neither a name nor a brace stays."""
    if nested > _MAX_NESTED:
        raise CannotKeepError("its compose file nests references too deep")
    done, at = [], 0
    while (dollar := text.find("$", at)) >= 0:
        put, end = _reference(text, dollar, reading, nested)
        done += [text[at:dollar], reading.putting(put)]
        at = end
    return "".join((*done, text[at:]))


def _reference(text: str, dollar: int, reading: _Reading, nested: int) -> tuple[str, int]:
    """What stands for the reference at `dollar`, and where it ends."""
    after = text[dollar + 1 : dollar + 2]
    if after == "$":
        return "$", dollar + 2
    if after == "{":
        end = _closing(text, dollar + 2)
        return _braced(text[dollar + 2 : end], reading, nested), end + 1
    name = _NAME.match(text, dollar + 1)
    if name is None:
        return "$", dollar + 1
    value = reading.value_of(name[0])
    return reading.missing(name[0]) if value is None else value, name.end()


def _closing(text: str, start: int) -> int:
    """Where the brace closes; references inside of it have braces of their own."""
    depth = 1
    for brace in re.compile(r"\$\{|\}").finditer(text, start):
        depth += 1 if brace[0] == "${" else -1
        if depth == 0:
            return brace.start()
    raise _unknown(text[start - 2 :])


def _braced(body: str, reading: _Reading, nested: int) -> str:
    name = _NAME.match(body)
    operator = _OPERATOR.match(body, name.end()) if name else None
    if name is None or (operator is None and name.end() != len(body)):
        raise _unknown(f"${{{body}}}")
    value = reading.value_of(name[0])
    if operator is None:
        return reading.missing(name[0]) if value is None else value
    is_given = value is not None and (value != "" or not operator[0].startswith(":"))
    if operator[0][-1] == "+":
        return expand(body[operator.end() :], reading, nested=nested + 1) if is_given else ""
    if value is not None and is_given:
        return value
    argument = expand(body[operator.end() :], reading, nested=nested + 1)
    if operator[0][-1] == "?":
        return reading.missing(name[0], argument)
    if not name[0].startswith(METADATA_PREFIX):
        reading.defaulted.add(name[0])
    return argument


def _unknown(written: str) -> CannotKeepError:
    return CannotKeepError(
        f"its compose file has {printable(written, max_chars=60)}, which is no reference of Compose's"
    )
