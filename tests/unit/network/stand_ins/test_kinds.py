"""The table of kinds."""

from __future__ import annotations

import importlib
import inspect

import pytest
from tests.fakes.asgi import context

from belljar.errors import PolicyError
from belljar.network.stand_ins import KINDS, check, make
from belljar.policy.stand_ins import MODELS


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_functions(kind: str) -> None:
    """`make(context)`; and one that an author names with files, or free text, has `check`."""
    module = importlib.import_module(KINDS[kind])
    assert list(inspect.signature(module.make).parameters) == ["context"]
    has_fields = kind in MODELS and kind not in {"smtp", "openai"}
    assert hasattr(module, "check") is has_fields
    assert has_fields or check(kind, {}, None) == ()


@pytest.mark.parametrize("kind", ["cell", "python", "", "os", "../http"])
def test_an_unknown_kind_is_the_authors_mistake(kind: str) -> None:
    """Nothing that isn't in the table is ever imported."""
    with pytest.raises(PolicyError, match="no stand-in of the kind"):
        make(kind, context())
    with pytest.raises(PolicyError, match="no stand-in of the kind"):
        check(kind, {}, None)
