"""Bounds the YAML that Inspect reads in a tool call's arguments; importing it puts it in place.

A model, or its server, chooses these: Inspect takes what doesn't begin with `{` for YAML, in which
400 bytes of aliases are gigabytes once they are written out. What is too much stays a text, as what
is no YAML does.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Final

from inspect_ai.model import _call_tools

MAX_CHARS: Final = 16 << 10  # a second to read


_calls: Final[Any] = _call_tools
_yaml: Final = _calls.yaml  # PyYAML: a dependency of Inspect


def _safe_load(text: str) -> Any:  # noqa: ANN401 - as PyYAML's
    """Raises `YAMLError`, for which Inspect takes the text itself; `RecursionError`."""
    if len(text) > MAX_CHARS:
        raise _yaml.YAMLError("too long")
    loader = _yaml.SafeLoader(text)
    compose = loader.compose_node

    def compose_node(parent: object, index: object) -> Any:  # noqa: ANN401 - as PyYAML's
        if loader.check_event(_yaml.AliasEvent):
            raise _yaml.YAMLError("an alias")
        return compose(parent, index)

    loader.compose_node = compose_node
    try:
        value = loader.get_single_data()
        json.dumps(value, default=str, skipkeys=True)  # a number may be too long to be written
    except (ValueError, OverflowError, TypeError) as error:  # of dates, numbers, keys
        raise _yaml.YAMLError("no value") from error
    return value


_calls.yaml = SimpleNamespace(safe_load=_safe_load, error=_yaml.error)
