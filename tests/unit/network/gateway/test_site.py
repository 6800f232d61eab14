"""What connections of a gateway share."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from tests.fakes.gateway import OTHER, layout

from belljar.network.gateway.bounds import Bounds
from belljar.network.gateway.reporter import Reporter
from belljar.network.gateway.site import Peer, Site
from belljar.plan.addresses import NameAddress
from belljar.plan.network import PortPlan, StandInPlan


def test_names_are_known_by_who_asks() -> None:
    """A cell has none for one that it is kept apart from; whoever is no cell of the range has none at all, so that it is refused everything."""
    known = layout()
    names = (*known.names, NameAddress(pattern="back.example", stand_in="back", address=OTHER))
    cells = (known.cells[0], replace(known.cells[0], name="back", address=OTHER))
    stand_ins = tuple(
        StandInPlan(id=name, kind="cell", names=(), ports=(), settings={"networks": [name]})
        for name in ("agent", "back")
    )
    web = StandInPlan(id="shop", kind="http", names=(), ports=(PortPlan(number=80, protocol="http"),))
    site = Site(
        layout=replace(known, names=names, cells=cells),
        stand_ins=(*stand_ins, web),
        bounds=Bounds(),
        reporter=cast("Reporter", None),
    )
    assert site.known_to("agent").names == known.names
    assert site.known_to("back").names == names
    assert (site.known_to("").names, site.known_to("").catch_all) == ((), None)
    shop = next(name.address for name in names if name.stand_in == "shop")
    assert site.judge(Peer(cell="agent", address=shop, port=80)).allowed
    assert not site.judge(Peer(cell="", address=shop, port=80)).allowed
