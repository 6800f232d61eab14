"""Nothing gets out of a range, in any tier: each way of `egress/cases.toml` is tried from inside as root
of the cell, and the host looks at its own events, counters, packet record and listeners. See
docs/egress.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from tests.security.egress import forged
from tests.security.egress.case import GROUPS, Group
from tests.security.egress.evidence import Refused, unasked_answers
from tests.security.egress.play import FIRST_PORT
from tests.security.egress.scene import World, look
from tests.security.egress.table import CASES

from belljar.plan.addresses import RangeLayout

pytestmark = [pytest.mark.root, pytest.mark.vm]


@pytest.fixture(scope="module", params=["container", "gvisor", "microvm"])
def world(
    request: pytest.FixtureRequest, vm_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> World:
    """What the host saw of a tier's three ranges, which have ended."""
    return look(request.param, vm_home, tmp_path_factory.mktemp("egress"))


@pytest.mark.promise("2.5")
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.title)
def test_each_way_out_is_closed_and_on_record(world: World, group: Group) -> None:
    """What each case tries ends as it says, and the host has seen it."""
    assert {case.name: lack for case in group.cases if (lack := world.lacks(case))} == {}


def test_the_hosts_listeners_hear_and_heard_nothing_of_any_cell(world: World) -> None:
    """The host's own words were heard at each of its addresses, by TCP and UDP; of the cells nobody
    heard a word, before or after their ranges died."""
    assert len(world.ears.trial) == 2 * len(world.ears.tried) * len(world.ports) > 100
    assert world.ears.of_cells == ()


def test_no_packet_of_a_range_is_seen_in_the_hosts_namespace(world: World) -> None:
    """On no device of the host's; its own packet, looked for in the same way, was seen."""
    assert world.ears.packet_trial
    assert world.ears.packets == ()


@pytest.mark.promise("2.5")
def test_a_range_has_no_other_link_and_no_other_route(world: World) -> None:
    """It has its loopback, its cells' ports, routes to these and itself, and no default route."""
    for name, layout in world.layouts.items():
        assert sorted(world.links[name]) == sorted(
            ["lo", *(cell.outer_device for cell in layout.cells)]
        )
        own = {cell.address for cell in layout.cells} | set(layout.local_prefixes)
        local = {"127.0.0.0/8", "127.0.0.1", "127.255.255.255", "::1"}
        ours = {dst.removesuffix("/32") for dst in world.routes[name]} - {
            each.removesuffix("/32") for each in own
        }
        # Where marked packets end, so that they go no further
        taken = {"default"} if layout.sink_port else {layout.prefix}
        assert {dst for dst in ours - local if not dst.startswith(("fe80", "ff00"))} <= (
            taken if layout.sink_port or layout.proxy_port else set()
        )


def test_a_cell_gets_nothing_but_what_the_plan_lets_answer(world: World) -> None:
    """Each frame that was sent to a cell is a refusal, or comes from an address and port of the
    plan's; from the flush of the rules until it is noticed, from a cell of that range.
    """
    for name, seen in world.seen.items():
        for cell in seen.macs:
            serves = frozenset({5432} if cell == "db" else ())
            answering = _answering(world.layouts[name])
            assert (
                unasked_answers(seen, cell, answering, has_sink=name == "open", serves=serves) == []
            )


def test_the_first_packets_of_a_fresh_cell_meet_the_rules(world: World) -> None:
    """What a first command sends at once is refused like anything later; no packet of any cell is
    older than the rules."""
    first = world.seen["bare"]
    for reason, protocol in (("address", "tcp"), ("udp", "udp")):
        assert (
            Refused(reason, "203.0.113.70", str(FIRST_PORT), protocol).lacks(first, "", "default")
            == ""
        )
    for seen in world.seen.values():
        assert min(frame.at_s for frame in seen.frames) > seen.opened_s


def test_frames_that_no_workload_can_send_are_counted_and_dropped(world: World) -> None:
    """Put onto a cell's port by the host, as a kernel could that was taken over: each moves one
    counter by one, and no answer but a refusal leaves.

    Each stands in the packet record: so what is not found there was never sent.
    """
    assert world.recorded == set(forged.EXPECTED)
    assert world.forged == {name: {reason: 1} for name, reason in forged.EXPECTED.items()}


def test_rules_flushed_by_hand_end_the_range(world: World) -> None:
    """Its cells' processes end; who works in it is told of a breach, and so is who leaves it; it is
    on record. What the cell went on sending was heard by nobody."""
    death = world.deaths["deny"]
    assert (death.raised, death.cells_ended, death.left) == (
        "ContainmentBreach",
        True,
        "ContainmentBreach",
    )
    assert "table inet range is gone" in death.why
    failed = world.seen["deny"].of("range.failed")
    assert [data["error"] for data in failed] == ["ContainmentBreach"]


@pytest.mark.promise("2.6")
def test_a_gateway_killed_ends_the_range(world: World) -> None:
    """As after a flush, with another word for it."""
    death = world.deaths["bare"]
    assert (death.raised, death.cells_ended, death.left) == ("CellError", True, "CellError")
    assert "gateway ended" in death.why
    assert [data["error"] for data in world.seen["bare"].of("range.failed")] == ["CellError"]


def test_every_run_of_it_verifies(world: World) -> None:
    """Also those whose range died: a record is whole whatever happens."""
    assert set(world.verified.values()) == {"verified"}


def test_there_are_enough_cases() -> None:
    """At least sixty ways out are tried, each by a name of its own."""
    assert len({case.name for case in CASES}) == len(CASES) >= 60


PORTS: Final = {
    "shop": (80, 443), "pay": (80, 443), "post": (25,), "db": (5432,), "private": (8080,),
    "cloud": (80,),
}  # fmt: skip


def _answering(layout: RangeLayout) -> frozenset[tuple[str, str, int]]:
    """(protocol, address, port) of everything that may answer."""
    resolver = {(protocol, layout.resolver, 53) for protocol in ("tcp", "udp")}
    stand_ins = {
        ("tcp", name.address, port) for name in layout.names for port in PORTS[name.stand_in]
    }
    catch_all = (
        {("tcp", layout.catch_all, port) for port in (80, 443)} if layout.catch_all else set()
    )
    return frozenset({*resolver, *stand_ins, *catch_all})
