"""The table of bounds."""

from __future__ import annotations

from dataclasses import asdict, fields

from belljar.network.gateway.config import Bounds
from belljar.plan.network import NetworkBounds


def test_the_plan_s_bounds_are_taken() -> None:
    """What the plan says stands; what it doesn't say is the table's."""
    plan = NetworkBounds(connections=7, header_timeout_s=1.5, body_bytes=99)
    bounds = Bounds.of(plan, farewell_s=3)
    assert (bounds.connections, bounds.head_timeout_s, bounds.body_bytes, bounds.farewell_s) == (
        7,
        1.5,
        99,
        3,
    )
    assert bounds.tls_connections == 7
    assert bounds.websocket_message_bytes == Bounds().websocket_message_bytes


def test_every_bound_is_a_number() -> None:
    """There is no way to say "no bound"."""
    assert all(field.type in ("int", "float") for field in fields(Bounds))
    assert all(value > 0 for value in asdict(Bounds()).values())
