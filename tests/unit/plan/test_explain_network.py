"""A range's network in words."""

from __future__ import annotations

from belljar.plan.explain_network import reach, warnings
from belljar.plan.model import REAL
from belljar.plan.network import NetworkPlan, PortPlan, StandInPlan, UpstreamPlan

HTTP = (PortPlan(number=80, protocol="http"), PortPlan(number=443, protocol="tls"))
SHOP = StandInPlan(id="shop", kind="http", names=("shop.example", "*.shop.example"), ports=HTTP)
CLOUD = StandInPlan(id="cloud", kind="metadata", names=(), ports=HTTP[:1])
UPSTREAM = UpstreamPlan(
    host="real.example",
    ports=(443,),
    methods=("GET", "HEAD"),
    budget_bytes=10 << 20,
    run_budget_bytes=100 << 20,
    reason="a\x1b[2J b",
)


def test_what_is_real_is_said_as_real() -> None:
    """Host, ports, methods, budget and reason, escaped; a note says that it leaves this host;
    nothing else claims that none does."""
    network = NetworkPlan(upstreams=(UPSTREAM,))
    (real,) = [sentence for sentence in reach(network) if sentence.startswith(REAL)]
    assert (
        real
        == "REAL network: real.example on 443, by GET, HEAD, dialled by this host for the gateway;"
        " in both directions at most 10 MiB for each sample and 100 MiB for all samples of a"
        " run. Why: a\\x1b[2J b"
    )
    assert any("leaves this host" in sentence for sentence in warnings(network))
    assert "but this host dials" in next(reach(network))
    assert "dials" not in " ".join(reach(NetworkPlan()))
    assert not any(
        "without" in sentence for sentence in reach(network) if "gateway, which answers" in sentence
    )
