"""What the host saw of the ranges that `play` opens: its listeners, its own packets, and what the
ranges left behind. Needs root."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
from tests.security.egress import forged, host
from tests.security.egress.case import Case
from tests.security.egress.evidence import Seen, fill
from tests.security.egress.frames import read_frames
from tests.security.egress.play import Death, Outside, Play, Told, own_words, place
from tests.security.egress.table import LISTENED

from belljar.dataclass import from_json
from belljar.ledger.verification import verify
from belljar.plan.addresses import RangeLayout

AsUser = Callable[[], "subprocess.Popen[bytes]"]
"""Starts `play` as somebody, with pipes."""
_PLAY_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Heard:
    """Of the host's ears: what they heard when tried, and of cells; packets likewise."""

    tried: tuple[str, ...]
    trial: tuple[str, ...]
    of_cells: tuple[str, ...]
    packet_trial: tuple[str, ...]
    packets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class World:
    """All that a tier's tests look at. Every range has ended. `links` and `routes` are those of the
    ranges' namespaces; `recorded`: forged frames in a record."""

    seen: Mapping[str, Seen]
    layouts: Mapping[str, RangeLayout]
    facts: Mapping[str, Mapping[str, str]]
    ports: Sequence[int]
    links: Mapping[str, Sequence[str]]
    routes: Mapping[str, Sequence[str]]
    forged: Mapping[str, Mapping[str, int]]
    recorded: frozenset[str]
    deaths: Mapping[str, Death]
    ears: Heard
    verified: Mapping[str, str]

    def lacks(self, case: Case) -> str:
        """What the case's evidence misses; empty when the host saw all of it."""
        name, cell = place(case)
        return fill(case.evidence, self.own(case)).lacks(self.seen[name], case.name, cell)

    def own(self, case: Case) -> dict[str, str]:
        """What stands in its braces."""
        return {**self.facts[place(case)[0]], **own_words(case, self.ports)}


def look(tier: str, home: Path, folder: Path) -> World:
    """Open, try everything, strike two of the ranges, and gather what the host saw: all of it as
    root, in this process."""
    with _watching(tier, home, folder) as watch:
        told = anyio.run(Play(watch.outside, watch.ready).play)
        return watch.world(told)


def look_as_user(tier: str, home: Path, folder: Path, start: AsUser) -> World:
    """The same, with ranges of whoever `start` runs it as. Only the host's ears are root's."""
    with _watching(tier, home, folder) as watch, start() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(watch.outside)).encode() + b"\n")
        process.stdin.flush()
        networks = process.stdout.readline()
        if networks:
            anyio.run(watch.ready, json.loads(networks))
        try:
            out, err = process.communicate(b"go\n" if networks else b"", timeout=_PLAY_S)
        finally:
            process.kill()
        assert process.returncode == 0, err.decode()
        return watch.world(Told(**json.loads(out)))


@contextmanager
def _watching(tier: str, home: Path, folder: Path) -> Iterator[_Watch]:
    with host.lan() as lan, host.Ears(len(LISTENED) + 1) as ears:
        watch = _Watch(tier, home, folder, lan, ears)
        try:
            yield watch
        finally:
            watch.close()


class _Watch:
    """The host's side, from before the first range to after the last."""

    def __init__(self, tier: str, home: Path, folder: Path, lan: host.Lan, ears: host.Ears) -> None:
        self._lan, self._ears = lan, ears
        self.outside = Outside(
            tier=tier,
            home=str(home),
            folder=str(folder),
            lan=lan.private,
            lan_public=lan.public,
            ports=ears.ports,
            tried=host.addresses(lan),
        )
        self._trials = host.speak(self.outside.tried, ears)
        self._trial = ears.heard
        self._sniffer: host.Sniffer | None = None
        self._packet_trial: tuple[str, ...] = ()

    async def ready(self, networks: list[str]) -> None:
        """From now on no packet from or to these is to be seen; one of the host's own is."""
        self._sniffer = host.Sniffer([*networks, f"{self._lan.public}/32"])
        self._sniffer.open()
        self._trials += host.speak([self._lan.public], self._ears)
        self._packet_trial = tuple(self._sniffer.seen())

    def close(self) -> None:
        """Look no more."""
        if self._sniffer is not None:
            self._sniffer.close()

    def world(self, told: Told) -> World:
        """What there is to see, now that all has ended."""
        assert self._sniffer is not None
        packets = tuple(
            packet for packet in self._sniffer.seen() if packet not in self._packet_trial
        )
        of_cells = self._ears.heard[self._trials :]
        layouts = {
            name: from_json(RangeLayout, made["layout"]) for name, made in told.ranges.items()
        }
        return World(
            seen={name: _seen(made, layouts[name]) for name, made in told.ranges.items()},
            layouts=layouts,
            facts={name: made["facts"] for name, made in told.ranges.items()},
            ports=self._ears.ports,
            links={name: made["links"] for name, made in told.ranges.items()},
            routes={name: made["routes"] for name, made in told.ranges.items()},
            forged=told.forged,
            recorded=_recorded(told.ranges["bare"], layouts["bare"]),
            deaths={name: Death(**death) for name, death in told.deaths.items()},
            ears=Heard(
                tried=tuple(self.outside.tried),
                trial=self._trial,
                of_cells=of_cells,
                packet_trial=self._packet_trial,
                packets=packets,
            ),
            verified={
                name: verify(Path(made["run"])).status.value for name, made in told.ranges.items()
            },
        )


def _seen(made: Mapping[str, Any], layout: RangeLayout) -> Seen:
    lines = [
        json.loads(line) for line in (Path(made["run"]) / "ledger.jsonl").read_bytes().splitlines()
    ]
    return Seen(
        events=tuple((line["kind"], line["data"]) for line in lines),
        opened_s=next(_seconds(line["time"]) for line in lines if line["kind"] == "range.opened"),
        flushed_s=math.inf if made["flushed_s"] is None else made["flushed_s"],
        frames=tuple(read_frames(Path(made["packets"]).read_bytes())),
        counters=made["counters"],
        macs={item.name: item.mac for item in layout.cells},
        gateways=frozenset(item.gateway_mac for item in layout.cells),
        words=made["words"],
    )


def _recorded(made: Mapping[str, Any], layout: RangeLayout) -> frozenset[str]:
    """The forged frames that stand in the range's packet record, byte for byte."""
    record = Path(made["packets"]).read_bytes()
    sent = forged.frames(layout.cell("default"), layout.resolver)
    return frozenset(name for name, frame in sent.items() if frame in record)


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
