"""What the host saw of the ranges that `play` opens, as root; as an ordinary user, what is seen of
his own: `python -m tests.security.egress.scene` reads `Outside` and prints JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import anyio
from tests.security.egress import host
from tests.security.egress.case import Case
from tests.security.egress.evidence import Seen, fill
from tests.security.egress.frames import read_frames
from tests.security.egress.play import Opened, Outside, Play, own_words, place
from tests.security.egress.table import CASES, LISTENED


@dataclass(frozen=True, kw_only=True)
class World:
    """All that a tier's tests look at. Every range has ended.

    `trial` and `of_cells`: what the host's ears heard of the host itself and of cells. `packet_trial`
    and `packets`: what was seen of them on the host's devices.
    """

    play: Play
    seen: Mapping[str, Seen]
    trial: Sequence[str]
    of_cells: Sequence[str]
    packet_trial: Sequence[str]
    packets: Sequence[str]

    def lacks(self, case: Case) -> str:
        """What the case's evidence misses; empty when the host saw all of it."""
        name, cell = place(case)
        return fill(case.evidence, self.own(case)).lacks(self.seen[name], case.name, cell)

    def own(self, case: Case) -> dict[str, str]:
        facts = self.play.facts(place(case)[0])
        return {**facts, **own_words(case, self.play.outside.ports)}


def look(tier: str, home: Path, folder: Path) -> World:
    """Open, try everything, strike two of the ranges, and gather what the host saw."""
    with host.lan() as lan, host.Ears(len(LISTENED) + 1) as ears, ExitStack() as held:
        outside = Outside(tier, home, folder, lan, ears.ports, host.addresses(lan))
        trials = host.speak(outside.tried, ears)
        trial, packet_trial, sniffer = ears.heard, list[str](), host.Sniffer([])

        async def ready(networks: list[str]) -> None:
            """From now on no packet from or to these is to be seen; one of the host's own is."""
            nonlocal trials
            sniffer.networks = [*networks, f"{lan.public}/32"]
            sniffer.open()
            held.callback(sniffer.close)
            trials += host.speak([lan.public], ears)
            packet_trial.extend(sniffer.seen())

        play = Play(outside, ready)
        anyio.run(play.play)
        return World(
            play=play,
            seen={name: _seen(made) for name, made in play.ranges.items()},
            trial=trial,
            of_cells=ears.heard[trials:],
            packet_trial=packet_trial,
            packets=[packet for packet in sniffer.seen() if packet not in packet_trial],
        )


def _seen(made: Opened) -> Seen:
    ledger = (made.run.path / "ledger.jsonl").read_bytes()
    lines = [json.loads(line) for line in ledger.splitlines()]
    (opened,) = (line["time"] for line in lines if line["kind"] == "range.opened")
    cells = made.network.layout.cells
    return Seen(
        events=tuple((line["kind"], line["data"]) for line in lines),
        opened_s=datetime.fromisoformat(opened).timestamp(),
        flushed_s=made.flushed_s,
        frames=tuple(read_frames(made.packets)),
        counters=made.counters,
        macs={item.name: item.mac for item in cells},
        gateways=frozenset(item.gateway_mac for item in cells),
        words=made.words,
    )


def look_at_own() -> None:
    told = json.loads(sys.stdin.read())
    paths = {name: Path(told[name]) for name in ("home", "folder")}

    async def ready(_networks: list[str]) -> None:
        await anyio.lowlevel.checkpoint()

    play = Play(Outside(**{**told, **paths, "lan": host.Lan(**told["lan"])}), ready)
    anyio.run(play.play)
    seen = {name: _seen(made) for name, made in play.ranges.items()}
    own = World(play=play, seen=seen, trial=(), of_cells=(), packet_trial=(), packets=())
    lacks = {case.name: lack for case in CASES if (lack := own.lacks(case))}
    deaths = {
        name: [each.raised, each.cells_ended, each.left] for name, each in play.deaths.items()
    }
    print(json.dumps({"lacks": lacks, "deaths": deaths, "forged": play.forged}))


if __name__ == "__main__":
    look_at_own()
