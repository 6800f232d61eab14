"""Each range's record: requests, refusals, names, and missing evidence. Pure."""

from __future__ import annotations

from typing import Any, Final

from belljar.dataclass import asdict, dataclass, field
from belljar.events import Kind
from belljar.ledger.schema import Line
from belljar.report.reading import ProbeTracker, is_between_cells, place, size_of, times_of, word
from belljar.report.reasons import Ending, Reason, ReasonCode
from belljar.units import printable

MAX_NAMED: Final = 20  # names, or destinations of a flow; the others are counted
# A cell chooses protocols and reasons: their number must not grow the report.
_MAX_KINDS: Final = 200
# Counters of `range.destroyed` that are missing evidence.
_COUNTED_LOST: Final = {
    "packets_not_recorded": ReasonCode.PACKETS_NOT_RECORDED,
    "logs_lost": ReasonCode.FLOWS_NOT_RECORDED,
    "unreported_at_end": ReasonCode.EVENTS_CUT_AT_END,
}


_SHOWN: Final = ("packets", "requests_between_cells", "requests_refused")
_COUNTED: Final = ("names_found", "names_refused", "attempts", "tls_refused", "limits")
# Packets are counted by these, and then by place.
_OF_FLOW: Final = ("cell", "verdict", "reason", "protocol")


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts by name, at most `MAX_NAMED`; `more` counts all others."""

    named: dict[str, int] = field(default_factory=dict)
    more: int = 0

    def add(self, what: str, times: int = 1) -> None:
        """Count `what`."""
        shown = word(what)
        if shown in self.named or len(self.named) < MAX_NAMED:
            self.named[shown] = self.named.get(shown, 0) + times
        else:
            self.more += times

    def __bool__(self) -> bool:
        return bool(self.named or self.more)

    def sentence(self) -> str:
        """`a, b ×3, others ×2`."""
        counts = self.named | ({"others": self.more} if self.more else {})
        return ", ".join(name if n == 1 else f"{name} ×{n}" for name, n in counts.items())


@dataclass(slots=True, kw_only=True)
class RangeFindings(Ending):
    """One range.

    `cells`: names by id. `packets`: path of the packet record. `requests`: and connections, to
    stand-ins, upstreams and other cells. `missing_bytes`: of secrets of TLS. `without_secrets`:
    numbers of TLS connections. `flows`: packets by `_OF_FLOW`, without Belljar's probes. Of older
    runs, `missing_bytes` counts what no event had, too;
    `unread_packets` those of traffic between cells, which was read from the packet record;
    `reader_ended`: why that stopped early.
    """

    range_id: str
    packets: str = ""
    cells: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    requests_between_cells: int = 0
    requests_refused: int = 0
    missing_bytes: int = 0
    without_secrets: set[int] = field(default_factory=set)
    unread_packets: int = 0
    reader_ended: str = ""
    flows: dict[tuple[str, ...], Counts] = field(default_factory=dict)
    names_found: Counts = field(default_factory=Counts)
    names_refused: Counts = field(default_factory=Counts)
    attempts: Counts = field(default_factory=Counts)
    tls_refused: Counts = field(default_factory=Counts)
    limits: Counts = field(default_factory=Counts)
    failed: str = ""
    breached: bool = False
    opened: bool = False
    counters: dict[str, int] = field(default_factory=dict)

    def _reason(self, code: ReasonCode, detail: str = "") -> Reason:
        return Reason(code=code, where=f"range {self.range_id}", detail=detail)

    @property
    def reasons(self) -> list[Reason]:
        """Why a sample in it is not contained."""
        return [*self.end_reasons, *self.lost]

    @property
    def end_reasons(self) -> list[Reason]:
        """Reasons even for an unused range: death, or an unproven end."""
        code = ReasonCode.RANGE_BREACHED if self.breached else ReasonCode.RANGE_FAILED
        found = [self._reason(code, self.failed)] if self.failed or self.breached else []
        return [*found, *self.reasons_of_end("range", self.range_id)]

    @property
    def lost(self) -> list[Reason]:
        """Missing evidence."""
        counted = [(code, self.counters.get(name, 0)) for name, code in _COUNTED_LOST.items()]
        dropped = self.counters.get("packets_recorded_and_dropped", 0)
        unaccounted = self.counters.get("packets_unaccounted", dropped)
        unread = self.unread_packets - self.counters.get("packets_not_recorded", 0)
        counted.append((ReasonCode.PACKETS_OVERWRITTEN, max(unaccounted, unread)))
        counted.append((ReasonCode.BYTES_NOT_RECORDED, self.missing_bytes))
        if "packets_cut" in self.counters:  # else an older run, whose gateways logged no secrets
            counted.append((ReasonCode.SECRETS_NOT_RECORDED, len(self.without_secrets)))
        lost = [self._reason(code, str(count)) for code, count in counted if count]
        if self.opened and self.destroyed and not self.counters:
            lost.append(self._reason(ReasonCode.PACKETS_NOT_RECORDED, "an unknown number of"))
        if self.reader_ended:
            lost.append(self._reason(ReasonCode.TRAFFIC_ANALYSIS_ENDED, self.reader_ended))
        return lost

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            **{name: getattr(self, name) for name in _SHOWN},
            "range": self.range_id,
            "cells": dict(self.cells),
            "requests_in_all": self.requests,
            "flows": [
                {**dict(zip(_OF_FLOW, key, strict=True)), "to": asdict(to)}
                for key, to in self.flows.items()
            ],
            **{name: asdict(getattr(self, name)) for name in _COUNTED},
            "reasons": [reason.to_json() for reason in self.reasons],
            "counters": dict(self.counters),
        }


class RangeGatherer:
    """The ranges of a run, event by event."""

    def __init__(self) -> None:
        self.found: dict[str, RangeFindings] = {}
        self._probes = ProbeTracker()

    def take(self, line: Line) -> None:
        """One event more."""
        self._probes.take(line)
        range_id, is_cell = line.data.get("range"), line.cell is not None
        if not isinstance(range_id, str) or (is_cell and line.kind is not Kind.CELL_PLANNED):
            return
        found = self.found.setdefault(range_id, RangeFindings(range_id=range_id))
        if line.cell is not None:
            found.cells[line.cell] = self._probes.ranges[line.cell][1]
        elif line.kind is Kind.NETWORK_FLOW:
            data = line.data
            # Without an address it stands for many, Belljar's own among them.
            if data["address"] and not self._probes.is_probed(range_id, data["cell"]):
                key = tuple(word(data[name]) for name in _OF_FLOW)
                if key not in found.flows and len(found.flows) >= _MAX_KINDS:
                    # Counted on, under a name of no cell: no packet is missing from the sum.
                    key = ("", key[1], "others", "")
                found.flows.setdefault(key, Counts()).add(place(data), times_of(data))
        else:
            _add(found, line)


def _add(found: RangeFindings, line: Line) -> None:
    data = line.data
    # Of a raw connection its end counts, not its pieces.
    is_part = data.get("phase") in ("opened", "data")
    if line.kind is Kind.NETWORK_HTTP or (line.kind is Kind.NETWORK_STREAM and not is_part):
        found.requests += 1
        found.requests_between_cells += is_between_cells(data)
        found.requests_refused += data["verdict"] != "allowed"
    match line.kind:
        case Kind.RANGE_OPENING:
            if directory := data.get("directory"):
                found.packets = f"ranges/{word(directory)}/packets.pcapng"
        case Kind.RANGE_OPENED:
            found.opened = True
        case Kind.RANGE_FAILED:
            is_breach = data["error"] == "ContainmentBreach"
            if is_breach or not found.failed:
                found.failed = printable(str(data["reason"]), max_chars=400)
            found.breached |= is_breach  # whatever came after it
        case Kind.RANGE_DESTROYED:
            found.take_end(data)
            counters = data.get("counters", {})
            found.counters = {
                str(name): count for name, count in counters.items() if isinstance(count, int)
            }
        case Kind.NETWORK_DNS:
            name, answer = str(data["name"]), str(data["answer"])
            if answer[:1].isdigit():
                found.names_found.add(name)
            # Answers about a name that exists: nothing was refused.
            elif answer not in {"NODATA", "SOA", "NS"}:
                shown = name if answer == "NXDOMAIN" else f"{name} ({answer})"
                found.names_refused.add(shown, times_of(data))
        case Kind.NETWORK_TLS if data["verdict"] != "allowed":
            # Behind an allowed one: its handshake failed, so that nobody read what followed
            found.without_secrets.discard(size_of(data.get("connection")))
            found.tls_refused.add(f"{data['sni'] or place(data)} ({data['reason']})")
        case Kind.NETWORK_TLS:
            found.without_secrets.add(size_of(data.get("connection")))
        case Kind.NETWORK_CONNECTION:
            # Without the secrets of a connection, its packets prove nothing.
            for body in line.bodies:
                if body.name == "secrets":
                    found.without_secrets.discard(data["connection"])
                    found.missing_bytes += body.total_bytes - body.kept_bytes
            # Of runs whose gateway counted bytes that were in no event.
            found.missing_bytes += size_of(data.get("missing_bytes"))
        case Kind.NETWORK_ATTEMPT:
            found.attempts.add(f"{data['what']} ({data['stand_in']})")
        case Kind.LIMIT_HIT if data["limit"] == "traffic_analysis_packets":
            found.unread_packets += times_of(data)
        case Kind.LIMIT_HIT if data["limit"] == "traffic_analysis_reader":
            found.reader_ended = printable(str(data.get("effect")), max_chars=600)
        case Kind.LIMIT_HIT:
            found.limits.add(str(data["limit"]), times_of(data))
        case _:
            pass
