"""Whose code is interrupted when the gateway's loop stands still. That it is:
`tests/integration/test_gateway_http.py`."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from belljar.network.gateway.main import is_stand_in_code

STAND_IN = "belljar.network.stand_ins.git_store"
GATEWAY = "belljar.network.gateway.reporter"


def frame_within(*modules: str) -> FrameType:
    """A frame of the last of these modules, which the ones before it have called."""

    def innermost() -> FrameType:
        return sys._getframe(1)

    called: Any = innermost
    for module in reversed(modules):
        space: dict[str, Any] = {"__name__": module, "called": called}
        exec("def call(): return called()", space)  # noqa: S102 - a function of a module that is made up
        called = space["call"]
    found: FrameType = called()
    return found


@pytest.mark.parametrize(
    ("modules", "is_one"),
    [
        ((GATEWAY, STAND_IN), True),
        ((GATEWAY, STAND_IN, "jsonschema.validators"), True),
        ((GATEWAY, STAND_IN, GATEWAY), False),
        ((GATEWAY, STAND_IN, GATEWAY, "json"), False),
        ((GATEWAY, "asyncio.events"), False),
        (("asyncio.events",), False),
    ],
)
def test_only_a_stand_ins_code_is_interrupted(modules: tuple[str, ...], *, is_one: bool) -> None:
    """And a library's that it called; never the gateway's own, which a stand-in calls to put
    something on record."""
    assert is_stand_in_code(frame_within(*modules)) is is_one


def test_nothing_is_nobodys() -> None:
    """As between two turns."""
    assert not is_stand_in_code(None)
