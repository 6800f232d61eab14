"""YAML 1.2 → plain values, each with its place. The parser is ruamel.yaml's; what the text *means* is decided here, by the core schema.

Refused, because a policy must read the same to everyone: anchors, aliases, tags, merge keys, duplicate keys, several documents, directives other than
`%YAML 1.2`, deep nesting, big files, bytes that aren't UTF-8. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from belljar.policy.fields import quoted
from belljar.units import format_size, printable

MAX_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 12
_MAX_PROBLEMS: Final = 20

Path: TypeAlias = tuple["str | int", ...]

_INT: Final = re.compile(r"[-+]?[0-9]+", re.ASCII)
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_SPECIAL: Final = {"": None, "~": None} | {
    spelling: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for spelling in (word, word.capitalize(), word.upper())
}
_NOT_A_NUMBER: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", re.ASCII)
_MAX_DIGITS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How strictly a document is read; the default is a policy's. Other documents of an author's may hold empty values and plain `200:` as a name."""

    what: str = "a policy"
    max_bytes: int = MAX_BYTES
    max_depth: int = MAX_DEPTH
    empty_values: bool = False
    plain_names: bool = False


POLICY: Final = Reading()


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Mark:
    """A place in the text; both count from 1, columns in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, and where."""

    mark: Mark
    field: str
    message: str
    is_of_the_file: bool = False
    """It is about the file as a whole, and has no word of what the file holds."""

    def line(self, source: str) -> str:
        """`file:line:column: field: message`."""
        place = f"{printable(source)}:{self.mark.line}:{self.mark.column}"
        return f"{place}: {self.field}: {self.message}" if self.field else f"{place}: {self.message}"


