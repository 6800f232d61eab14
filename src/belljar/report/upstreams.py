"""What of a run went to something real, gathered from its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any

from belljar.dataclass import dataclass
from belljar.events import Kind
from belljar.ledger import Line
from belljar.units import printable


@dataclass(slots=True, kw_only=True)
class UpstreamUse:
    """One real host, over all ranges of a run.

    `connections` counts dials that were not refused, those to which nobody answered (`failed`) too.
    """

    host: str
    reasons: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    connections: int = 0
    failed: int = 0
    refused: int = 0
    cut: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    def sentence(self) -> str:
        """For a person; escaped, since a compromised gateway may have chosen the host."""
        there = f" ({', '.join(self.addresses)})" if self.addresses else ""
        more = [
            f", {count} {what}"
            for count, what in (
                (self.failed, "failed"),
                (self.refused, "refused"),
                (self.cut, "cut off"),
            )
            if count
        ]
        why = f". Why: {' / '.join(self.reasons)}" if self.reasons else ""
        said = (
            f"REAL network: {self.host or 'something not planned'}{there}: {self.connections} "
            f"connection(s)"
        )
        return printable(said + "".join(more) + why, max_chars=600)


class UpstreamGatherer:
    """The real hosts that were dialled, or refused to be, in the order in which they appear; event
    by event.
    """

    def __init__(self) -> None:
        self.found: dict[str, UpstreamUse] = {}

    def take(self, line: Line) -> None:
        """One event more."""
        if line.kind is Kind.NETWORK_UPSTREAM:
            host = str(line.data["host"])
            use = self.found.setdefault(host, UpstreamUse(host=host))
            data = line.data
            use.connections += data["verdict"] == "dialled"
            use.failed += data["verdict"] == "failed"
            use.refused += data["verdict"] == "refused"
            use.cut += data["verdict"] == "cut"
            for known, new in (
                (use.reasons, str(data["reason"])),
                (use.addresses, str(data["address"])),
            ):
                if new and new not in known:
                    known.append(new)


def gather_upstreams(lines: Iterable[Line]) -> tuple[UpstreamUse, ...]:
    """The real hosts of a run, out of all of its events. Empty: nothing real was asked for."""
    gatherer = UpstreamGatherer()
    for line in lines:
        gatherer.take(line)
    return tuple(gatherer.found.values())
