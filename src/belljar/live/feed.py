"""Reads the ledgers of runs that are being written, and keeps the latest lines in a ring."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from belljar.errors import LedgerError
from belljar.events import Kind
from belljar.isolation import list_cells
from belljar.isolation.hold import read_hold
from belljar.ledger import Line
from belljar.ledger.files import LEDGER, open_beneath, open_directory
from belljar.ledger.listing import run_ids
from belljar.ledger.rundir import RUNS
from belljar.ledger.schema import MAX_LINE_BYTES
from belljar.ledger.verification import parse_line
from belljar.ledger.writer import is_being_written
from belljar.report.timeline import shown

# Some 10 MiB of text: twenty seconds of a thousand events a second.
RING_LINES: Final = 20_000
# Of one run in one look: a flood in one run holds no other up.
LINES_PER_LOOK: Final = 2_000
_MAX_TEXT_CHARS: Final = 400
_MAX_RUNS: Final = 100
_MAX_ENDED: Final = 20
_SIGNALS: Final = ("decoy.touched", "decoy.taken", "decoy.used", "decoy.sent", "decoy.carried")
_ALERTS: Final = (*_SIGNALS, "guard.hit", "protocol.violation", "kill.triggered", "cell.failed")
# Said in other columns, or of no use to whoever watches.
_LEFT_OUT: Final = {"op", "env_names", "env_sha256", "findings", "headers", "containment", "range"}


@dataclass(slots=True)
class CellView:
    """One cell of a run that lasts, as its record says."""

    cell: str
    tier: str = ""
    sample: str = ""
    phase: str = "planned"
    command: str = ""
    commands: int = 0
    requests: int = 0
    refused: int = 0
    signals: int = 0


@dataclass(slots=True)
class RunView:
    """One run that is being written."""

    run: str
    what: str = ""
    started: str = ""
    events: int = 0
    samples: int = 0
    finished: int = 0
    phase: str = "running"
    cells: dict[str, CellView] = field(default_factory=dict)
    ranges: dict[str, list[str]] = field(default_factory=dict)

    def take(self, line: Line) -> None:
        """Count one event."""
        self.events += 1
        data = line.data
        if line.kind is Kind.RUN_STARTED:
            self.what = shown(data.get("what") or " ".join(map(str, data["argv"])), max_chars=200)
            self.started = line.time
        elif line.kind is Kind.RUN_EVALUATED:
            self.phase = "being judged"
        elif line.kind is Kind.SAMPLE_FINISHED:
            self.finished += 1
        for view in self._views(line):
            _count(view, line)
        if line.kind is Kind.SAMPLE_STARTED:
            self.samples += 1
        elif line.kind is Kind.CELL_DESTROYED and line.cell:
            self.cells.pop(line.cell, None)

    def _views(self, line: Line) -> list[CellView]:
        """Return the cell that the event is of; of a range's event, those of its cells."""
        place = str(line.data.get("range") or "")
        if line.cell and line.kind is Kind.CELL_PLANNED:
            self.cells[line.cell] = CellView(line.cell)
            self.ranges.setdefault(place, []).append(line.cell)
        names = [line.cell] if line.cell else self.ranges.get(place, [])
        return [self.cells[name] for name in names if name in self.cells][:1]


def _count(view: CellView, line: Line) -> None:
    data = line.data
    if line.kind is Kind.CELL_PLANNED:
        view.tier = shown(data["tier"], max_chars=20)
    elif line.kind is Kind.SAMPLE_STARTED:
        view.sample = shown(data["sample"], max_chars=80)
    elif line.kind is Kind.EXEC_STARTED:
        view.commands += 1
        words = " ".join(map(str, data["argv"])).split()
        view.command = shown(" ".join(words), max_chars=200)
    elif line.kind.value.startswith("network."):
        is_refused = data.get("verdict") in ("refused", "dropped")
        view.refused += is_refused
        view.requests += line.kind is Kind.NETWORK_HTTP and not is_refused
    view.signals += line.kind.value in _SIGNALS
    phases: Mapping[Kind, str] = {
        Kind.CELL_STARTED: "started",
        Kind.CELL_CLONED: "started",
        Kind.PROBE_STARTED: "probing",
        Kind.SAMPLE_RUNNING: "running",
        Kind.EXEC_STARTED: "running",
        Kind.SAMPLE_FINISHED: "finished",
        Kind.CELL_DESTROYING: "ending",
        Kind.CELL_FAILED: "failed",
    }
    view.phase = phases.get(line.kind, view.phase)


