"""Reads fields of events as several collectors need them. Pure.

A guest chose what events quote: it is escaped and cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, Final, TypeVar

from belljar.events import Kind
from belljar.ledger.schema import Line
from belljar.units import printable

# A guest chooses words: a longer one would push everything else out of sight.
MAX_WORD_CHARS: Final = 120
K = TypeVar("K", bound=Hashable)
# Answers of the resolver by which a name doesn't exist for the cell.
NO_NAME: Final = frozenset({"NXDOMAIN", "REFUSED", "NOTIMP", "TOO MANY"})


class BoundedCounter(Counter[K]):
    def add(self, name: K, others: K, most: int, times: int = 1) -> None:
        """Count `name`, or `others` if it is new and there is no room."""
        self[name if name in self or len(self) < most else others] += times


class ProbeTracker:
    """Tracks which cells Belljar probes: what their ranges see is most likely its own.

    `ranges`: each cell's range, and its name there; "" for none.
    """

    def __init__(self) -> None:
        self.ranges: dict[str, tuple[str, str]] = {}
        self._cells: dict[tuple[str, str], str] = {}
        self._probed: set[str] = set()

    def take(self, line: Line) -> None:
        cell = line.cell or ""
        match line.kind:
            case Kind.CELL_PLANNED:
                data = line.data
                at = str(data.get("range") or ""), str(data.get("name") or "")
                self.ranges[cell], self._cells[at] = at, cell
            case Kind.PROBE_STARTED:
                self._probed.add(cell)
            # A cell that ends in its probe's midst is not probed any more: its name may come again
            case Kind.PROBE_COMPLETED | Kind.CELL_DESTROYED | Kind.CELL_FAILED:
                self._probed.discard(cell)
            case _:
                pass

    def cell_of(self, range_id: object, name: object) -> str:
        """Return a range's latest cell of this name, "" for none."""
        return self._cells.get((str(range_id), str(name)), "")

    def is_probed(self, range_id: object, name: object = None) -> bool:
        """Return whether this cell, or without a name any, is probed."""
        found = (self.ranges.get(cell) for cell in self._probed)
        return any(at and at[0] == range_id and name in (None, at[1]) for at in found)

    def is_of_probe(self, line: Line) -> bool:
        """Return whether a probed cell tried it."""
        is_packet = line.kind in (Kind.NETWORK_FLOW, Kind.NETWORK_DNS)
        return is_packet and self.is_probed(line.data.get("range"), line.data["cell"])


def word(value: object, max_chars: int = MAX_WORD_CHARS) -> str:
    return printable(str(value), max_chars=max_chars)


def size_of(value: object) -> int:
    """Return a count, also from decimal digits; 0 if invalid."""
    digits = str(value) if isinstance(value, int | str) else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0


def is_between_cells(data: Mapping[str, Any]) -> bool:
    """Return True for traffic between cells; older runs read the packet record."""
    return data.get("between_cells") is True or data.get("traffic_analysis") is True


def times_of(data: Mapping[str, Any]) -> int:
    """Return how many packets or refusals an event stands for."""
    return size_of(data.get("count")) or 1
