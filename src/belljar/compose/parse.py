"""A compose file's text → plain values.

Pure. The parser is ruamel.yaml's; what the text means is YAML 1.2's core schema
(`policy.yaml_tree.scalar`).

Anchors, aliases and merge keys are read, because compose files use them. Each is counted as what it
stands for, before that is put in: a short text that means a long one is refused at the line where
it becomes too long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

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

from belljar.compose.interpolate import MAX_CHARACTERS, MAX_DEPTH, MAX_NODES
from belljar.policy.fields import quoted
from belljar.policy.yaml_tree import scalar
from belljar.units import printable

_TEXT: Final = "tag:yaml.org,2002:str"
_MERGE: Final = "<<"


class NotReadError(ValueError):
    """Why a text is not read; `line` counts from 1, 0: of no line."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


def read_yaml(text: str, *, step: Callable[[], None] = lambda: None) -> Any:  # noqa: ANN401 - YAML
    """The value of the one document in a text; None where there is none.

    `step` is called for each of the parser's events, and for each name that a merge puts in.

    A value that an alias names is the same object wherever it stands: `MAX_NODES` and
    `MAX_CHARACTERS` hold for whoever walks all of it.

    Raises:
        NotReadError: no YAML, more than one document, a tag but `!!str`, a name twice, or more than
            `MAX_NODES`, `MAX_CHARACTERS` or `MAX_DEPTH`.
    """
    reading = _Reading(step)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            step()
            reading.take(event)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = printable(error.problem or error.context or "can't be read", max_chars=200)
        raise NotReadError(f"it is no YAML: {what}", mark.line + 1 if mark else 0) from error
    except (YAMLError, OverflowError) as error:
        raise NotReadError(f"it is no YAML: {printable(str(error), max_chars=200)}") from error
    return reading.value


@dataclass(slots=True)
class _Open:
    """A mapping or list that is being filled.

    `nodes` and `characters`: how much had been read before it. `merged`: what merge keys name, in
    their order.
    """

    value: Any
    anchor: str | None
    nodes: int
    characters: int
    key: str | None = None
    is_merge: bool = False
    merged: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Anchored:
    """What an alias stands for, and how much that is.

    `name`: it as the name of a field, None where it can't be one.
    """

    value: Any
    nodes: int
    characters: int
    name: str | None = None


@dataclass(slots=True)
class _Reading:
    """One pass. An anchor is known once its value is whole, so that none can stand for itself."""

    step: Callable[[], None]
    value: Any = None
    nodes: int = 0
    characters: int = 0
    documents: int = 0
    line: int = 0
    stack: list[_Open] = field(default_factory=list)
    anchors: dict[str, _Anchored] = field(default_factory=dict)

    def take(self, event: Any) -> None:  # noqa: ANN401 - ruamel's events are untyped
        """One event in."""
        self.line = event.start_mark.line + 1 if event.start_mark else 0
        match event:
            case DocumentStartEvent():
                self._document()
            case AliasEvent():
                self._alias(event.anchor)
            case ScalarEvent():
                self._scalar(event)
            case MappingStartEvent() | SequenceStartEvent():
                self._open(event)
            case MappingEndEvent() | SequenceEndEvent():
                self._close()

    def refused(self, message: str) -> NotReadError:
        """An error at the line that is being read."""
        return NotReadError(message, self.line)

    def _document(self) -> None:
        self.documents += 1
        if self.documents > 1:
            raise self.refused("it has a second document")

    def _count(self, nodes: int, characters: int) -> None:
        self.nodes += nodes
        self.characters += characters
        if self.nodes > MAX_NODES:
            raise self.refused(f"more than {MAX_NODES:,} values, with what its aliases and merge keys stand for")
        if self.characters > MAX_CHARACTERS:
            raise self.refused(
                f"more than {MAX_CHARACTERS:,} characters, with what its aliases and merge keys stand for"
            )

    def _alias(self, name: str) -> None:
        found = self.anchors.get(name)
        if found is None:
            raise self.refused(f"{quoted('*' + name)} stands for nothing that ends before it")
        self._count(found.nodes, found.characters)
        self._put(found.value, found.name, plain=False)

    def _scalar(self, event: Any) -> None:  # noqa: ANN401 - ruamel's events are untyped
        tag = None if event.tag is None else str(event.tag)
        if tag not in (None, "!", _TEXT):
            raise self.refused(f"the tag {quoted(str(tag))} is not read")
        plain = event.style is None and tag is None
        value = scalar(event.value, plain=plain)
        self._count(1, len(event.value))
        if event.anchor is not None:
            self.anchors[event.anchor] = _Anchored(value, 1, len(event.value), event.value)
        self._put(value, event.value, plain=plain)

    def _open(self, event: Any) -> None:  # noqa: ANN401 - ruamel's events are untyped
        if event.tag is not None:
            raise self.refused(f"the tag {quoted(str(event.tag))} is not read")
        if len(self.stack) >= MAX_DEPTH:
            raise self.refused(f"nested deeper than {MAX_DEPTH} levels")
        if self._wants_name():
            raise self.refused("a name is text, no list and no mapping")
        value: Any = {} if isinstance(event, MappingStartEvent) else []
        self.stack.append(_Open(value, event.anchor, self.nodes, self.characters))
        self._count(1, 0)

    def _close(self) -> None:
        done = self.stack.pop()
        if isinstance(done.value, dict) and done.merged:
            done.value = self._with_merged(done)
        if done.anchor is not None:
            self.anchors[done.anchor] = _Anchored(
                done.value, self.nodes - done.nodes, self.characters - done.characters
            )
        self._put(done.value, None, plain=False)

    def _with_merged(self, done: _Open) -> dict[str, Any]:
        """The names of what merge keys name, and its own; of a name that several have an own one
        counts, else the first."""
        together: dict[str, Any] = {}
        for source in (*reversed(done.merged), done.value):
            for name in source:
                self.step()
                together[name] = source[name]
        return together

    def _wants_name(self) -> bool:
        return bool(self.stack) and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None

    def _put(self, value: Any, name: str | None, *, plain: bool) -> None:  # noqa: ANN401 - YAML
        """A whole value where it stands: the document's, a list's, the name of a field, or what the
        field has."""
        if not self.stack:
            self.value = value
            return
        top = self.stack[-1]
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is None:
            self._name(top, name, plain=plain)
        else:
            self._field(top, top.key, value)
            top.key, top.is_merge = None, False

    def _name(self, top: _Open, name: str | None, *, plain: bool) -> None:
        if name is None:
            raise self.refused("a name is text, no list and no mapping")
        top.key, top.is_merge = name, plain and name == _MERGE
        if name in top.value and not top.is_merge:
            raise self.refused(f"{quoted(name)} is written twice")

    def _field(self, top: _Open, name: str, value: Any) -> None:  # noqa: ANN401 - YAML
        if not top.is_merge:
            top.value[name] = value
            return
        sources = value if isinstance(value, list) else [value]
        if not all(isinstance(source, dict) for source in sources):
            raise self.refused("a merge key (`<<`) names a mapping, or a list of them")
        top.merged += sources
