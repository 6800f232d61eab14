"""The table of kinds."""

from __future__ import annotations

import importlib
import inspect

import pytest
from tests.fakes.asgi import context

from belljar.errors import PolicyError
from belljar.network.stand_ins import KINDS, check, make


@pytest.mark.parametrize("kind", ["http", "openapi", "har", "metadata", "openai", "catch_all"])
def test_each_kind_has_the_two_functions(kind: str) -> None:
    """`make(context)` and `check(settings, directory)`, by these names."""
    module = importlib.import_module(KINDS[kind])
    assert list(inspect.signature(module.make).parameters) == ["context"]
    assert list(inspect.signature(module.check).parameters) == ["settings", "directory"]
    assert isinstance(check(kind, {}, None), tuple)


@pytest.mark.parametrize("kind", ["cell", "python", "", "os", "../http"])
def test_an_unknown_kind_is_the_authors_mistake(kind: str) -> None:
    """Nothing that isn't in the table is ever imported."""
    with pytest.raises(PolicyError, match="no stand-in of the kind"):
        make(kind, context())
    with pytest.raises(PolicyError, match="no stand-in of the kind"):
        check(kind, {}, None)
