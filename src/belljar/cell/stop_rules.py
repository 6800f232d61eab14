"""The policy's `on`: recorded events that trigger the kill switch.

This recorder is below every other of a cell or range, so that it sees each event. A stop is on
record before it acts, and acts even if recording fails.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belljar.errors import ContainmentBreach, first_of
from belljar.events import Event, Kind, Recorder
from belljar.isolation.hold import KillOrder, give_order, new_order, run_order_kept
from belljar.isolation.kill import choose, halt_in_background, of_run, order_all, strike
from belljar.policy.guarding import Stop, Trigger
from belljar.process import urgently
from belljar.signals.observe import StopRequest, stop_of, stop_of_breach
from belljar.store.journal import Journal, JournalEntry

if TYPE_CHECKING:
    from belljar.ledger.rundir import RunDirectory
    from belljar.policy.model import Policy

# From the narrowest to the widest.
_WIDTHS: Final = (Stop.SAMPLE, Stop.RUN, Stop.ALL)


class StopRulesRecorder:
    """Records an event, then applies the policy's `on`. It is thread-safe."""

    def __init__(
        self, inner: Recorder, *, run_id: str, home: Path, stops: Mapping[Trigger, Stop]
    ) -> None:
        self._inner, self._run_id, self._home, self._stops = inner, run_id, home, stops
        self._lock = threading.Lock()
        self._widest: Stop | None = None
        self.order: KillOrder | None = None

    def record(self, event: Event) -> int:
        """Apply the rules even to an unrecorded event."""
        number: int | None = None
        try:
            number = self._inner.record(event)
            return number
        finally:
            if (request := stop_of(event, number, self._stops)) is not None:
                self.stop(request)

    def stop(self, request: StopRequest) -> None:
        """Record and apply the stop; then raise the recorder's error."""
        with self._lock:
            before, width = self._widest, _WIDTHS.index(request.stop)
            if before is not None and width <= _WIDTHS.index(before):
                return
            self._widest = request.stop
        scope = request.stop.value.removeprefix("stop_")
        order = self.order = new_order(scope, request.reason, rule=request.rule)
        cell_id = request.name if request.name.startswith("c-") else None
        try:
            data = order.triggered(request.evidence)
            self._inner.record(Event(kind=Kind.KILL_TRIGGERED, cell_id=cell_id, data=data))
        finally:
            try:
                # Before the list: what is made meanwhile sees it, or is on the list
                if request.stop is Stop.RUN:
                    give_order(self._home, [self._run_id], order)
            finally:
                unread: list[str] = []
                try:
                    with urgently():
                        entries = self._entries(request, unread)
                        order_all(self._home, entries, order)
                        strike(entries)
                except BaseException:
                    self._widest = before  # the next one strikes
                    raise
                if unread:
                    self._widest = before
                halt_in_background(self._home, entries)

    def _entries(self, request: StopRequest, problems: list[str]) -> tuple[JournalEntry, ...]:
        journal = Journal(self._home)
        everything = journal.entries_now(problems)
        match request.stop:
            case Stop.ALL:
                return everything
            case Stop.RUN:
                ours = of_run(journal, everything, self._run_id, problems)
                return choose(everything, (*ours, request.name))
        return choose(everything, [request.name])


@contextmanager
def stop_rules(run: RunDirectory, policy: Policy, home: Path) -> Iterator[StopRulesRecorder]:
    """Apply the rules also to a breach that leaves the block."""
    rules = StopRulesRecorder(run.recorder, run_id=run.run_id, home=home, stops=policy.on)
    run.enter_once("kill order", partial(run_order_kept, home, run.run_id))
    try:
        yield rules
    except BaseException as error:
        breach = first_of(error, ContainmentBreach)
        if breach is not None and (request := stop_of_breach(breach.what, policy.on)) is not None:
            rules.stop(request)
        raise
