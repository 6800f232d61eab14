"""What the ledger says of each range, gathered from its events: its requests, what was refused, the names asked for, and what its record lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from belljar.events import Kind
from belljar.ledger import Line
from belljar.report.requests import Requests
from belljar.units import printable

TOLD: Final = 20
"""Of names, and of a flow's destinations: so many are named, the others counted."""
_MAX_KINDS: Final = 200
_MAX_WORD_CHARS: Final = 120
_COUNTED_LOST: Final = {
    "packets_not_recorded": "{} packet(s) are in no packet record",
    "logs_lost": "{} refused or allowed packet(s) are in no event",
}
"""Evidence that is missing: what the kernel had no room for."""


@dataclass(slots=True, kw_only=True)
class Told:
    """Some things by name, each with how often; `more` counts those that are not named. Bounded by `TOLD`."""

    named: dict[str, int] = field(default_factory=dict)
    more: int = 0

    def add(self, what: str, times: int = 1) -> None:
        """Once more, or `times`."""
        shown = printable(what, max_chars=_MAX_WORD_CHARS)
        if shown in self.named or len(self.named) < TOLD:
            self.named[shown] = self.named.get(shown, 0) + times
        else:
            self.more += times

    def __bool__(self) -> bool:
        return bool(self.named or self.more)

    def sentence(self) -> str:
        """`a, b ×3 (+2 more)`."""
        said = ", ".join(name if times == 1 else f"{name} ×{times}" for name, times in self.named.items())
        return f"{said} (+{self.more} more)" if self.more else said


@dataclass(slots=True, kw_only=True)
class Flow:
    """Packets of one cell with one fate. Of `packets`, `probed` went where none had gone before while Belljar probed the cell, so most likely its own; `again` are
    known by number alone: where one had gone before, or beyond the places that have an event of their own; the others went `to` a place of their own.
    """

    cell: str
    verdict: str
    reason: str
    protocol: str
    packets: int = 0
    bytes: int = 0
    probed: int = 0
    again: int = 0
    to: Told = field(default_factory=Told)


@dataclass(slots=True, kw_only=True)
class RangeFindings:
    """One range. `cells`: the names of its cells by their ids. `failed`: what it died of, by class and reason. `limits`: how often its gateway's and its record's
    limits were hit. `packets`: where its packet record is, in the run directory.
    """

    range_id: str
    packets: str = ""
    cells: dict[str, str] = field(default_factory=dict)
    requests: Requests = field(default_factory=Requests)
    flows: dict[tuple[str, ...], Flow] = field(default_factory=dict)
    names_found: Told = field(default_factory=Told)
    names_refused: Told = field(default_factory=Told)
    attempts: Told = field(default_factory=Told)
    tls_refused: Told = field(default_factory=Told)
    limits: Told = field(default_factory=Told)
    failed: str = ""
    breached: bool = False
    destroyed: bool = False
    left: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    clean: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    probing: set[str] = field(default_factory=set)

    @property
    def unclean(self) -> list[str]:
        """Why its end is not proven."""
        if not self.destroyed:
            return ["its destruction is not on record"]
        if self.clean:
            return []
        if self.left or not self.not_checked:
            return [f"its destruction left {', '.join(self.left) or 'something'}"]
        return [f"its destruction is not proven; not looked for: {'; '.join(self.not_checked)}"]

    @property
    def faults(self) -> list[str]:
        """Why a sample in it is not contained: it died, its end is not proven, or evidence is missing."""
        return [*self.troubles, *self.lost]

    @property
    def troubles(self) -> list[str]:
        """What would be amiss of a range that nobody had used: it died, or its end is not proven."""
        died = [f"it ended by itself: {self.failed}"] if self.failed else []
        return [*died, *self.unclean]

    @property
    def lost(self) -> list[str]:
        """What its record should have and has not."""
        return [said.format(self.counters[name]) for name, said in _COUNTED_LOST.items() if self.counters.get(name)]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        told = ("names_found", "names_refused", "attempts", "tls_refused", "limits")
        return {
            "range": self.range_id,
            "cells": dict(self.cells),
            "packets": self.packets,
            "requests": [request.to_json() for request in self.requests],
            "requests_in_all": self.requests.count,
            "connections_open_at_the_end": self.requests.still_open,
            "flows": [asdict(flow) for flow in self.flows.values()],
            **{name: asdict(getattr(self, name)) for name in told},
            "faults": self.faults,
            "counters": dict(self.counters),
        }


