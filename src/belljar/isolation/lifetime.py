"""A cell's lifetime, the same in every tier: what is recorded of it, what it holds of the store,
and that it ends. And how a signal is called.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import TypeVar

import anyio

from belljar.errors import BelljarError
from belljar.events import Event, JsonValue, Kind, Recorder
from belljar.isolation.hold import Order
from belljar.isolation.live import Live
from belljar.isolation.survivors import Destruction

LiveT = TypeVar("LiveT", bound=Live)


@asynccontextmanager
async def recorded_lifetime(
    recorder: Recorder,
    cell_id: str,
    planned: Mapping[str, JsonValue],
    make: Callable[[ExitStack], Awaitable[LiveT]],
) -> AsyncIterator[LiveT]:
    """The cell that `make` makes, destroyed when the block is left, however it is left; planned and
    failed on record, before and after.

    What `make` puts on its stack is held until the cell is gone. No task group or cancel scope is
    open across the yield.
    """
    recorder.record(Event(kind=Kind.CELL_PLANNED, cell_id=cell_id, data=planned))
    with ExitStack() as held:
        try:
            live = await make(held)
        except BaseException as exc:
            record_failed(recorder, cell_id, exc)
            raise
        try:
            yield live
        finally:
            await live.destroy()


def record_failed(recorder: Recorder, cell_id: str, error: BaseException) -> None:
    """A cell could not be made: why, or that its maker was cancelled."""
    reason = (
        error.what
        if isinstance(error, BelljarError)
        else "cancelled"
        if not isinstance(error, Exception)
        else repr(error)
    )
    recorder.record(
        Event(
            kind=Kind.CELL_FAILED,
            cell_id=cell_id,
            data={"error": type(error).__name__, "reason": reason},
        )
    )


async def destroy_on_record(
    recorder: Recorder, live: Live, reason: str, destroy: Callable[[], Awaitable[Destruction]]
) -> Destruction:
    """Say that it is to be destroyed, destroy it, and say what was found; shielded from
    cancellation.

    A record that can't be written keeps nothing alive: its `LedgerError` is raised when the cell is
    gone.
    """
    cell_id, order = live.cell_id, live.killed()
    with anyio.CancelScope(shield=True):
        data: dict[str, JsonValue] = {"reason": reason if order is None else str(order)}
        try:
            # Else it is on record since before it acted
            if order is not None and not order.is_ours:
                recorder.record(tripped(order, cell_id))
            recorder.record(Event(kind=Kind.CELL_DESTROYING, cell_id=cell_id, data=data))
        finally:
            destruction = await destroy()
        record_destroyed(recorder, cell_id, destruction)
        if order is not None:
            recorder.record(_completed(order, cell_id, destruction))
    return destruction


def tripped(order: Order, cell_id: str | None = None, evidence: int | None = None) -> Event:
    """The kill switch was used. Pure."""
    data: dict[str, JsonValue] = {"scope": order.scope, "reason": order.reason, "rule": order.rule}
    if evidence is not None:
        data["evidence"] = evidence
    return Event(kind=Kind.KILL_TRIPPED, cell_id=cell_id, data=data)


def _completed(order: Order, cell_id: str, destruction: Destruction) -> Event:
    data: dict[str, JsonValue] = {
        "scope": order.scope,
        "cells": [cell_id],
        "failed": [] if destruction.clean else [cell_id],
        "duration_ms": round(destruction.duration_ms, 1),
    }
    return Event(kind=Kind.KILL_COMPLETED, cell_id=cell_id, data=data)


def record_destroyed(recorder: Recorder, cell_id: str, destruction: Destruction) -> None:
    """The destruction's proof, on record."""
    data: dict[str, JsonValue] = {
        "clean": destruction.clean,
        "survivors": list(destruction.survivors),
        "checked": list(destruction.looked_for),
        "not_checked": list(destruction.not_checked),
        "duration_ms": round(destruction.duration_ms, 1),
    }
    recorder.record(Event(kind=Kind.CELL_DESTROYED, cell_id=cell_id, data=data))


def signal_name(number: int) -> str:
    """`SIGKILL`; the number when the signal has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
