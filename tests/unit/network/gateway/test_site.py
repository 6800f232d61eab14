"""What connections of a gateway share."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from tests.fakes.gateway import OTHER, layout

from belljar.network.gateway.config import Bounds
from belljar.network.gateway.reporter import Reporter
from belljar.network.gateway.site import Site
from belljar.plan.addresses import NameAddress
from belljar.plan.network import StandInPlan


def test_names_are_known_by_who_asks() -> None:
    """A cell has none for one that it is kept apart from."""
    known = layout()
    names = (*known.names, NameAddress(pattern="back.example", stand_in="back", address=OTHER))
    cells = (known.cells[0], replace(known.cells[0], name="back", address=OTHER))
    stand_ins = tuple(
        StandInPlan(id=name, kind="cell", names=(), ports=(), settings={"networks": [name]})
        for name in ("agent", "back")
    )
    site = Site(
        layout=replace(known, names=names, cells=cells),
        stand_ins=stand_ins,
        bounds=Bounds(),
        reporter=cast("Reporter", None),
    )
    assert site.known_to("agent").names == known.names
    assert site.known_to("back").names == names
