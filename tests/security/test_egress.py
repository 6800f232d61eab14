"""Nothing gets out of a range, in any tier."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from tests.integration.as_user import (
    REPOSITORY,
    UsersBelljar,
    copy_distributions,
    installed_for,
    leaves_nothing,
)
from tests.integration.handed_groups import handed_groups
from tests.security.egress import forged, host
from tests.security.egress.case import GROUPS, Group
from tests.security.egress.evidence import (
    Counted,
    Dns,
    DnsBelow,
    Dropped,
    Either,
    Evidence,
    Http,
    NeverSent,
    Refused,
    RefusedEach,
    Seen,
    Tls,
    Word,
    fill,
    unasked_answers,
)
from tests.security.egress.frames import ICMP, TCP, UDP, Frame
from tests.security.egress.play import FIRST_PORT, Outside, own_words, place
from tests.security.egress.scene import World, look
from tests.security.egress.table import CASES, LISTENED

from belljar.ledger.verification import verify
from belljar.plan.addresses import RangeLayout

pytestmark = [pytest.mark.root, pytest.mark.vm]
_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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
    """The host's own words were heard at each of its addresses, by TCP and UDP."""
    outside = world.play.outside
    assert len(world.trial) == 2 * len(outside.tried) * len(outside.ports) > 100
    assert not world.of_cells


def test_no_packet_of_a_range_is_seen_in_the_hosts_namespace(world: World) -> None:
    """On no device of the host's; its own packet, looked for in the same way, was seen."""
    assert world.packet_trial
    assert not world.packets


