"""The project's YAML reader: plain values, each with its place. Pure.

Scalars are YAML 1.2's with Docker's numbers. An alias counts as everything it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn, TypeAlias

from ruamel.yaml import YAML, events
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import NodeEvent, ScalarEvent

from belljar.dataclass import dataclass, field
from belljar.units import SURROGATE, format_size, printable, quoted

MAX_BYTES: Final = 64 * 1024  # the largest example has 2 KiB; files and images are named
MAX_DEPTH: Final = 12  # bounds the recursion of the reader, too
MAX_COMPOSE_DEPTH: Final = 64  # none of inspect_evals is nested deeper than ten levels
# Values and names, and characters of all texts, with everything that aliases stand for.
MAX_NODES: Final = 20_000
MAX_CHARACTERS: Final = 1 << 20

Path: TypeAlias = tuple["str | int", ...]

_BASED: Final = re.compile(
    r"0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO][0-7]+|0[0-7]*|[1-9][0-9]*", re.ASCII
)
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_LEADING_ZERO: Final = re.compile(r"0[0-9_]+", re.ASCII)
_INTEGERS: Final = range(-(1 << 63), 1 << 64)  # Go's; what is larger is a float for it
# Only these spellings: 1.1's `yes`, `no`, `on` and `off` are text.
_SPECIAL: Final = {"": None, "~": None} | {
    spelling: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for spelling in (word, word.capitalize(), word.upper())
}
_MAX_DIGITS: Final = 64  # int() of many digits takes long: longer ones stay text


def number(written: str) -> int | float | None:
    """Read it as Docker does (Go's yaml.v3): `0755` is octal."""
    plain = written.replace("_", "")
    digits = plain[1:] if plain[:1] in ("+", "-") else plain
    if not written.startswith("_") and _BASED.fullmatch(digits):
        # Python reads `0o17` by its prefix, and refuses `017` without a base.
        is_octal = digits[0] == "0" and digits[1:].isdecimal()
        found = int(digits, 8 if is_octal else 0) * (-1 if plain[0] == "-" else 1)
        if found in _INTEGERS:
            return found
    return float(plain) if not written.startswith("_") and _FLOAT.fullmatch(plain) else None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Mark:
    """Both count from 1, columns in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    mark: Mark
    field: str
    message: str

    def line(self, source: str) -> str:
        place = f"{printable(source)}:{self.mark.line}:{self.mark.column}"
        return ": ".join(part for part in (place, self.field, self.message) if part)


@dataclass(slots=True, kw_only=True)
class YamlTree:
    """A document with places by path."""

    value: Any = None
    marks: dict[Path, Mark] = field(default_factory=dict)
    keys: dict[Path, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def field_name(path: Path) -> str:
    """Write a path as `files[0].source`, escaped."""
    shown = (
        f"[{part}]" if isinstance(part, int) else f".{printable(part, max_chars=60)}"
        for part in path
    )
    return "".join(shown).removeprefix(".")


def read_tree(data: bytes | str, *, is_compose: bool = False) -> YamlTree:
    """`is_compose` allows anchors, merge keys, empty values."""
    tree = YamlTree()
    try:
        if len(data) > MAX_BYTES and not isinstance(data, str):
            raise ValueError(f"too large: at most {format_size(MAX_BYTES)} are read")
        # Some editors begin a file with a byte order mark.
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        parsed = iter(YAML(typ="safe", pure=True).parse(text))
        _Reader(tree, parsed, is_compose=is_compose).read()
    except _FaultError as fault:
        tree.problems.append(fault.problem)
    # `%YAML 1.3` asserts; ruamel gives `chr` whatever number an escape names, as `\UFFFFFFFF`.
    except (YAMLError, ValueError, OverflowError, AssertionError) as exc:
        mark = getattr(exc, "problem_mark", None)
        what = getattr(exc, "problem", None) or str(exc)
        at = _mark(mark) if mark else Mark(line=1, column=1)
        message = f"not YAML: {printable(what, max_chars=200)}"
        if isinstance(exc, UnicodeDecodeError):
            at = Mark(line=exc.object[: exc.start].count(b"\n") + 1, column=1)
            message = "not UTF-8: save the file as UTF-8"
        tree.problems.append(Problem(mark=at, field="", message=message))
    return tree


def _mark(mark: Any) -> Mark:  # noqa: ANN401 - ruamel's marks are untyped
    return Mark(line=mark.line + 1, column=mark.column + 1)


def scalar(text: str, *, plain: bool) -> object:
    if not plain:
        return text
    if text in _SPECIAL:
        return _SPECIAL[text]
    found = number(text) if len(text) <= _MAX_DIGITS else None
    return text if found is None else found


_Event: TypeAlias = Any  # ruamel's events are untyped


@dataclass(frozen=True, slots=True)
class _Node:
    """A value, and its size with aliases resolved."""

    value: Any
    nodes: int
    characters: int
    text: str | None = None


class _FaultError(Exception):
    """The text isn't read further."""

    def __init__(self, mark: Mark, path: Path, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(mark=mark, field=field_name(path), message=message)


class _Reader:
    """No anchor can contain itself: its value is complete first."""

    def __init__(self, tree: YamlTree, parsed: Iterator[_Event], *, is_compose: bool) -> None:
        self.tree = tree
        self.parsed = parsed
        self.max_depth = MAX_COMPOSE_DEPTH if is_compose else MAX_DEPTH
        self.is_compose = is_compose
        self.anchors: dict[str, _Node] = {}
        self.nodes = self.characters = 0

    def read(self) -> None:
        documents = 0
        for event in self.parsed:
            if isinstance(event, events.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, (), "a second document; write one, without `---`")
                if event.version or event.tags:
                    self._refuse(event, (), "directives (`%`) are not read")
            elif isinstance(event, NodeEvent):
                self.tree.value = self._value(event, ())

    def _refuse(self, event: _Event, path: Path, message: str) -> NoReturn:
        raise _FaultError(_mark(event.start_mark), path, message)

    def _value(self, event: _Event, path: Path) -> Any:  # noqa: ANN401 - values of a document
        value = self._node(event, path).value
        self.tree.marks[path] = mark = _mark(event.start_mark)
        if value is None and path and not self.is_compose:
            why = "is empty: write a value, or leave the field out"
            raise _FaultError(self.tree.keys.get(path, mark), path, why)
        return value

    def _node(self, event: _Event, path: Path) -> _Node:
        if event.anchor is not None and not self.is_compose:
            what = f"anchors and aliases are not read: remove {quoted(event.anchor)}"
            self._refuse(event, path, what)
        if isinstance(event, events.AliasEvent):
            found = self.anchors.get(event.anchor)
            if found is None:
                written = quoted("*" + event.anchor)
                self._refuse(event, path, f"{written} refers to no value that is complete before")
            self._count(event, found.nodes, found.characters)
            return found
        if event.tag is not None:
            self._refuse(event, path, f"tags are not read: remove {quoted(str(event.tag))}")
        nodes, characters = self.nodes, self.characters
        text: str | None = None
        value: Any
        if isinstance(event, ScalarEvent):
            text = event.value
            if SURROGATE.search(text):
                self._refuse(event, path, "half a character, as `\\ud800` writes it, is no text")
            self._count(event, 1, len(text))
            # `0100` is 64 for some readers of YAML, 100 for others: it stays as it is written.
            is_number = self.is_compose or not _LEADING_ZERO.fullmatch(text)
            value = scalar(text, plain=_is_plain(event) and is_number)
        else:
            if len(path) >= self.max_depth:  # each level that is open has one part in the path
                self._refuse(event, path, f"nested deeper than {self.max_depth} levels")
            self._count(event, 1, 0)
            if isinstance(event, events.MappingStartEvent):
                value = self._mapping(path)
            else:
                value = []
                while not isinstance(item := next(self.parsed), events.SequenceEndEvent):
                    value.append(self._value(item, (*path, len(value))))
        node = _Node(value, self.nodes - nodes, self.characters - characters, text)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _count(self, event: _Event, nodes: int, characters: int) -> None:
        self.nodes += nodes
        self.characters += characters
        if self.nodes > MAX_NODES or self.characters > MAX_CHARACTERS:
            why = f"more than {MAX_NODES:,} values or {MAX_CHARACTERS:,} characters with aliases"
            self._refuse(event, (), why)

    def _mapping(self, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: list[dict[str, Any]] = []
        while not isinstance(event := next(self.parsed), events.MappingEndEvent):
            name = self._node(event, path).text if isinstance(event, ScalarEvent) else None
            if name is None:
                self._refuse(event, path, "a field's name is text, not a list, mapping or alias")
            below, following, plain = (*path, name), next(self.parsed), _is_plain(event)
            if plain and name == "<<":
                if not self.is_compose:
                    self._refuse(event, path, "merge keys (`<<`) are not read: write the fields")
                value = self._node(following, below).value
                merged += value if isinstance(value, list) else [value]
                if not all(isinstance(source, dict) for source in merged):
                    why = "a merge key (`<<`) names a mapping, or a list of them"
                    self._refuse(following, (), why)
                continue
            if not self.is_compose and not isinstance(scalar(name, plain=plain), str):
                self._refuse(event, path, f"{quoted(name)} is no name: put it in quotes")
            if below in self.tree.keys:
                first = self.tree.keys[below].line
                self._refuse(event, below, f"written twice; the first is on line {first}")
            self.tree.keys[below] = _mark(event.start_mark)
            own[name] = self._value(following, below)
        whole: dict[str, Any] = {}
        for source in (*reversed(merged), own):  # own fields win, then the first
            whole.update(source)
        return whole


def _is_plain(event: _Event) -> bool:
    return isinstance(event, ScalarEvent) and event.style is None


def closest_mark(tree: YamlTree, path: Path, *, key: bool = False) -> Mark:
    """Return the nearest known place around `path`."""
    if key and path in tree.keys:
        return tree.keys[path]
    for length in range(len(path), -1, -1):
        if path[:length] in tree.marks:
            return tree.marks[path[:length]]
    return Mark(line=1, column=1)
