"""The model cells of an evaluation, as far as no cell is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from belljar.errors import CellError, HostError, PolicyError
from belljar.harness import models
from belljar.harness.models import ModelCells
from belljar.harness.options import check_models
from belljar.policy.limits import Tier
from belljar.policy.load import policy_of
from belljar.policy.loaded import LoadedPolicy


def running_in(tier: Tier) -> Any:  # noqa: ANN401 - stands for a `ModelCell`
    """A model cell of this tier."""
    cell = SimpleNamespace(tier=tier.value)
    return SimpleNamespace(cell=cell, policy=SimpleNamespace(source="model.yaml"))


@pytest.mark.promise("2.8")
def test_a_model_cells_tier_is_never_lower_than_a_samples() -> None:
    """Known before it starts, it is raised; afterwards such a sample is refused."""
    models = ModelCells()
    models.need(Tier.GVISOR)
    models.need(Tier.CONTAINER)
    assert models.tier is Tier.GVISOR
    models.opened["model.yaml"] = running_in(Tier.GVISOR)
    models.need(Tier.GVISOR)
    with pytest.raises(PolicyError, match="less than"):
        models.need(Tier.MICROVM)


def test_a_model_without_weights_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """As is a policy that is not a model's."""
    file = tmp_path / "model.yaml"
    file.write_text("belljar: 1\nrisk: low\n")
    with pytest.raises(PolicyError, match="model cell"):
        check_models(["openai/x", f"belljar/{file}"], tmp_path)
    assert check_models(["openai/x"], tmp_path) == []
    digest = "ab" * 32
    file.write_text(f"belljar: 1\nrisk: low\nmodel: {{weights: {{sha256: {digest}}}}}\n")
    with pytest.raises(HostError, match="not in the store"):
        check_models([f"belljar/{file}"], tmp_path)


@pytest.mark.anyio
async def test_each_error_of_an_end_is_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two model cells that leave something, both are named, and both were ended."""
    ended = []

    @asynccontextmanager
    async def opened(policy: LoadedPolicy, **_: object) -> AsyncIterator[Any]:
        yield running_in(Tier.CONTAINER)
        ended.append(policy.source)
        raise CellError(f"{policy.source} left something")

    monkeypatch.setattr(models, "open_model", opened)
    cells = ModelCells()
    for name in ("one", "two"):
        policy = replace(policy_of({"belljar": 1, "risk": "low"}), source=name)
        await cells.get(policy, cast("Any", None), None)
    assert [error.what for error in await cells.close()] == [
        "two left something",
        "one left something",
    ]
    assert ended == ["two", "one"]
    assert await cells.close() == []
