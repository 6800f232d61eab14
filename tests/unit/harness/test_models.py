"""The model cells of an evaluation, as far as no cell is needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.errors import HostError, PolicyError
from belljar.harness.models import ModelCells, check_models
from belljar.policy import Tier


def running_in(tier: Tier) -> Any:  # noqa: ANN401 - stands for a `ModelCell`
    """A model cell of this tier."""
    cell = SimpleNamespace(tier=tier.value)
    return SimpleNamespace(cell=cell, policy=SimpleNamespace(source="model.yaml"))


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
        check_models(f"openai/x,belljar/{file}", tmp_path)
    check_models("openai/x", tmp_path)
    digest = "ab" * 32
    file.write_text(f"belljar: 1\nrisk: low\nmodel: {{weights: {{sha256: {digest}}}}}\n")
    with pytest.raises(HostError, match="not in the store"):
        check_models(f"belljar/{file}", tmp_path)
