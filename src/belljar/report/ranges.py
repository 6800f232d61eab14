"""Gathers each range's record, and its missing evidence. Pure."""

from __future__ import annotations

from typing import Any, Final

from belljar.dataclass import dataclass, field
from belljar.events import Kind
from belljar.ledger.schema import Line
from belljar.report.reading import is_between_cells, size_of, times_of, word
from belljar.report.reasons import Ending, Reason, ReasonCode
from belljar.units import printable

# Counters of `range.destroyed` that are missing evidence.
_COUNTED_LOST: Final = {
    "packets_not_recorded": ReasonCode.PACKETS_NOT_RECORDED,
    "logs_lost": ReasonCode.FLOWS_NOT_RECORDED,
    "unreported_at_end": ReasonCode.EVENTS_CUT_AT_END,
}


@dataclass(slots=True, kw_only=True)
class RangeFindings(Ending):
    """The ledger says this of one range.

    `cells` are names by id. `packets` is the path of the packet record.
    `requests` counts connections, too: to stand-ins, upstreams and other cells.
    `without_secrets` are numbers of TLS connections; `missing_bytes` lack of their secrets.
    Of older runs, `missing_bytes` counts what no event had, too;
    `unread_packets`: between cells; `reader_ended`: why their reader stopped early.
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
    failed: str = ""
    breached: bool = False
    opened: bool = False
    counters: dict[str, int] = field(default_factory=dict)

    def _reason(self, code: ReasonCode, detail: str) -> Reason:
        return Reason(code=code, where=f"range {self.range_id}", detail=detail)

    @property
    def reasons(self) -> list[Reason]:
        return [*self.end_reasons, *self.lost]

    @property
    def end_reasons(self) -> list[Reason]:
        """List reasons even for an unused range: death, or an unproven end."""
        code = ReasonCode.RANGE_BREACHED if self.breached else ReasonCode.RANGE_FAILED
        found = [self._reason(code, self.failed)] if self.failed or self.breached else []
        return [*found, *self.reasons_of_end("range", self.range_id)]

    @property
    def lost(self) -> list[Reason]:
        """List missing evidence."""
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
        shown = ("packets", "requests", "requests_between_cells", "requests_refused")
        return {
            **{name: getattr(self, name) for name in shown},
            "range": self.range_id,
            "cells": dict(self.cells),
            "reasons": [reason.to_json() for reason in self.reasons],
            "counters": dict(self.counters),
        }


class RangeGatherer(dict[str, RangeFindings]):
    def take(self, line: Line) -> None:
        range_id = line.data.get("range")
        if isinstance(range_id, str) and (line.cell is None or line.kind is Kind.CELL_PLANNED):
            found = self.setdefault(range_id, RangeFindings(range_id=range_id))
            if line.cell is None:
                _add(found, line)
            else:
                found.cells[line.cell] = str(line.data.get("name") or "")


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
            counters = data.get("counters", {}).items()
            found.counters = {name: count for name, count in counters if isinstance(count, int)}
        case Kind.NETWORK_TLS if data["verdict"] == "allowed":
            found.without_secrets.add(size_of(data.get("connection")))
        case Kind.NETWORK_TLS:
            # Behind an allowed one: its handshake failed, so that nobody read what followed
            found.without_secrets.discard(size_of(data.get("connection")))
        case Kind.NETWORK_CONNECTION:
            # Without the secrets of a connection, its packets prove nothing.
            for body in line.bodies:
                if body.name == "secrets":
                    found.without_secrets.discard(data["connection"])
                    found.missing_bytes += body.total_bytes - body.kept_bytes
            # Of runs whose gateway counted bytes that were in no event.
            found.missing_bytes += size_of(data.get("missing_bytes"))
        case Kind.LIMIT_HIT if data["limit"] == "traffic_analysis_packets":
            found.unread_packets += times_of(data)
        case Kind.LIMIT_HIT if data["limit"] == "traffic_analysis_reader":
            found.reader_ended = printable(str(data.get("effect")), max_chars=600)
        case _:
            pass
