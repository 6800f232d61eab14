"""From a policy's network to its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan, PortPlan, StandInPlan, plan_network
from belljar.policy.guarding import DecoyKind, DecoySpec
from belljar.policy.model import Policy
from belljar.policy.network import Network, read_network
from belljar.policy.yaml_tree import read_tree

BASE = Path("/srv/evaluation")
FULL: dict[str, Any] = read_tree("""
default: simulate
sink: true
stand_ins:
  shop: {kind: http, names: [Shop.example, '*.shop.example'], files: shop, ports: [80, 8443/tls],
         routes: [{path: /}]}
  packages: {kind: pypi, names: [packages.example], packages: wheels}
  api: {kind: har, names: [api.example], recording: api/v1/all.har}
  mail: {kind: smtp, names: [mail.example]}
  cloud: {kind: metadata, names: [metadata.google.internal]}
  db: {kind: cell, names: [db], ports: [5432], resources: {memory: 128MiB}}
  app: {kind: python, names: [app], ports: [8000], app: 'main:app', files: app}
upstreams:
  - {host: Real.example, ports: [443], methods: [GET], budget: 10MiB, reason: it is current}
record: {packets: 2MiB}
""").value


def full() -> NetworkPlan:
    """The plan of a network with something of everything."""
    network = read_network(Network.model_validate(FULL))
    assert isinstance(network, Network)
    return plan_network(network, BASE)


def test_a_stand_ins_files_are_below_its_directory() -> None:
    """A file's directory is shown; a directory is no setting; without files there is none."""
    found = {item.id: (item.directory, item.settings) for item in full().stand_ins}
    assert found["shop"] == (BASE / "shop", {"routes": [{"path": "/"}]})
    assert found["packages"] == (BASE / "wheels", {})
    assert found["api"] == (BASE / "api/v1", {"recording": "all.har"})
    assert found["app"][0] == BASE / "app"
    assert "files" not in found["app"][1]
    assert found["mail"] == (None, {})
    assert found["db"][1]["resources"]["memory"] == 128 << 20


def test_a_decoy_service_is_a_stand_in_of_its_id() -> None:
    """With its name and port, and nothing of what it holds; a decoy file is none."""
    service = DecoySpec(id="crm", kind=DecoyKind.HTTP, place="crm.corp.internal:8443")
    file = DecoySpec(id="env", kind=DecoyKind.DOTENV, service="crm")
    (plan,) = plan_network(Network(), None, decoys=[service, file]).stand_ins
    port = PortPlan(number=8443, protocol="tls")
    assert plan == StandInPlan(id="crm", kind="http", names=("crm.corp.internal",), ports=(port,))


def test_a_cell_without_a_network_is_no_part_of_it() -> None:
    """It is made and awaited as others, in the policy's order; it has no address, name or rule.
    Where no cell has a device, there is no network to make, and no service to be reached."""
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
