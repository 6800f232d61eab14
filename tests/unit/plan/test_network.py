"""From a policy's network to its plan."""

from __future__ import annotations

import pytest

from belljar.plan.addresses import lay_out
from belljar.plan.network import plan_network
from belljar.policy.model import Policy
from belljar.policy.network import Network


def test_a_cell_without_a_network_is_no_part_of_it() -> None:
    """It is made and awaited as others, in the policy's order; it has no address, name or rule."""
    sealed = {"kind": "cell", "names": ["a"], "ports": ["all"], "networks": []}
    web = {"kind": "cell", "names": ["b"], "ports": [80]}
    own = {"names": ["me"], "ports": ["all"], "networks": []}
    written = {"stand_ins": {"a": sealed, "b": web}, "own_cell": own}
    found = plan_network(Network.model_validate(written, strict=False), None)
    assert [item.id for item in found.targets] == ["a", "b"]
    assert [item.id for item in found.attached().stand_ins] == ["b"]
    layout = lay_out(found.attached(), (), random_bytes=bytes(32), avoid=())
    assert [port.name for port in layout.cells] == ["b"]
    assert not found.has_own_cell
    alone = Network.model_validate({"stand_ins": {"a": sealed}, "own_cell": own}, strict=False)
    assert not alone.has_cells
    decoy = {"id": "db", "kind": "redis", "place": "db.example"}
    fields = {"belljar": 1, "name": "x", "risk": "low", "network": alone, "decoys": [decoy]}
    with pytest.raises(ValueError, match="needs a network"):
        Policy.model_validate(fields, strict=False)
