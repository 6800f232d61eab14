"""The table of kinds."""

from __future__ import annotations

import pytest
from tests.fakes.asgi import context

from belljar.errors import PolicyError
from belljar.network.stand_ins import check, make


@pytest.mark.parametrize("kind", ["cell", "python", "", "os", "../http"])
def test_an_unknown_kind_is_the_authors_mistake(kind: str) -> None:
    """Nothing that isn't in the table is ever imported."""
    with pytest.raises(PolicyError, match="no stand-in of the kind"):
        make(kind, context())
    with pytest.raises(PolicyError, match="no stand-in of the kind"):
        check(kind, {}, None)
