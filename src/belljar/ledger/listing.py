"""Finds runs and reads their events for lists and people, unverified."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from belljar.dataclass import dataclass, replace
from belljar.errors import LedgerError
from belljar.events import Kind
from belljar.ledger.files import (
    LEDGER,
    MANIFEST,
    MANIFEST_PART,
    body_path,
    is_being_written,
    open_beneath,
    open_directory,
    read_raw,
)
from belljar.ledger.rundir import RUNS
from belljar.ledger.schema import MAX_LINE_BYTES, SPILLED, BodyRef, Line, check_data
from belljar.ledger.verification import parse_line, spilled_data

# The last event is small; one whose data fills a line is found as well as not.
_TAIL_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in a list, by its first and last event, unverified.

    `outcome`: as recorded, else `running`, `unfinished` (its process died) or `broken`.
    """

    run_id: str
    path: Path
    started: str | None = None
    kind: str = ""
    what: str = ""
    outcome: str = "broken"
    exit_code: int | None = None
    verdict: str = ""
    killed: str = ""


def run_ids(home: Path) -> list[str]:
    """Return the run directories under `home`, oldest first."""
    try:
        with os.scandir(home / RUNS) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def find_run(home: Path, ref: str) -> Path:
    """Return the directory of an id, a unique prefix, `last`, or a path.

    Raises `FileNotFoundError` for none or several.
    """
    if "/" in ref or ref in {".", ".."}:
        if not Path(ref).is_dir():
            raise FileNotFoundError(f"there is no run directory {ref}")
        return Path(ref)
    known = run_ids(home)
    meant = known[-1:] if ref == "last" else [name for name in known if name.startswith(ref)]
    if len(meant) != 1:
        raise FileNotFoundError(f"{len(meant)} runs under {home / RUNS} are named {ref}")
    return home / RUNS / meant[0]


def list_runs(home: Path, *, limit: int | None = None) -> tuple[list[RunSummary], int]:
    """Return the latest `limit` runs, oldest first, and the total count."""
    names = run_ids(home)
    latest = names if limit is None else names[-limit:]
    return [summarise(home / RUNS / name) for name in latest], len(names)


def summarise(run_dir: Path) -> RunSummary:
    """Summarise a run; a broken one raises nothing."""
    found = RunSummary(run_id=run_dir.name, path=run_dir)
    try:
        _, first = next(read_lines(run_dir), (0, ValueError("no events")))
        is_alive = is_being_written(run_dir)
        with open_directory(run_dir) as root, open_beneath(root, LEDGER) as file:
            # Read from the end, so that lists of large runs stay quick.
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).split(b"\n")
            # Else the last line has no end yet, or is longer than what was read.
            is_whole = len(lines) > 1 and not lines[-1]
            last = _event_or_why(root, lines[-2]) if is_whole else None
    except (OSError, ValueError, LedgerError):
        return found
    if isinstance(first, ValueError):
        return found
    started = first.data if first.kind is Kind.RUN_STARTED else {}
    found = replace(
        found,
        started=first.time,
        kind=str(started.get("kind", "")),
        what=str(started.get("what") or " ".join(started.get("argv", []))),
        outcome="running" if is_alive else "unfinished",
    )
    # After a crash between the final checkpoint and the rename it still has its first name.
    sealed = (run_dir / MANIFEST).exists() or (run_dir / MANIFEST_PART).exists()
    if not sealed or not isinstance(last, Line) or last.kind is not Kind.RUN_FINISHED:
        return found
    return replace(
        found,
        outcome=last.data["outcome"],
        exit_code=last.data["exit_code"],
        verdict=str(last.data.get("verdict", "")),
        killed=str(last.data.get("killed", "")),
    )


class IncompleteLineError(ValueError):
    """A line without its end: the last event of an ended run."""


def read_lines(run_dir: Path) -> Iterator[tuple[int, Line | ValueError]]:
    """Yield line number, and event or error, with spilled `data`. Raises as `read_raw`."""
    with open_directory(run_dir) as root:
        for number, raw, complete in read_raw(run_dir):
            cut = IncompleteLineError("incomplete: the event being written when the run ended")
            yield number, _event_or_why(root, raw) if complete else cut


def read_events(run_dir: Path) -> Iterator[Line]:
    """Yield the events in order; a half line at the end is skipped.

    Raises `OSError`, or `LedgerError` for a line or body that is not an event.
    """
    for number, event in read_lines(run_dir):
        if isinstance(event, IncompleteLineError):
            return  # the last of a ledger that was not finished
        if isinstance(event, ValueError):
            what = f"not an event: {event}"
            hint = "run `belljar ledger verify` on it"
            raise LedgerError(what, where=f"{run_dir / LEDGER}:{number}", hint=hint)
        yield event


class Tail:
    """The events of a ledger that may still be written, as they come; unverified.

    Raises `OSError`, `LedgerError` without a ledger.
    """

    def __init__(self, run_dir: Path) -> None:
        with ExitStack() as opened:
            self._root = opened.enter_context(open_directory(run_dir))
            self._file = opened.enter_context(open_beneath(self._root, LEDGER))
            self.close = opened.pop_all().close
        self._rest = b""

    def lines(self, limit: int) -> list[Line]:
        """Return new lines; a half line waits, invalid ones are skipped."""
        found: list[Line] = []
        while len(found) < limit and (raw := self._file.readline(MAX_LINE_BYTES + 1)):
            self._rest += raw
            # A line without an end that is longer than any may be is skipped, not collected.
            if not raw.endswith(b"\n") and len(self._rest) <= MAX_LINE_BYTES:
                break
            line = _event_or_why(self._root, self._rest.removesuffix(b"\n"))
            found += [] if isinstance(line, ValueError) else [line]
            self._rest = b""
        return found


def read_body(run_dir: Path, body: BodyRef, *, max_bytes: int) -> bytes:
    """Read at most `max_bytes`. Raises `OSError`, `LedgerError`: missing or changed."""
    if body.stored is None:
        return b""
    path = body_path(body.stored)
    try:
        with open_directory(run_dir) as root, open_beneath(root, path) as file:
            content = file.read(max_bytes)
    except FileNotFoundError as error:
        raise LedgerError("its bytes are missing", where=path) from error
    if len(content) < max_bytes and hashlib.sha256(content).hexdigest() != body.stored:
        raise LedgerError("its bytes were changed", where=path)
    return content


def _event_or_why(root: int, raw: bytes) -> Line | ValueError:
    try:
        event = parse_line(raw)
        if event.data == SPILLED:
            event = replace(event, data=spilled_data(root, event))
            check_data(event.kind, event.data)
        return event
    except ValueError as error:
        return error
    except (OSError, LedgerError) as error:
        return ValueError(f"its data can't be read: {error}")
