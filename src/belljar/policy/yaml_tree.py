"""The YAML reader of the project: plain values, each with its place. Pure.

The parser is ruamel.yaml's; values follow YAML 1.2's core schema. A policy must read the same
everywhere, so it has no anchors, tags, merge keys, duplicate keys or further documents. Compose
files have (`Reading.aliases`); there an alias counts as everything it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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

from belljar.dataclass import dataclass, field
from belljar.units import format_size, printable, quoted

MAX_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 12
# More is one mistake many times over, or no policy at all.
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
_TEXT_TAG: Final = "tag:yaml.org,2002:str"
_NOT_A_NUMBER: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", re.ASCII)
# int() of many digits takes long: longer ones stay text, which no field takes as a number.
_MAX_DIGITS: Final = 64


def core_number(text: str) -> int | float | None:
    """A plain scalar's number by YAML 1.2's core schema, if it is one."""
    if _INT.fullmatch(text) or _BASED.fullmatch(text):
        return int(text, 0 if text[1:2] in ("o", "x") else 10)
    return float(text) if _FLOAT.fullmatch(text) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How strictly a document is read; the defaults are a policy's.

    Attributes:
        plain_names: a plain `200:` is the name `200`.
        number: reads a plain number.
        aliases: anchors, aliases, merge keys, `!!str` and all directives are read.
        max_nodes: values and names, with everything aliases and merge keys stand for.
        max_characters: of all scalars together, counted likewise.
    """

    what: str = "a policy"
    max_bytes: int = MAX_BYTES
    max_depth: int = MAX_DEPTH
    empty_values: bool = False
    plain_names: bool = False
    aliases: bool = False
    number: Callable[[str], int | float | None] = core_number
    max_nodes: int | None = None
    max_characters: int | None = None


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
    """It says nothing of what the file holds."""

    def line(self, source: str) -> str:
        """`file:line:column: field: message`."""
        place = f"{printable(source)}:{self.mark.line}:{self.mark.column}"
        return ": ".join(part for part in (place, self.field, self.message) if part)