@dataclass(slots=True, kw_only=True)
class Tree:
    """What the text holds. `marks` has the place of every value and `keys` of every key, by path."""

    value: Any = None
    marks: dict[Path, Mark] = field(default_factory=dict)
    keys: dict[Path, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    is_whole: bool = False
    """The text was read to its end: a field that isn't there was not written."""


def field_name(path: Path) -> str:
    """A path as a person reads it: `files[0].source`, escaped."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{printable(part, max_chars=60)}" for part in path)
    return text.removeprefix(".")


def read_tree(data: bytes, reading: Reading = POLICY) -> Tree:
    """The values of one YAML document and their places. Never raises for what the bytes hold: see `Tree.problems`."""
    tree = Tree()
    text = _decode(data, tree, reading)
    if text is None:
        return tree
    builder = _Builder(tree, reading)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            if not builder.take(event):
                break
        else:
            tree.is_whole = True
    except MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        what = printable(exc.problem or exc.context or "can't be read", max_chars=200)
        builder.problem(_mark(mark) if mark else Mark(line=1, column=1), (), f"not YAML: {what}")
    except ReaderError as exc:
        before = text[: exc.position]
        mark_at = Mark(line=before.count("\n") + 1, column=len(before) - before.rfind("\n"))
        character = chr(exc.character) if isinstance(exc.character, int) else str(exc.character)
        builder.problem(mark_at, (), f"the character {quoted(character)} can't be in YAML")
    except (YAMLError, ValueError, OverflowError) as exc:
        builder.problem(Mark(line=1, column=1), (), f"not YAML: {printable(str(exc), max_chars=200)}")
    return tree


def _decode(data: bytes, tree: Tree, reading: Reading) -> str | None:
    start = Mark(line=1, column=1)
    if len(data) > reading.max_bytes:
        tree.problems.append(
            Problem(
                mark=start,
                field="",
                message=f"larger than {format_size(reading.max_bytes)}, which is the most {reading.what} may have",
                is_of_the_file=True,
            )
        )
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        before = data[: exc.start]
        mark = Mark(
            line=before.count(b"\n") + 1, column=len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        )
        tree.problems.append(
            Problem(
                mark=mark, field="", message=f"not UTF-8: the byte \\x{data[exc.start]:02x}; save the file as UTF-8"
            )
        )
        return None


def _mark(mark: Any) -> Mark:  # noqa: ANN401 - ruamel's marks are untyped
    return Mark(line=mark.line + 1, column=mark.column + 1)


def scalar(text: str, *, plain: bool) -> object:
    """What a scalar means by YAML 1.2's core schema (section 10.3.2): `22:22` is text, `0o17` is 15, `no` is text."""
    if not plain:
        return text
    if text in _SPECIAL:
        return _SPECIAL[text]
    if len(text) <= _MAX_DIGITS:
        if _INT.fullmatch(text):
            return int(text)
        if _BASED.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
        if _NOT_A_NUMBER.fullmatch(text):
            return float(text.replace(".", "").lower())
    return text


@dataclass(slots=True)
class _Open:
    """A mapping or list that is being filled."""

    value: dict[str, Any] | list[Any]
    path: Path
    key: str | None = None
    skip: bool = False


class _Builder:
    """Takes parser events one by one; `take` says whether to go on."""

    def __init__(self, tree: Tree, reading: Reading) -> None:
        self.tree = tree
        self.reading = reading
        self.stack: list[_Open] = []
        self.documents = 0

    def problem(self, mark: Mark, path: Path, message: str) -> bool:
        """Note it. False when there are so many that more would help nobody."""
        self.tree.problems.append(Problem(mark=mark, field=field_name(path), message=message))
        return len(self.tree.problems) < _MAX_PROBLEMS

    def take(self, event: Any) -> bool:  # noqa: ANN401 - ruamel's events are untyped
        """One event in."""
        match event:
            case DocumentStartEvent():
                return self._document(event)
            case AliasEvent():
                return self._alias(event)
            case ScalarEvent():
                return self._plain(event) and self._scalar(event)
            case MappingStartEvent() | SequenceStartEvent():
                return self._plain(event) and self._open(event)
            case MappingEndEvent() | SequenceEndEvent():
                self.stack.pop()
        return True

    def _document(self, event: Any) -> bool:  # noqa: ANN401 - ruamel's events are untyped
        self.documents += 1
        if self.documents > 1:
            self.problem(
                _mark(event.start_mark),
                (),
                f"a second document; {self.reading.what} is one document, without `---` in between",
            )
            return False
        if event.version not in (None, (1, 2)) or event.tags:
            self.problem(
                Mark(line=1, column=1),
                (),
                f"directives are refused, but for `%YAML 1.2`: {self.reading.what} must read the same everywhere",
            )
            return False
        return True

    def _alias(self, event: Any) -> bool:  # noqa: ANN401 - ruamel's events are untyped
        self.problem(
            _mark(event.start_mark),
            self._path(),
            f"aliases are refused: write the value again instead of {quoted('*' + event.anchor)}",
        )
        return False

    def _plain(self, event: Any) -> bool:  # noqa: ANN401 - ruamel's events are untyped
        if event.anchor is not None:
            return self.problem(
                _mark(event.start_mark), self._path(), f"anchors are refused: take {quoted('&' + event.anchor)} away"
            )
        if event.tag is not None:
            return self.problem(
                _mark(event.start_mark), self._path(), f"tags are refused: take {quoted(str(event.tag))} away"
            )
        return True

    def _path(self) -> Path:
        if not self.stack:
            return ()
        top = self.stack[-1]
        if isinstance(top.value, list):
            return (*top.path, len(top.value))
        return top.path if top.key is None else (*top.path, top.key)

    def _scalar(self, event: Any) -> bool:  # noqa: ANN401 - ruamel's events are untyped
        plain = event.style is None
        if self._wants_key():
            return self._key(event, plain=plain)
        return self._place(scalar(event.value, plain=plain), _mark(event.start_mark))

    def _wants_key(self) -> bool:
        return bool(self.stack) and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None

    def _key(self, event: Any, *, plain: bool) -> bool:  # noqa: ANN401 - ruamel's events are untyped
        top, mark, name = self.stack[-1], _mark(event.start_mark), event.value
        top.key, top.skip = name, False
        if plain and name == "<<":
            top.skip = True
            return self.problem(mark, top.path, "merge keys (`<<`) are refused: write the fields out")
        if not self.reading.plain_names and not isinstance(scalar(name, plain=plain), str):
            top.skip = True
            return self.problem(
                mark, top.path, f"{quoted(name)} is no name of a field: put it in quotes if it is meant as text"
            )
        path = (*top.path, name)
        if path in self.tree.keys:
            top.skip = True
            return self.problem(mark, path, f"written twice; the first is on line {self.tree.keys[path].line}")
        self.tree.keys[path] = mark
        return True

    def _place(self, value: Any, mark: Mark) -> bool:  # noqa: ANN401 - values of a document
        path = self._path()
        if not self.stack:
            self.tree.value, self.tree.marks[()] = value, mark
            return True
        top = self.stack[-1]
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is not None:
            if not top.skip:
                top.value[top.key] = value
            skipped, top.key, top.skip = top.skip, None, False
            if skipped:
                return True
        self.tree.marks[path] = mark
        if value is None and not self.reading.empty_values:
            return self.problem(self.tree.keys.get(path, mark), path, "is empty: write a value, or leave the field out")
        return True

    def _open(self, event: Any) -> bool:  # noqa: ANN401 - ruamel's events are untyped
        mark, path = _mark(event.start_mark), self._path()
        if self._wants_key():
            self.problem(mark, path, "a field's name is text, not a list or a mapping")
            return False
        if len(self.stack) >= self.reading.max_depth:
            self.problem(mark, path, f"nested deeper than {self.reading.max_depth} levels")
            return False
        value: dict[str, Any] | list[Any] = {} if isinstance(event, MappingStartEvent) else []
        on = self._place(value, mark)
        self.stack.append(_Open(value=value, path=path))
        return on


def closest_mark(tree: Tree, path: Path, *, key: bool = False) -> Mark:
    """The place of the value (or key) at `path`, or of the nearest thing around it."""
    if key and path in tree.keys:
        return tree.keys[path]
    for around in _outward(path):
        if around in tree.marks:
            return tree.marks[around]
    return Mark(line=1, column=1)


def _outward(path: Path) -> Iterator[Path]:
    for length in range(len(path), -1, -1):
        yield path[:length]
