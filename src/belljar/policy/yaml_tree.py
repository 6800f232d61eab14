"""The YAML reader of the project: plain values, each with its place. Pure.

The parser is ruamel.yaml's; values follow YAML 1.2's core schema. A policy must read the same
everywhere, so it has no anchors, tags, merge keys, duplicate keys or further documents. Compose
files have (`Reading.aliases`); there an alias counts as everything it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, NoReturn, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
)
from ruamel.yaml.reader import ReaderError

from belljar.dataclass import dataclass, field
from belljar.units import format_size, printable, quoted

# The largest example has 2 KiB; files and images are named, not written in.
MAX_BYTES: Final = 64 * 1024
# Bounds the recursion of the reader, too.
MAX_DEPTH: Final = 12
# More is one mistake many times over, or no policy at all.
_MAX_PROBLEMS: Final = 20

Path: TypeAlias = tuple["str | int", ...]

# YAML 1.2's core schema; 1.1's `012` and `1_000` are no numbers.
_INT: Final = re.compile(r"[-+]?[0-9]+", re.ASCII)
# `0o17` is octal in YAML 1.2; 1.1's `017` is the number 17 here.
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
# Only these spellings: 1.1's `yes`, `no`, `on` and `off` are text.
_SPECIAL: Final = {"": None, "~": None} | {
    spelling: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for spelling in (word, word.capitalize(), word.upper())
}
# The one tag that compose files need: text that would read as a number.
_TEXT_TAG: Final = "tag:yaml.org,2002:str"
# No field takes one, and JSON can't say it.
_NOT_A_NUMBER: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", re.ASCII)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
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


# The strictest reading there is.
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
    try:
        with suppress(_EnoughError):
            _Reader(tree, reading, iter(YAML(typ="safe", pure=True).parse(text))).read()
    except MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        what = printable(exc.problem or exc.context or "can't be read", max_chars=200)
        if (
            mark is not None
            and mark.buffer
            and mark.buffer[mark.pointer : mark.pointer + 1] == "\t"
        ):
            what = "a tab can't indent; use spaces"
        at = _mark(mark) if mark else Mark(line=1, column=1)
        tree.problems.append(Problem(mark=at, field="", message=f"not YAML: {what}"))
    except ReaderError as exc:
        before = text[: exc.position]
        at = Mark(line=before.count("\n") + 1, column=len(before) - before.rfind("\n"))
        character = chr(exc.character) if isinstance(exc.character, int) else str(exc.character)
        why = f"the character {quoted(character)} can't be in YAML"
        tree.problems.append(Problem(mark=at, field="", message=why))
    except (YAMLError, ValueError, OverflowError, AssertionError) as exc:  # `%YAML 1.3` asserts
        # ruamel gives `chr` whatever number an escape names, as in `\UFFFFFFFF`.
        why = f"not YAML: {printable(str(exc), max_chars=200)}"
        tree.problems.append(Problem(mark=Mark(line=1, column=1), field="", message=why))
    return tree


def _decode(data: bytes, tree: YamlTree, reading: Reading) -> str | None:
    if len(data) > reading.max_bytes:
        most = format_size(reading.max_bytes)
        why = f"too large: {reading.what} can have at most {most}"
        mark = Mark(line=1, column=1)
        tree.problems.append(Problem(mark=mark, field="", message=why, is_of_the_file=True))
        return None
    try:
        # Some editors begin a file with a byte order mark.
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


# ruamel's events are untyped.
_Event: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class _Node:
    """A value, and its size with everything that aliases in it stand for. `text`: a scalar's."""

    value: Any
    nodes: int
    characters: int
    text: str | None = None


class _EnoughError(Exception):
    """The rest of the text isn't read."""


