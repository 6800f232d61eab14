"""What the ledger says of each range, gathered from its events: its requests, what was refused, the
names asked for, and what its record lacks. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, field
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.events import Kind
from belljar.ledger import Line
from belljar.report.reasons import Reason, ReasonCode
from belljar.report.requests import Places, Requests, in_traffic_analysis, place
from belljar.units import printable

MAX_NAMED: Final = 20
"""Of names, and of a flow's destinations: so many are named, the others counted."""
_MAX_KINDS: Final = 200
_MAX_WORD_CHARS: Final = 120
ORDINARY: Final = frozenset(
    {"h2_settings", "h2_window_update", "h2_priority", "hpack", "tls", "tls_nonce", "ws_mask"}
)
"""Kinds of the remainder that any client has."""
_TRAFFIC_ANALYSIS: Final = "traffic_analysis_"
_PACKETS: Final = "packets"
_READER: Final = "reader"
"""Whoever read it ended before the record did: its effect says why."""
_MAX_EFFECT_CHARS: Final = 600
_COUNTED_LOST: Final = {
    "packets_not_recorded": ReasonCode.PACKETS_NOT_RECORDED,
    "logs_lost": ReasonCode.FLOWS_NOT_RECORDED,
    "unreported_at_end": ReasonCode.EVENTS_CUT_AT_END,
}
"""Counters of `range.destroyed` that are missing evidence: what the kernel had no room for, and
what its end left no time for.
"""


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts by name, bounded by `MAX_NAMED` names; `more` counts all other names."""

    named: dict[str, int] = field(default_factory=dict)
    more: int = 0

    def add(self, what: str, times: int = 1) -> None:
        """Once more, or `times`."""
        shown = printable(what, max_chars=_MAX_WORD_CHARS)
        if shown in self.named or len(self.named) < MAX_NAMED:
            self.named[shown] = self.named.get(shown, 0) + times
        else:
            self.more += times

    def __bool__(self) -> bool:
        return bool(self.named or self.more)

    @property
    def times(self) -> int:
        """Of all together."""
        return sum(self.named.values()) + self.more

    def renamed(self, label: Callable[[str], str]) -> Counts:
        """The same by other names."""
        renamed = Counts(more=self.more)
        for name, times in self.named.items():
            renamed.add(label(name), times)
        return renamed

    def sentence(self) -> str:
        """`a, b ×3, others ×2`."""
        counts = {**self.named, **({"others": self.more} if self.more else {})}
        return ", ".join(
            name if times == 1 else f"{name} ×{times}" for name, times in counts.items()
        )


@dataclass(slots=True, kw_only=True)
class Flow:
    """Packets of one cell with one fate.

    `probed`: to new places during a probe of the cell, so most likely Belljar's own. `again`:
    without an event of their own (repeats, or too many places). `to`: the others, by place.
    `traffic_analysis`: from the packet record.
    """

    cell: str
    verdict: str
    reason: str
    protocol: str
    traffic_analysis: bool = False
    packets: int = 0
    bytes: int = 0
    probed: int = 0
    again: int = 0
    to: Counts = field(default_factory=Counts)


@dataclass(slots=True, kw_only=True)
class RangeFindings:
    """One range.

    `cells`: names by id. `failed`: error class and reason. `packets`: path of the packet record in
    the run directory. `requests`: the gateway's; `between_cells`: from the packet record.
    `remainder`: received bytes outside of messages, by kind; `missing_bytes`: in no event;
    `left_out`: not read or not reported; `unread_packets`: overwritten first; `reader_ended`: why
    reading stopped early.
    """

    range_id: str
    packets: str = ""
    cells: dict[str, str] = field(default_factory=dict)
    requests: Requests = field(default_factory=Requests)
    between_cells: Requests = field(default_factory=Requests)
    left_out: Counts = field(default_factory=Counts)
    remainder: dict[str, int] = field(default_factory=dict)
    missing_bytes: int = 0
    unread_packets: int = 0
    reader_ended: str = ""
    flows: dict[tuple[str, str, str, str, bool], Flow] = field(default_factory=dict)
    names_found: Counts = field(default_factory=Counts)
    names_refused: Counts = field(default_factory=Counts)
    attempts: Counts = field(default_factory=Counts)
    tls_refused: Counts = field(default_factory=Counts)
    limits: Counts = field(default_factory=Counts)
    failed: str = ""
    breached: bool = False
    opened: bool = False
    destroyed: bool = False
    left: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    clean: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    probing: set[str] = field(default_factory=set)
    places: Places = field(default_factory=Places)

    def _reason(self, code: ReasonCode, detail: str = "") -> Reason:
        return Reason(code=code, where=f"range {self.range_id}", detail=detail)

    @property
    def reasons(self) -> list[Reason]:
        """Why a sample in it is not contained."""
        return [*self.end_reasons, *self.lost]

    @property
    def end_reasons(self) -> list[Reason]:
        """Reasons even for an unused range: it died, or its end is not proven."""
        code = ReasonCode.RANGE_BREACHED if self.breached else ReasonCode.RANGE_FAILED
        died = [self._reason(code, self.failed)] if self.failed or self.breached else []
        if not self.destroyed:
            return [*died, self._reason(ReasonCode.RANGE_NOT_DESTROYED)]
        if self.clean:
            return died
        if self.left or not self.not_checked:
            return [
                *died,
                self._reason(ReasonCode.RANGE_SURVIVORS, ", ".join(self.left) or "something"),
            ]
        return [
            *died,
            self._reason(ReasonCode.RANGE_DESTRUCTION_UNPROVEN, "; ".join(self.not_checked)),
        ]

    @property
    def lost(self) -> list[Reason]:
        """Missing evidence. A dropped packet that events hold whole is not missing."""
        counted = [(code, self.counters.get(name, 0)) for name, code in _COUNTED_LOST.items()]
        dropped = self.counters.get("packets_recorded_and_dropped", 0)
        unaccounted = self.counters.get("packets_unaccounted", dropped)
        unread = self.unread_packets - self.counters.get("packets_not_recorded", 0)
        counted.append((ReasonCode.PACKETS_OVERWRITTEN, max(unaccounted, unread)))
        counted.append((ReasonCode.BYTES_NOT_RECORDED, self.missing_bytes))
        lost = [self._reason(code, str(count)) for code, count in counted if count]
        if self.opened and self.destroyed and not self.counters:
            lost.append(self._reason(ReasonCode.PACKETS_NOT_RECORDED, "an unknown number of"))
        if self.reader_ended:
            lost.append(self._reason(ReasonCode.TRAFFIC_ANALYSIS_ENDED, self.reader_ended))
        return lost

    def name_places(self) -> None:
        """Tell each place by the names that were asked for, now that all are known."""
        for requests in (self.requests, self.between_cells):
            requests.name_places(self.places)
        for flow in self.flows.values():
            flow.to = flow.to.renamed(self.places.label)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        counted = ("names_found", "names_refused", "attempts", "tls_refused", "limits", "left_out")
        return {
            "range": self.range_id,
            "cells": dict(self.cells),
            "packets": self.packets,
            "requests": [request.to_json() for request in (*self.requests, *self.between_cells)],
            "requests_in_all": self.requests.count + self.between_cells.count,
            "requests_in_traffic_analysis": self.between_cells.count,
            "requests_ambiguous": self.requests.ambiguous + self.between_cells.ambiguous,
            "connections_open_at_the_end": self.requests.still_open,
            "flows": [asdict(flow) for flow in self.flows.values()],
            **{name: asdict(getattr(self, name)) for name in counted},
            "reasons": [reason.to_json() for reason in self.reasons],
            "counters": dict(self.counters),
            "remainder": dict(self.remainder),
        }


class RangeGatherer:
    """The ranges of a run, event by event."""

    def __init__(self) -> None:
        self._found: dict[str, RangeFindings] = {}
        self._cells: dict[str, tuple[str, str]] = {}

    def take(self, line: Line) -> None:
        """One event more."""
        if line.cell is not None:
            _add_cell(line.cell, line, self._found, self._cells)
        elif isinstance(range_id := line.data.get("range"), str):
            _add(self._found.setdefault(range_id, RangeFindings(range_id=range_id)), line)

    def end(self) -> dict[str, RangeFindings]:
        """The ranges by id, in the order in which they appear, now that all names are known."""
        for found in self._found.values():
            found.name_places()
        return self._found


def gather_ranges(lines: Iterable[Line]) -> dict[str, RangeFindings]:
    """The ranges of a run, out of all of its events."""
    gatherer = RangeGatherer()
    for line in lines:
        gatherer.take(line)
    return gatherer.end()


def _add_cell(
    cell: str, line: Line, ranges: dict[str, RangeFindings], cells: dict[str, tuple[str, str]]
) -> None:
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
    (found.between_cells if in_traffic_analysis(data) else found.requests).take(line)
    match line.kind:
        case Kind.RANGE_OPENING:
            if directory := data.get("directory"):
                found.packets = (
                    f"ranges/{printable(str(directory), max_chars=_MAX_WORD_CHARS)}/packets.pcap"
                )
        case Kind.RANGE_OPENED:
            found.opened = True
        case Kind.RANGE_FAILED:
            found.failed = printable(str(data["reason"]), max_chars=400)
            found.breached = data["error"] == "ContainmentBreach"
        case Kind.RANGE_DESTROYED:
            found.destroyed, found.clean = True, bool(data["clean"])
            found.left.extend(str(survivor) for survivor in data["survivors"])
            found.not_checked.extend(str(missed) for missed in data.get("not_checked", []))
            counters = data.get("counters", {})
            found.counters = {
                str(name): count for name, count in counters.items() if isinstance(count, int)
            }
        case Kind.NETWORK_FLOW:
            _add_flow(found, data)
        case Kind.NETWORK_DNS:
            _add_name(found, data)
        case Kind.NETWORK_TLS if data["verdict"] != "allowed":
            found.tls_refused.add(f"{data['sni'] or place(data)} ({data['reason']})")
        case Kind.NETWORK_CONNECTION if data["phase"] == "closed":
            _add_connection(found, data)
        case Kind.NETWORK_ATTEMPT:
            found.attempts.add(f"{data['what']} ({data['stand_in']})")
        case Kind.LIMIT_HIT:
            _add_limit(found, data)
        case _:
            pass


def _add_connection(found: RangeFindings, data: Mapping[str, Any]) -> None:
    found.missing_bytes += data["missing_bytes"]
    kinds = data.get("remainder")
    for kind, size in (kinds if isinstance(kinds, dict) else {}).items():
        shown = printable(str(kind), max_chars=_MAX_WORD_CHARS)
        if isinstance(size, int) and (
            shown in found.remainder or len(found.remainder) < _MAX_KINDS
        ):
            found.remainder[shown] = found.remainder.get(shown, 0) + size


def _add_limit(found: RangeFindings, data: Mapping[str, Any]) -> None:
    limit = str(data["limit"])
    if not in_traffic_analysis(data):
        found.limits.add(limit, _times(data))
    elif (what := limit.removeprefix(_TRAFFIC_ANALYSIS)) == _PACKETS:
        found.unread_packets += _times(data)
    elif what == _READER:
        found.reader_ended = printable(str(data.get("effect")), max_chars=_MAX_EFFECT_CHARS)
    else:
        found.left_out.add(what.replace("_", " "), _times(data))


def _add_flow(found: RangeFindings, data: Mapping[str, Any]) -> None:
    words = (data["cell"], data["verdict"], data["reason"], data["protocol"])
    traffic_analysis = in_traffic_analysis(data)
    cell, verdict, reason, protocol = (
        printable(str(word), max_chars=_MAX_WORD_CHARS) for word in words
    )
    if (cell, verdict, reason, protocol, traffic_analysis) not in found.flows and len(
        found.flows
    ) >= _MAX_KINDS:
        cell, reason, protocol = "", "others", ""
    made = Flow(
        cell=cell,
        verdict=verdict,
        reason=reason,
        protocol=protocol,
        traffic_analysis=traffic_analysis,
    )
    flow = found.flows.setdefault((cell, verdict, reason, protocol, traffic_analysis), made)
    times = _times(data)
    flow.packets += times
    flow.bytes += data["bytes"]
    if not data["address"]:
        flow.again += times
    elif data["cell"] in found.probing:
        flow.probed += times
    else:
        flow.to.add(place(data), times)


def _add_name(found: RangeFindings, data: Mapping[str, Any]) -> None:
    name, answer = str(data["name"]), str(data["answer"])
    if answer[:1].isdigit():
        found.places.named(name, answer)
        found.names_found.add(name)
    elif answer not in {"NODATA", "SOA", "NS"}:
        found.names_refused.add(
            f"{name} ({answer})" if answer != "NXDOMAIN" else name, _times(data)
        )


def _times(data: Mapping[str, Any]) -> int:
    count = data.get("count", 1)
    return count if isinstance(count, int) and count > 0 else 1
