"""A range's own pieces, without cells: a port's settings and what its router's look means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from belljar.cell.range import ModelRequests
from belljar.cell.ranges import _after, range_router
from belljar.errors import BelljarError, CellError, ContainmentBreach, HostError
from belljar.isolation.survivors import Destruction
from belljar.network.owner.range import NetworkRange as Network
from belljar.plan.addresses import RangeLayout, lay_out
from belljar.plan.network import NetworkPlan, plan_network
from belljar.policy.guarding import OWN_CELL
from belljar.policy.load import load_policy

POLICY = """\
belljar: 1
risk: low
env: {NODE_EXTRA_CA_CERTS: /mine.pem}
network:
  sink: true
  stand_ins:
    page: {kind: http, names: [page.example], routes: [{path: /, body: x}]}
"""


def network_of(folder: Path) -> NetworkPlan:
    (folder / "policy.yaml").write_text(POLICY)
    network = load_policy(folder / "policy.yaml").policy.network
    if network is None:
        raise ValueError("no network")
    return plan_network(network, folder)


@pytest.fixture
def layout(tmp_path: Path) -> RangeLayout:
    return lay_out(network_of(tmp_path), (OWN_CELL,), random_bytes=bytes(range(64)), avoid=())


@pytest.mark.parametrize(
    ("error", "touched", "word"),
    [
        (None, False, "the plan's"),
        (ContainmentBreach("a rule is missing"), True, "a rule is missing"),
        (CellError("the supervisor does not answer"), None, "does not answer"),
    ],
)
def test_what_a_look_at_the_router_means(
    error: BelljarError | None, touched: bool | None, word: str, layout: RangeLayout, tmp_path: Path
) -> None:
    """Changed rules are a breach."""
    namespaces = {OWN_CELL: 17}
    network = SimpleNamespace(layout=layout, user_namespace=None, id="r-0123456789ab")
    network.check_now = Mock(side_effect=error)
    network.namespace_of = namespaces.__getitem__
    router = range_router(cast("Network", network), network_of(tmp_path), OWN_CELL)
    sight = router.look()
    assert sight.touched is touched
    assert word in sight.what
    assert "network.tcp4" in router.known
    assert "network.metadata" not in router.known
    assert (router.mac, router.namespace()) == (layout.cell(OWN_CELL).mac, 17)


LEFT = Destruction(survivors=("port x",), looked_for=("ports",), duration_ms=1.0)
CLEAN = replace(LEFT, survivors=())
GONE, WAY_OUT = HostError("the gateway is gone"), ContainmentBreach("the rules were changed")


@pytest.mark.anyio
@pytest.mark.promise("6.1")
@pytest.mark.parametrize("raised", [None, ValueError("the caller's own")])
@pytest.mark.parametrize(("error", "destruction"), [(None, LEFT), (GONE, LEFT), (WAY_OUT, CLEAN)])
async def test_a_breach_of_a_network_is_raised_whatever_else_is(
    error: BelljarError | None, destruction: Destruction, raised: Exception | None
) -> None:
    """What its end left, or that its rules were changed; beside an error of the block too."""

    async def destroy() -> None:
        """It has ended."""

    network = SimpleNamespace(id="r-1", error=error, destruction=destruction, destroy=destroy)
    with pytest.raises(ContainmentBreach):
        await _after(cast("Network", network), None, raised, None)


def test_nobody_answers_but_while_there_is_somebody() -> None:
    """Before, a question is refused with what to do."""
    model_requests, told = ModelRequests(), list[bool]()
    with pytest.raises(ValueError, match="belljar run"):
        model_requests("chat", b"?")
    model_requests.handler = lambda kind, body: kind.encode() + body
    model_requests.on_close = lambda: told.append(True)
    assert model_requests("chat", b"?") == b"chat?"
    model_requests.close()
    with pytest.raises(ValueError, match="no model"):
        model_requests("chat", b"?")
    assert told == [True]
