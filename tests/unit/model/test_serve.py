"""The end of a model cell, as far as no cell is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.errors import ContainmentBreach, HostError
from belljar.model import serve
from belljar.policy.load import policy_of

MODEL = {"weights": {"sha256": "ab" * 32}}


@pytest.mark.anyio
@pytest.mark.parametrize("fails", [False, True])
async def test_a_breach_outweighs_weights_that_were_changed(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """Whether the block was left well or not: it is what the caller ends with."""

    async def nothing(*_: object) -> None:
        pass

    async def probed(_cell: object, _run: object, phase: str) -> None:
        if phase == "end":
            raise ContainmentBreach("a way out")

    def verified(*_: object, has_run: bool = False, **__: object) -> Any:  # noqa: ANN401 - fake weights
        if has_run:
            raise HostError("a file was changed")
        return weights

    @asynccontextmanager
    async def opened(*_: object, **__: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(tier="container", connect=nothing, start=nothing, destruction=None)

    weights = SimpleNamespace(served="", name="w")
    patches = {
        "find_weights": lambda *_, **__: weights,
        "verify_weights": verified,
        "open_cell": opened,
        "_probe": probed,
        "_wait_healthy": nothing,
        "HealthWatch": lambda *_: SimpleNamespace(take_baseline=nothing, look=nothing),
        "spawn_task": lambda _: None,
    }
    for name, double in patches.items():
        monkeypatch.setattr(serve, name, double)
    policy = policy_of({"belljar": 1, "risk": "low", "model": MODEL})
    run: Any = SimpleNamespace(recorder=SimpleNamespace(record=None))

    async def use() -> None:
        async with serve.open_model(policy, run=run):
            if fails:
                raise ValueError("the block failed")

    with pytest.raises(ContainmentBreach):
        await use()