def gather_ranges(lines: Iterable[Line]) -> dict[str, RangeFindings]:
    """The ranges of a run, by id, in the order in which they appear."""
    ranges: dict[str, RangeFindings] = {}
    cells: dict[str, tuple[str, str]] = {}
    for line in lines:
        if line.cell is not None:
            _add_cell(line.cell, line, ranges, cells)
        elif isinstance(range_id := line.data.get("range"), str):
            _add(ranges.setdefault(range_id, RangeFindings(range_id=range_id)), line)
    return ranges


def _add_cell(cell: str, line: Line, ranges: dict[str, RangeFindings], cells: dict[str, tuple[str, str]]) -> None:
    if line.kind is Kind.CELL_PLANNED and line.data.get("range"):
        range_id, name = str(line.data["range"]), str(line.data.get("name", ""))
        cells[cell] = (range_id, name)
        ranges.setdefault(range_id, RangeFindings(range_id=range_id)).cells[cell] = name
    elif line.kind in {Kind.PROBE_STARTED, Kind.PROBE_COMPLETED} and cell in cells:
        range_id, name = cells[cell]
        probing = ranges[range_id].probing
        (probing.add if line.kind is Kind.PROBE_STARTED else probing.discard)(name)


def _add(found: RangeFindings, line: Line) -> None:
    data = line.data
    found.requests.take(line)
    match line.kind:
        case Kind.RANGE_OPENING:
            if directory := data.get("directory"):
                found.packets = f"ranges/{printable(str(directory), max_chars=_MAX_WORD_CHARS)}/packets.pcap"
        case Kind.RANGE_FAILED:
            found.failed = printable(str(data["reason"]), max_chars=400)
            found.breached = data["error"] == "ContainmentBreach"
        case Kind.RANGE_DESTROYED:
            _add_end(found, data)
        case Kind.NETWORK_FLOW:
            _add_flow(found, data)
        case Kind.NETWORK_DNS:
            _add_name(found, data)
        case Kind.NETWORK_TLS if data["verdict"] != "allowed":
            found.tls_refused.add(f"{data['sni'] or found.requests.place(str(data['address']), data['port'])}")
        case Kind.NETWORK_ATTEMPT:
            found.attempts.add(f"{data['what']} ({data['stand_in']})")
        case Kind.LIMIT_HIT:
            found.limits.add(str(data["limit"]), _times(data))
        case _:
            pass


def _add_end(found: RangeFindings, data: Mapping[str, Any]) -> None:
    found.destroyed, found.clean = True, bool(data["clean"])
    found.left.extend(str(survivor) for survivor in data["survivors"])
    found.not_checked.extend(str(missed) for missed in data.get("not_checked", []))
    counters = data.get("counters", {})
    found.counters = {str(name): count for name, count in counters.items() if isinstance(count, int)}


def _add_flow(found: RangeFindings, data: Mapping[str, Any]) -> None:
    words = (data["cell"], data["verdict"], data["reason"], data["protocol"])
    cell, verdict, reason, protocol = key = tuple(printable(str(word), max_chars=_MAX_WORD_CHARS) for word in words)
    if key not in found.flows and len(found.flows) >= _MAX_KINDS:
        cell, verdict, reason, protocol = key = ("", verdict, "others", "")
    flow = found.flows.setdefault(key, Flow(cell=cell, verdict=verdict, reason=reason, protocol=protocol))
    times = _times(data)
    flow.packets += times
    flow.bytes += data["bytes"]
    if not data["address"]:
        flow.again += times
    elif data["cell"] in found.probing:
        flow.probed += times
    else:
        flow.to.add(found.requests.place(str(data["address"]), data["port"]), times)


def _add_name(found: RangeFindings, data: Mapping[str, Any]) -> None:
    name, answer = str(data["name"]), str(data["answer"])
    if answer[:1].isdigit():
        found.requests.named(name, answer)
        found.names_found.add(name)
    elif answer not in {"NODATA", "SOA", "NS"}:
        found.names_refused.add(f"{name} ({answer})" if answer != "NXDOMAIN" else name, _times(data))


def _times(data: Mapping[str, Any]) -> int:
    count = data.get("count", 1)
    return count if isinstance(count, int) and count > 0 else 1