@dataclass(slots=True)
class _Tail:
    """An open ledger, and how far it was read."""

    file: BinaryIO
    view: RunView
    rest: bytes = b""

    def lines(self) -> list[Line]:
        """Return what was added; a half line waits for its end, what is no event is skipped."""
        found: list[Line] = []
        while len(found) < LINES_PER_LOOK and (raw := self.file.readline(MAX_LINE_BYTES + 1)):
            self.rest += raw
            if not raw.endswith(b"\n") and len(self.rest) <= MAX_LINE_BYTES:
                break
            with suppress(ValueError):
                found.append(parse_line(self.rest[:-1]))
            self.rest = b""
        return found


class Feed:
    """All runs of a store that are being written, and the latest lines of all of them.

    Attributes:
        first, last: numbers of the oldest line in the ring, and of the next that comes.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.first = self.last = 0
        self._ring: deque[str] = deque(maxlen=RING_LINES)
        self._tails: dict[str, _Tail] = {}
        self._ended: deque[RunView] = deque(maxlen=_MAX_ENDED)

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the ledgers."""
        while self._tails:
            self._tails.popitem()[1].file.close()

    def look(self) -> None:
        """Read what was added everywhere. Blocks for a moment. Raises nothing for a broken run."""
        for run_id in run_ids(self.home)[-_MAX_RUNS:]:
            if run_id not in self._tails:
                self._begin(run_id)
        for run_id, tail in list(self._tails.items()):
            # Before its lines are read: what is written between the two is read the next time
            ends = not self._is_written(run_id)
            lines = tail.lines()
            for line in lines:
                tail.view.take(line)
                self._add(run_id, line)
            if ends and len(lines) < LINES_PER_LOOK:
                self._tails.pop(run_id).file.close()
                tail.view.phase = "ended"
                tail.view.cells.clear()
                self._ended.append(tail.view)

    def _begin(self, run_id: str) -> None:
        if self._is_written(run_id):
            try:
                with open_directory(self.home / RUNS / run_id) as root:
                    self._tails[run_id] = _Tail(open_beneath(root, LEDGER), RunView(run_id))
            except (OSError, LedgerError):
                return  # not yet made, or no run of ours

    def _is_written(self, run_id: str) -> bool:
        try:
            return is_being_written(self.home / RUNS / run_id)
        except OSError:
            return False

    def _add(self, run_id: str, line: Line) -> None:
        words = (
            f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
            for name, value in line.data.items()
            if name not in _LEFT_OUT
        )
        self._ring.append(
            json.dumps(
                {
                    "run": run_id,
                    "seq": line.seq,
                    "time": line.time[11:23],
                    "cell": shown(line.cell or str(line.data.get("cell") or ""), max_chars=40),
                    "kind": line.kind.value,
                    "text": shown(" ".join(words), max_chars=_MAX_TEXT_CHARS),
                    "guest": line.trust == "guest-reported",
                    "alert": line.kind.value in _ALERTS
                    or line.data.get("verdict") in ("refused", "dropped", "breached"),
                }
            )
        )
        self.last += 1
        self.first = self.last - len(self._ring)

    def since(self, cursor: int, *, limit: int = LINES_PER_LOOK) -> tuple[list[str], int, int]:
        """Return lines from `cursor` on as JSON, the next cursor, and how many are gone already."""
        missed = max(0, self.first - cursor)
        begin = max(cursor, self.first)
        end = min(self.last, begin + limit)
        found = [self._ring[number - self.first] for number in range(begin, end)]
        return found, end, missed

    def state(self) -> dict[str, Any]:
        """Return runs, their cells and what each uses now, as JSON values."""
        used = {cell.cell_id: cell for cell in list_cells(self.home)}
        held = read_hold(self.home)
        runs = []
        for each in (*(tail.view for tail in self._tails.values()), *reversed(self._ended)):
            view = asdict(each)
            view["cells"] = [
                {
                    **cell,
                    "memory_bytes": known.memory_bytes if known else None,
                    "memory_limit_bytes": known.about.memory_limit_bytes if known else 0,
                    "cpu_s": known.cpu_s if known else None,
                    "age_s": round(known.started_s_ago, 1) if known else 0,
                }
                for cell in view["cells"].values()
                for known in (used.get(cell["cell"]),)
            ]
            runs.append(view)
        return {"runs": runs, "held": shown(held) if held else "", "cells": len(used)}
