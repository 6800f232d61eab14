"""Reads unfinished runs' ledgers; keeps their latest lines."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from belljar.errors import LedgerError
from belljar.events import Kind
from belljar.isolation.hold import read_hold
from belljar.isolation.reap import list_cells
from belljar.ledger.files import is_being_written
from belljar.ledger.listing import Tail, run_ids
from belljar.ledger.rundir import RUNS
from belljar.ledger.schema import Line
from belljar.report.reading import ProbeTracker
from belljar.report.timeline import EXCHANGES, Edges, count_edge, details, shown

# At most some 20 MiB of text: twenty seconds of a thousand events a second.
RING_LINES: Final = 20_000
# Of one run in one look: a flood in one run holds no other up.
LINES_PER_LOOK: Final = 2_000
# A guest chooses words, and a browser holds thousands of lines of them.
_MAX_TEXT_CHARS: Final = 400
# A store may have thousands that ended; the page is about those that last.
_MAX_RUNS: Final = 100
# So that a run that ends is still seen to have ended.
_MAX_ENDED: Final = 20
_SIGNALS: Final = ("decoy.touched", "decoy.taken", "decoy.used", "decoy.sent", "decoy.carried")
# What the page shows first.
_ALERTS: Final = (*_SIGNALS, "guard.hit", "protocol.violation", "kill.triggered", "cell.failed")


@dataclass(slots=True)
class CellView:
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
    run: str
    what: str = ""
    started: str = ""
    events: int = 0
    phase: str = "running"
    cells: dict[str, CellView] = field(default_factory=dict)
    _samples: dict[object, bool] = field(default_factory=dict)  # whether each has ended
    edges: Edges = field(default_factory=Edges)
    _probes: ProbeTracker = field(default_factory=ProbeTracker)

    def take(self, line: Line) -> None:
        self.events += 1
        self._probes.take(line)
        data = line.data
        if line.kind is Kind.RUN_STARTED:
            self.what = shown(data.get("what") or " ".join(map(str, data["argv"])), max_chars=200)
            self.started = line.time
        elif line.kind is Kind.RUN_EVALUATED:
            self.phase = "being judged"
        elif line.kind is Kind.CELL_PLANNED and line.cell:
            self.cells[line.cell] = CellView(line.cell)
        elif line.kind.value.startswith("sample."):
            # Each cell of a sample's range records its start and its end: they are one sample
            key = tuple(str(data.get(name)) for name in ("sample", "epoch", "task", "uuid"))
            has_ended = line.kind is Kind.SAMPLE_FINISHED
            self._samples[key] = self._samples.get(key, False) or has_ended
        is_probed = self._probes.is_probed(data.get("range"))  # then it is Belljar's own
        if line.kind in EXCHANGES and not is_probed:
            count_edge(self.edges, line)
        cell = line.cell or self._probes.cell_of(data.get("range"), data.get("cell"))
        if (view := self.cells.get(cell)) is not None:
            _count(view, line, is_probed=is_probed)
        if line.kind is Kind.CELL_DESTROYED:
            self.cells.pop(line.cell or "", None)

    def document(self) -> dict[str, Any]:
        names = ("run", "what", "started", "events", "phase")
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        found |= {"begun": len(self._samples), "finished": sum(self._samples.values())}
        found["cells"] = [asdict(cell) for cell in self.cells.values()]
        found["edges"] = [[*edge, count] for edge, count in self.edges.items()]
        return found


def _count(view: CellView, line: Line, *, is_probed: bool) -> None:
    data = line.data
    if line.kind is Kind.CELL_PLANNED:
        view.tier = shown(data["tier"], max_chars=20)
    elif line.kind is Kind.SAMPLE_STARTED:
        view.sample = shown(data["sample"], max_chars=80)
    elif line.kind is Kind.EXEC_STARTED:
        view.commands += 1
        words = " ".join(map(str, data["argv"])).split()
        view.command = shown(" ".join(words), max_chars=200)
    elif line.kind.value.startswith("network.") and not is_probed:
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


class Feed:
    """The runs of a store that are being written, and the latest lines of all. Thread-safe.

    `first`, `last`: numbers of the oldest line in the ring, and of the next that comes.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.first = self.last = 0
        self._ring: deque[str] = deque(maxlen=RING_LINES)
        self._tails: dict[str, tuple[Tail, RunView]] = {}
        self._ended: deque[RunView] = deque(maxlen=_MAX_ENDED)
        self._lock = Lock()
        self._used: dict[str, tuple[float, float]] = {}  # cell → processor seconds, when

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_error: object) -> None:
        while self._tails:
            self._tails.popitem()[1][0].close()

    def look(self) -> None:
        """Read all additions. It blocks briefly; a broken run is marked."""
        for run_id in run_ids(self.home)[-_MAX_RUNS:]:
            if run_id not in self._tails:
                self._begin(run_id)
        for run_id, (tail, view) in list(self._tails.items()):
            # Before its lines are read: what is written between the two is read the next time
            ends, phase = not self._is_written(run_id), "ended"
            try:
                lines = tail.lines(LINES_PER_LOOK)
                with self._lock:
                    for line in lines:
                        view.take(line)
                        self._add(run_id, line)
            except Exception as error:  # noqa: BLE001 - one broken record hides no other run
                lines, ends, phase = [], True, f"can't be read: {type(error).__name__}"
            if ends and len(lines) < LINES_PER_LOOK:
                with self._lock:
                    tail.close()
                    self._tails.pop(run_id, None)  # the server may have ended meanwhile
                    view.phase = phase
                    view.cells.clear()  # nothing of it lasts any more
                    self._ended.append(view)

    def _begin(self, run_id: str) -> None:
        if any(view.run == run_id for view in self._ended) or not self._is_written(run_id):
            return
        with suppress(OSError, LedgerError):  # not yet made, or no run of ours
            tail = Tail(self.home / RUNS / run_id)
            with self._lock:
                self._tails[run_id] = tail, RunView(run_id)

    def _is_written(self, run_id: str) -> bool:
        with suppress(OSError):
            return is_being_written(self.home / RUNS / run_id)
        return False

    def _add(self, run_id: str, line: Line) -> None:
        self._ring.append(
            json.dumps(
                {
                    "run": run_id,
                    "seq": line.seq,
                    "time": line.time[11:23],
                    "cell": shown(line.cell or str(line.data.get("cell") or ""), max_chars=40),
                    "kind": line.kind.value,
                    "text": details(line.data)[:_MAX_TEXT_CHARS],
                    "guest": line.trust == "guest-reported",
                    "alert": line.kind.value in _ALERTS
                    or line.data.get("verdict") in ("refused", "dropped", "breached"),
                }
            )
        )
        self.last += 1
        self.first = self.last - len(self._ring)

    def since(self, cursor: int, *, limit: int = LINES_PER_LOOK) -> tuple[list[str], int, int]:
        """Return lines from `cursor` on, the next cursor, the lost count."""
        with self._lock:
            missed = max(0, self.first - cursor)
            begin = max(cursor, self.first)
            end = min(self.last, begin + limit)
            return [self._ring[each - self.first] for each in range(begin, end)], end, missed

    def state(self) -> dict[str, Any]:
        """Return runs, their cells and what each uses now, as JSON values.

        A processor's share is the one since the last call.
        """
        used = {cell.cell_id: cell for cell in list_cells(self.home)}
        held = read_hold(self.home)
        with self._lock:
            views = (*(view for _, view in self._tails.values()), *reversed(self._ended))
            runs = [view.document() for view in views]
        before, now = self._used, time.monotonic()
        self._used = {name: (cell.cpu_s or 0.0, now) for name, cell in used.items()}
        for cell in (cell for run in runs for cell in run["cells"]):
            known, share = used.get(cell["cell"]), None
            if known is not None and known.cpu_s is not None and cell["cell"] in before:
                last_s, when = before[cell["cell"]]
                share = round(max(0.0, 100 * (known.cpu_s - last_s) / (now - when)))
            cell["memory_bytes"] = known.memory_bytes if known else None
            cell["cpu_percent"] = share
            cell["age_s"] = round(known.started_s_ago, 1) if known else 0
        return {"runs": runs, "held": shown(held) if held else "", "cells": len(used)}
