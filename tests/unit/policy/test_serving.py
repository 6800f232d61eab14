"""The block `model:` of a policy."""

from __future__ import annotations

from typing import Any

import pytest

from belljar.errors import PolicyError
from belljar.policy.load import policy_of
from belljar.policy.sections import ModelBlock

DIGEST = "ab" * 32


def model_of(risk: str = "low", **fields: object) -> ModelBlock:
    """The block of a policy with these fields."""
    model = {"weights": {"sha256": DIGEST}, **fields}
    block = policy_of({"belljar": 1, "risk": risk, "model": model}).policy.model
    assert block is not None
    return block


def test_what_makes_no_server_is_refused() -> None:
    """With the field's name."""
    wrong: dict[str, list[Any]] = {
        "weights": [{"sha256": "ab"}, {}],
        "server": ["tgi", [], ["a\0b"]],
        "port": [0],
        "parallel": [0],
        "record": ["all"],
        "gpu": [{"devices": devices} for devices in ([], ["/dev/kmsg"], ["/dev/nvidia0/../mem"])],
    }
    for field, values in wrong.items():
        for value in values:
            with pytest.raises(PolicyError, match=field):
                model_of(**{field: value})


@pytest.mark.promise("2.8")
def test_a_model_cell_has_no_network() -> None:
    """Not even stand-ins."""
    network = {"stand_ins": {"www": {"kind": "http", "names": ["a.test"], "routes": []}}}
    fields = {"belljar": 1, "risk": "low", "model": {"weights": {"sha256": DIGEST}}}
    with pytest.raises(PolicyError, match="model"):
        policy_of({**fields, "network": network})


def test_a_gpu_needs_a_reason_from_risk_high_on() -> None:
    """What it would open is said."""
    gpu = {"devices": ["/dev/nvidia0"]}
    assert model_of("medium", gpu=gpu).gpu is not None
    assert model_of("high", gpu={**gpu, "reason": "measured"}).gpu is not None
    with pytest.raises(PolicyError, match="driver"):
        model_of("high", gpu=gpu)
