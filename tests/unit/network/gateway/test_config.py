"""What a gateway is started with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.fakes.gateway import layout

from belljar.dataclass import from_json, json_of
from belljar.network.gateway.config import Bounds, GatewayConfig, as_neighbour, as_stand_in
from belljar.plan.network import PortPlan, StandInPlan, UpstreamPlan


def test_json_both_ways() -> None:
    """A config survives its way to the gateway's process."""
    plan = StandInPlan(
        id="shop",
        kind="http",
        names=("shop.example",),
        ports=(PortPlan(number=80, protocol="http"),),
        directory=Path("/s/shop"),
    )
    config = GatewayConfig(
        layout=layout(),
        stand_ins=(plan,),
        range_seed="ab" * 16,
        bounds=Bounds(connections=3),
        authorities="PEM",
    )
    assert from_json(GatewayConfig, json.loads(json.dumps(json_of(config)))) == config


def test_a_cell_is_known_by_its_networks_alone() -> None:
    """Nothing of its environment, command or files is in the gateway; who names no network is in
    every one there too."""
    settings = {"networks": ["front", "back"], "env": {"FLAG": "secret"}, "command": ["run"]}
    cell = StandInPlan(
        id="db", kind="cell", names=("db",), ports=(), settings=settings, directory=Path("/files")
    )
    assert as_neighbour(cell) == StandInPlan(
        id="db", kind="cell", names=(), ports=(), settings={"networks": ["back", "front"]}
    )
    assert as_neighbour(replace(cell, settings={})).networks == frozenset()


def test_an_upstream_looks_like_a_stand_in() -> None:
    """Its id, its one name, its ports by what is spoken there, and its methods."""
    upstream = UpstreamPlan(
        host="real.example",
        ports=(80, 443, 8443),
        methods=("GET",),
        budget_bytes=7,
        run_budget_bytes=100 << 20,
        reason="why",
    )
    seen = as_stand_in(upstream)
    assert (seen.id, seen.names, seen.is_target) == (upstream.id, ("real.example",), False)
    assert [(port.number, port.protocol) for port in seen.ports] == [
        (80, "http"),
        (443, "tls"),
        (8443, "tls"),
    ]
    assert seen.settings == {"methods": ["GET"]}
