"""The table of bounds."""

from __future__ import annotations

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