@pytest.mark.promise("2.5")
def test_a_range_has_no_other_link_and_no_other_route(world: World) -> None:
    """It has its loopback, its cells' ports, routes to these and itself, and no default route."""
    for made in world.play.ranges.values():
        layout = made.network.layout
        assert sorted(made.links) == sorted(["lo", *(cell.outer_device for cell in layout.cells)])
        own = {cell.address for cell in layout.cells} | set(layout.local_prefixes)
        local = {"127.0.0.0/8", "127.0.0.1", "127.255.255.255", "::1"}
        ours = {dst.removesuffix("/32") for dst in made.routes} - {
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
            answering = _answering(world.play.ranges[name].network.layout)
            assert (
                unasked_answers(seen, cell, answering, has_sink=name == "open", serves=serves) == []
            )


def test_the_first_packets_of_a_fresh_cell_meet_the_rules(world: World) -> None:
    """What a first command sends at once is refused like anything later."""
    first = world.seen["bare"]
    for reason, protocol in (("address", "tcp"), ("udp", "udp")):
        assert (
            Refused(reason, "203.0.113.70", str(FIRST_PORT), protocol).lacks(first, "", "default")
            == ""
        )
    for seen in world.seen.values():
        assert min(frame.at_s for frame in seen.frames) > seen.opened_s


def test_frames_that_no_workload_can_send_are_counted_and_dropped(world: World) -> None:
    """Put onto a cell's port by the host, as a kernel could that was taken over."""
    bare = world.play.ranges["bare"]
    layout = bare.network.layout
    sent = forged.frames(layout.cell("default"), layout.resolver)
    assert {name for name, frame in sent.items() if frame in bare.packets} == set(forged.EXPECTED)
    assert world.play.forged == {name: {reason: 1} for name, reason in forged.EXPECTED.items()}


def test_rules_flushed_by_hand_end_the_range(world: World) -> None:
    """Its cells' processes end; who works in it is told of a breach, and so is who leaves it."""
    death = world.play.deaths["deny"]
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
    death = world.play.deaths["bare"]
    assert (death.raised, death.cells_ended, death.left) == ("CellError", True, "CellError")
    assert "gateway ended" in death.why
    assert [data["error"] for data in world.seen["bare"].of("range.failed")] == ["CellError"]


def test_every_run_of_it_verifies(world: World) -> None:
    """Also those whose range died: a record is whole whatever happens."""
    for made in world.play.ranges.values():
        assert verify(made.run.path).status.value == "verified"


@pytest.fixture(scope="module")
def user(prepared_home: Path, ordinary_user: tuple[int, int]) -> Iterator[UsersBelljar]:
    """An ordinary user with control groups of his own, and the program that opens the ranges."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    with (
        installed_for(prepared_home, *ordinary_user) as installed,
        handed_groups(f"e{installed.uid}-{os.getpid()}", installed.uid, installed.gid) as groups,
    ):
        extra = project["optional-dependencies"]
        copy_distributions([*extra["network"], *extra["stand-ins"]], installed.libraries)
        for name in ("security/egress", "fakes"):
            shutil.copytree(REPOSITORY / "tests" / name, installed.libraries / "tests" / name)
        yield replace(installed, groups=groups)


@pytest.mark.promise("2.5", "8.4")
@pytest.mark.thorough_in("gvisor")
@pytest.mark.parametrize("tier", ["container", "gvisor"])
def test_each_way_out_is_closed_to_a_users_cells(tier: str, user: UsersBelljar) -> None:
    """He opens the ranges, forges frames at their ports and strikes them himself."""
    folder = user.home.parent / f"policies-{tier}"
    folder.mkdir()
    os.chown(folder, user.uid, user.gid)
    with host.lan() as lan, host.Ears(len(LISTENED) + 1) as ears, leaves_nothing(user):
        outside = Outside(tier, user.home, folder, lan, ears.ports, host.addresses(lan))
        argv = [user.python, "-m", "tests.security.egress.scene"]
        told = json.dumps(asdict(outside), default=str).encode()
        done = user.run(argv, stdin=told, timeout_s=600, PATH=_SEARCH)
        assert done.returncode == 0, done.stderr.decode()
        seen = json.loads(done.stdout)
        assert not ears.heard
    assert seen["lacks"] == {}
    assert seen["forged"] == {name: {reason: 1} for name, reason in forged.EXPECTED.items()}
    assert seen["deaths"] == {
        "deny": ["ContainmentBreach", True, "ContainmentBreach"],
        "bare": ["CellError", True, "CellError"],
    }


def test_no_two_cases_live_on_the_same_evidence() -> None:
    """Each has something of its own: what did nothing can't be proven by another."""

    class Facts(defaultdict[str, str]):
        def __missing__(self, name: str) -> str:
            return f"<{name}>"

    found: Counter[object] = Counter()
    for case in CASES:
        own = Facts(None, own_words(case, list(range(len(LISTENED)))))
        parts = {*_parts(fill(case.evidence, own))}
        found.update((place(case), part) for part in parts if not isinstance(part, _SHARED))
    assert [part for part, count in found.items() if count > 1] == []
    assert len({case.name for case in CASES}) == len(CASES) >= 60


_SHARED: Final = (NeverSent, Word, Counted)
_JUDGED: Final = (Refused, RefusedEach, Dropped, Dns, DnsBelow, Http, Tls)


def _parts(evidence: Evidence) -> Iterator[Evidence]:
    inner = getattr(evidence, "parts", None) or getattr(evidence, "ways", None)
    yield from (part for each in inner for part in _parts(each)) if inner else [evidence]


def test_each_case_can_fail(world: World) -> None:
    """No record, no proof: a prober that tried nothing proves nothing."""
    for case in CASES:
        (name, cell), evidence = place(case), fill(case.evidence, world.own(case))
        seen, parts = world.seen[name], [*_parts(evidence)]
        if isinstance(evidence, Either) or all(isinstance(part, NeverSent) for part in parts):
            continue  # nothing is one of its proofs

        lacks = partial(_lacks, seen, evidence, case.name, cell)
        assert lacks(events=(), frames=(), counters={}, words={}), case.name
        if any(isinstance(part, _JUDGED) for part in parts):
            assert lacks(events=_otherwise(seen)), case.name
        for part in parts:
            if isinstance(part, Refused | Dropped):
                leak = Frame(
                    **_FRAME,
                    to_mac=seen.macs[cell],
                    source=part.address,
                    protocol={"tcp": TCP, "udp": UDP, "icmp": ICMP}[part.protocol],
                    source_port=int(part.port),
                    payload=b"leaked",
                )
                assert "answered" in lacks(frames=(*seen.frames, leak)), case.name
            elif isinstance(part, NeverSent):
                left = Frame(**{**_FRAME, "to_mac": "02:00:00:00:00:01", **_sent(part)})
                assert lacks(frames=(*seen.frames, left)), case.name


def _lacks(seen: Seen, evidence: Evidence, case: str, cell: str, **changes: Any) -> str:  # noqa: ANN401 - fields of `Seen`
    return evidence.lacks(replace(seen, **changes), case, cell)


_FRAME: Final[dict[str, Any]] = {"at_s": 1.0, "from_mac": "02:aa:bb:cc:dd:ee", "kind": 0x0800}


def _sent(part: NeverSent) -> dict[str, Any]:
    sent: dict[str, dict[str, Any]] = {
        "ipv6": {"kind": 0x86DD},
        "arp": {"kind": 0x0806},
        "not ip": {"kind": 0x88B5},
        "options": {"has_options": True},
        "source": {"source": part.address},
        "protocol": {"protocol": int(part.port)},
        "to": {"target": part.address, "target_port": int(part.port)},
    }
    return sent[part.what]


def _otherwise(seen: Seen) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    other = {"reason": "another", "answer": "203.0.113.200", "verdict": "other"}
    return tuple(
        (kind, {**data, **{field: word for field, word in other.items() if field in data}})
        for kind, data in seen.events
    )


PORTS: Final = {
    "shop": (80, 443), "pay": (80, 443), "post": (25,), "db": (5432,), "private": (8080,),
    "cloud": (80,),
}  # fmt: skip


def _answering(layout: RangeLayout) -> frozenset[tuple[str, str, int]]:
    resolver = {(protocol, layout.resolver, 53) for protocol in ("tcp", "udp")}
    stand_ins = {
        ("tcp", name.address, port) for name in layout.names for port in PORTS[name.stand_in]
    }
    catch_all = (
        {("tcp", layout.catch_all, port) for port in (80, 443)} if layout.catch_all else set()
    )
    return frozenset({*resolver, *stand_ins, *catch_all})