class _Reader:
    """Reads a parser's events into a tree, each node by one call.

    An anchor is known once its value is complete, so none can contain itself.
    """

    def __init__(self, tree: YamlTree, reading: Reading, events: Iterator[_Event]) -> None:
        self.tree = tree
        self.reading = reading
        self.events = events
        self.anchors: dict[str, _Node] = {}
        self.nodes = self.characters = 0

    def read(self) -> None:
        """Read the one document. Raises `_EnoughError`."""
        documents = 0
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                self._check_document(event, documents)
            elif isinstance(event, NodeEvent):
                self.tree.value = self._value(event, ())

    def _problem(self, mark: Mark, path: Path, message: str) -> None:
        """Note it and go on, unless there are too many."""
        self.tree.problems.append(Problem(mark=mark, field=field_name(path), message=message))
        if len(self.tree.problems) >= _MAX_PROBLEMS:
            raise _EnoughError

    def _refuse(self, mark: Mark, path: Path, message: str) -> NoReturn:
        """Note what makes the rest unreadable."""
        self._problem(mark, path, message)
        raise _EnoughError

    def _check_document(self, event: _Event, documents: int) -> None:
        what = self.reading.what
        if documents > 1:
            why = f"a second document; {what} is one document, without `---` in between"
            self._refuse(_mark(event.start_mark), (), why)
        if not self.reading.aliases and (event.version not in (None, (1, 2)) or event.tags):
            why = (
                f"directives other than `%YAML 1.2` are not allowed: {what} must read the same "
                f"everywhere"
            )
            self._refuse(Mark(line=1, column=1), (), why)

    def _value(self, event: _Event, path: Path) -> Any:  # noqa: ANN401 - values of a document
        """Return the value that begins with `event`, and note its place."""
        value, mark = self._node(event, path).value, _mark(event.start_mark)
        self.tree.marks[path] = mark
        if value is None and path and not self.reading.empty_values:
            why = "is empty: write a value, or leave the field out"
            self._problem(self.tree.keys.get(path, mark), path, why)
        return value

    def _node(self, event: _Event, path: Path) -> _Node:
        mark = _mark(event.start_mark)
        if isinstance(event, AliasEvent):
            return self._named(event, mark, path)
        self._check_properties(event, mark, path)
        nodes, characters = self.nodes, self.characters
        text: str | None = None
        value: Any
        if isinstance(event, ScalarEvent):
            text = event.value
            if _SURROGATE.search(text):
                self._refuse(mark, path, "half a character, as `\\ud800` writes it, is no text")
            self._count(mark, 1, len(text))
            value = scalar(text, plain=_is_plain(event), number=self.reading.number)
        else:
            # Each level that is open has one part in the path
            if len(path) >= self.reading.max_depth:
                self._refuse(mark, path, f"nested deeper than {self.reading.max_depth} levels")
            self._count(mark, 1, 0)
            is_mapping = isinstance(event, MappingStartEvent)
            value = self._mapping(path) if is_mapping else self._list(path)
        node = _Node(value, self.nodes - nodes, self.characters - characters, text)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _named(self, event: _Event, mark: Mark, path: Path) -> _Node:
        """Return what an alias stands for."""
        written, found = quoted("*" + event.anchor), self.anchors.get(event.anchor)
        if not self.reading.aliases:
            why = f"aliases are not allowed: write the value again instead of {written}"
            self._refuse(mark, path, why)
        if found is None:
            self._refuse(mark, path, f"{written} refers to no value that is complete before it")
        self._count(mark, found.nodes, found.characters)
        return found

    def _check_properties(self, event: _Event, mark: Mark, path: Path) -> None:
        """Note an anchor or a tag that can't be read."""
        aliases = self.reading.aliases
        if event.anchor is not None and not aliases:
            why = f"anchors are not allowed: remove {quoted('&' + event.anchor)}"
            self._problem(mark, path, why)
        tag = None if event.tag is None else str(event.tag)
        is_text = isinstance(event, ScalarEvent) and tag in ("!", _TEXT_TAG)
        if tag is not None and not (aliases and is_text):
            self._problem(mark, path, f"tags are not allowed: remove {quoted(tag)}")

    def _count(self, mark: Mark, nodes: int, characters: int) -> None:
        self.nodes += nodes
        self.characters += characters
        for count, most, what in (
            (self.nodes, self.reading.max_nodes, "values"),
            (self.characters, self.reading.max_characters, "characters"),
        ):
            if most is not None and count > most:
                why = f"more than {most:,} {what}, those of aliases and merge keys included"
                self._refuse(mark, (), why)

    def _list(self, path: Path) -> list[Any]:
        value: list[Any] = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            value.append(self._value(event, (*path, len(value))))
        return value

    def _mapping(self, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: list[dict[str, Any]] = []
        while not isinstance(event := next(self.events), MappingEndEvent):
            name = self._name(event, path)
            below, following = (*path, name), next(self.events)
            if self.reading.aliases and name == "<<" and _is_plain(event):
                merged += self._merged(following, below)
            elif self._accepts(name, event, path):
                own[name] = self._value(following, below)
            else:
                # Read all the same: the events of a refused field's value must be used up.
                self._node(following, below)
        whole: dict[str, Any] = {}
        for source in (*reversed(merged), own):  # own fields win, then the first
            whole.update(source)
        return whole

    def _name(self, event: _Event, path: Path) -> str:
        text = None
        if isinstance(event, ScalarEvent | AliasEvent):
            text = self._node(event, path).text
        if text is None:
            why = "a field's name is text, not a list or a mapping"
            self._refuse(_mark(event.start_mark), path, why)
        return text

    def _accepts(self, name: str, event: _Event, path: Path) -> bool:
        """Return whether a mapping takes this name, and note its place or what is wrong."""
        mark, below, plain = _mark(event.start_mark), (*path, name), _is_plain(event)
        if plain and name == "<<":
            self._problem(mark, path, "merge keys (`<<`) are not allowed: write the fields out")
        elif not self.reading.plain_names and not isinstance(scalar(name, plain=plain), str):
            why = f"{quoted(name)} is not text; if it is meant as a field's name, put it in quotes"
            self._problem(mark, path, why)
        elif below in self.tree.keys:
            why = f"written twice; the first is on line {self.tree.keys[below].line}"
            self._problem(mark, below, why)
        else:
            self.tree.keys[below] = mark
            return True
        return False

    def _merged(self, event: _Event, path: Path) -> list[dict[str, Any]]:
        """Return what a merge key names."""
        value = self._node(event, path).value
        sources = value if isinstance(value, list) else [value]
        if not all(isinstance(source, dict) for source in sources):
            why = "a merge key (`<<`) names a mapping, or a list of them"
            self._refuse(_mark(event.start_mark), (), why)
        return sources


def _is_plain(event: _Event) -> bool:
    return isinstance(event, ScalarEvent) and event.style is None and event.tag is None


def closest_mark(tree: YamlTree, path: Path, *, key: bool = False) -> Mark:
    """The place of `path`, or of the nearest thing around it."""
    if key and path in tree.keys:
        return tree.keys[path]
    for length in range(len(path), -1, -1):
        if path[:length] in tree.marks:
            return tree.marks[path[:length]]
    return Mark(line=1, column=1)