@dataclass(slots=True, kw_only=True)
class YamlTree:
    """What the text holds.

    `marks` has the place of every value and `keys` of every key, by path.
    """

    value: Any = None
    marks: dict[Path, Mark] = field(default_factory=dict)
    keys: dict[Path, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def field_name(path: Path) -> str:
    """A path as a person reads it: `files[0].source`, escaped."""
    shown = (
        f"[{part}]" if isinstance(part, int) else f".{printable(part, max_chars=60)}"
        for part in path
    )
    return "".join(shown).removeprefix(".")


def read_tree(data: bytes | str, reading: Reading = POLICY) -> YamlTree:
    """Return the values of one YAML document and their places.

    Never raises for what `data` holds: see `YamlTree.problems`. A value that an alias names is
    the same object wherever it stands.
    """
    tree = YamlTree()
    text = data if isinstance(data, str) else _decode(data, tree, reading)
    if text is None:
        return tree
    builder = _Builder(tree, reading)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            if not builder.take(event):
                break
    except MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        what = printable(exc.problem or exc.context or "can't be read", max_chars=200)
        if (
            mark is not None
            and mark.buffer
            and mark.buffer[mark.pointer : mark.pointer + 1] == "\t"
        ):
            what = "a tab can't indent; use spaces"
        builder.problem(_mark(mark) if mark else Mark(line=1, column=1), (), f"not YAML: {what}")
    except ReaderError as exc:
        before = text[: exc.position]
        mark_at = Mark(line=before.count("\n") + 1, column=len(before) - before.rfind("\n"))
        character = chr(exc.character) if isinstance(exc.character, int) else str(exc.character)
        builder.problem(mark_at, (), f"the character {quoted(character)} can't be in YAML")
    except (YAMLError, ValueError, OverflowError) as exc:
        why = f"not YAML: {printable(str(exc), max_chars=200)}"
        builder.problem(Mark(line=1, column=1), (), why)
    return tree


def _decode(data: bytes, tree: YamlTree, reading: Reading) -> str | None:
    if len(data) > reading.max_bytes:
        most = format_size(reading.max_bytes)
        why = f"too large: {reading.what} can have at most {most}"
        mark = Mark(line=1, column=1)
        tree.problems.append(Problem(mark=mark, field="", message=why, is_of_the_file=True))
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        before = data[: exc.start]
        last_line = before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")
        mark = Mark(line=before.count(b"\n") + 1, column=len(last_line) + 1)
        why = f"not UTF-8: the byte \\x{data[exc.start]:02x}; save the file as UTF-8"
        tree.problems.append(Problem(mark=mark, field="", message=why))
        return None


def _mark(mark: Any) -> Mark:  # noqa: ANN401 - ruamel's marks are untyped
    return Mark(line=mark.line + 1, column=mark.column + 1)


def scalar(
    text: str, *, plain: bool, number: Callable[[str], int | float | None] = core_number
) -> object:
    """A scalar's value by YAML 1.2's core schema (section 10.3.2), or with other numbers."""
    if not plain:
        return text
    if text in _SPECIAL:
        return _SPECIAL[text]
    if len(text) <= _MAX_DIGITS:
        if (found := number(text)) is not None:
            return found
        if _NOT_A_NUMBER.fullmatch(text):
            return float(text.replace(".", "").lower())
    return text


@dataclass(slots=True)
class _OpenNode:
    """A mapping or list being filled; the counts are its begin's."""

    value: dict[str, Any] | list[Any]
    path: Path
    anchor: str | None
    nodes: int
    characters: int
    key: str | None = None
    skip: bool = False
    is_merge: bool = False
    merges: list[tuple[Any, Mark]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Anchored:
    """A value with a name, and its size. `text`: a scalar's."""

    value: Any
    nodes: int
    characters: int
    text: str | None = None


class _Builder:
    """Takes parser events one by one; `take` says whether to go on.

    An anchor is known once its value is complete, so none can contain itself.
    """

    def __init__(self, tree: YamlTree, reading: Reading) -> None:
        self.tree = tree
        self.reading = reading
        self.stack: list[_OpenNode] = []
        self.anchors: dict[str, _Anchored] = {}
        self.documents = self.nodes = self.characters = 0

    def problem(self, mark: Mark, path: Path, message: str) -> bool:
        """Note it. False when there are too many."""
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
                return self._accepts(event) and self._scalar(event)
            case MappingStartEvent() | SequenceStartEvent():
                return self._accepts(event) and self._open(event)
            case MappingEndEvent() | SequenceEndEvent():
                return self._close()
        return True

    def _document(self, event: Any) -> bool:  # noqa: ANN401 - ruamel's events are untyped
        self.documents += 1
        what = self.reading.what
        if self.documents > 1:
            why = f"a second document; {what} is one document, without `---` in between"
            self.problem(_mark(event.start_mark), (), why)
            return False
        if not self.reading.aliases and (event.version not in (None, (1, 2)) or event.tags):
            why = (
                f"directives other than `%YAML 1.2` are not allowed: {what} must read the same "
                f"everywhere"
            )
            self.problem(Mark(line=1, column=1), (), why)
            return False
        return True

    def _alias(self, event: Any) -> bool:  # noqa: ANN401 - ruamel's events are untyped
        mark, written = _mark(event.start_mark), quoted("*" + event.anchor)
        found = self.anchors.get(event.anchor)
        if not self.reading.aliases or found is None:
            why = f"{written} refers to no value that is complete before it"
            if not self.reading.aliases:
                why = f"aliases are not allowed: write the value again instead of {written}"
            self.problem(mark, self._path(), why)
            return False
        if not self._count(mark, found.nodes, found.characters):
            return False
        if not self._wants_key():
            return self._place(found.value, mark)
        if found.text is None:
            return self._no_name(mark)
        return self._key(found.text, mark, plain=False)

    def _accepts(self, event: Any) -> bool:  # noqa: ANN401 - ruamel's events are untyped
        """Whether the event's anchor and tag can be read."""
        mark, aliases = _mark(event.start_mark), self.reading.aliases
        if event.anchor is not None and not aliases:
            why = f"anchors are not allowed: remove {quoted('&' + event.anchor)}"
            return self.problem(mark, self._path(), why)
        tag = None if event.tag is None else str(event.tag)
        is_text = isinstance(event, ScalarEvent) and tag in ("!", _TEXT_TAG)
        if tag is None or (aliases and is_text):
            return True
        return self.problem(mark, self._path(), f"tags are not allowed: remove {quoted(tag)}")

    def _count(self, mark: Mark, nodes: int, characters: int) -> bool:
        self.nodes += nodes
        self.characters += characters
        for count, most, what in (
            (self.nodes, self.reading.max_nodes, "values"),
            (self.characters, self.reading.max_characters, "characters"),
        ):
            if most is not None and count > most:
                why = f"more than {most:,} {what}, those of aliases and merge keys included"
                self.problem(mark, (), why)
                return False
        return True

    def _path(self) -> Path:
        if not self.stack:
            return ()
        top = self.stack[-1]
        if isinstance(top.value, list):
            return (*top.path, len(top.value))
        return top.path if top.key is None else (*top.path, top.key)

    def _scalar(self, event: Any) -> bool:  # noqa: ANN401 - ruamel's events are untyped
        mark, text = _mark(event.start_mark), event.value
        plain = event.style is None and event.tag is None
        value = scalar(text, plain=plain, number=self.reading.number)
        if not self._count(mark, 1, len(text)):
            return False
        if event.anchor is not None:
            self.anchors[event.anchor] = _Anchored(value, 1, len(text), text)
        if self._wants_key():
            return self._key(text, mark, plain=plain)
        return self._place(value, mark)

    def _wants_key(self) -> bool:
        if not self.stack:
            return False
        return isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None

    def _no_name(self, mark: Mark) -> bool:
        self.problem(mark, self._path(), "a field's name is text, not a list or a mapping")
        return False

    def _key(self, name: str, mark: Mark, *, plain: bool) -> bool:
        top = self.stack[-1]
        top.key, top.skip = name, False
        if plain and name == "<<":
            if self.reading.aliases:
                top.is_merge = True
                return True
            top.skip = True
            why = "merge keys (`<<`) are not allowed: write the fields out"
            return self.problem(mark, top.path, why)
        if not self.reading.plain_names and not isinstance(scalar(name, plain=plain), str):
            top.skip = True
            why = f"{quoted(name)} is not text; if it is meant as a field's name, put it in quotes"
            return self.problem(mark, top.path, why)
        path = (*top.path, name)
        if path in self.tree.keys:
            top.skip = True
            why = f"written twice; the first is on line {self.tree.keys[path].line}"
            return self.problem(mark, path, why)
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
            if top.is_merge:
                top.merges.append((value, mark))
            elif not top.skip:
                top.value[top.key] = value
            left_out = top.skip or top.is_merge
            top.key, top.skip, top.is_merge = None, False, False
            if left_out:
                return True
        self.tree.marks[path] = mark
        if value is None and not self.reading.empty_values:
            why = "is empty: write a value, or leave the field out"
            return self.problem(self.tree.keys.get(path, mark), path, why)
        return True

    def _open(self, event: Any) -> bool:  # noqa: ANN401 - ruamel's events are untyped
        mark, path = _mark(event.start_mark), self._path()
        if self._wants_key():
            return self._no_name(mark)
        if len(self.stack) >= self.reading.max_depth:
            self.problem(mark, path, f"nested deeper than {self.reading.max_depth} levels")
            return False
        value: dict[str, Any] | list[Any] = {} if isinstance(event, MappingStartEvent) else []
        opened = _OpenNode(value, path, event.anchor, self.nodes, self.characters)
        if not self._count(mark, 1, 0):
            return False
        on = self._place(value, mark)
        self.stack.append(opened)
        return on

    def _close(self) -> bool:
        done = self.stack.pop()
        if (
            isinstance(done.value, dict)
            and done.merges
            and not self._merge(done.value, done.merges)
        ):
            return False
        if done.anchor is not None:
            nodes, characters = self.nodes - done.nodes, self.characters - done.characters
            self.anchors[done.anchor] = _Anchored(done.value, nodes, characters)
        return True

    def _merge(self, value: dict[str, Any], merges: list[tuple[Any, Mark]]) -> bool:
        """Insert what merge keys name: own fields win, then the first."""
        sources = []
        for merged, mark in merges:
            listed = merged if isinstance(merged, list) else [merged]
            if not all(isinstance(source, dict) for source in listed):
                self.problem(mark, (), "a merge key (`<<`) names a mapping, or a list of them")
                return False
            sources += listed
        own = dict(value)
        value.clear()
        for source in (*reversed(sources), own):
            value.update(source)
        return True


def closest_mark(tree: YamlTree, path: Path, *, key: bool = False) -> Mark:
    """The place of `path`, or of the nearest thing around it."""
    if key and path in tree.keys:
        return tree.keys[path]
    for length in range(len(path), -1, -1):
        if path[:length] in tree.marks:
            return tree.marks[path[:length]]
    return Mark(line=1, column=1)
