"""`host: {air_gap: required}`: held from a run's first cell to its end."""

from __future__ import annotations

from typing import Final

import anyio.to_thread

from belljar.cell.parts import refused
from belljar.errors import BelljarError
from belljar.ledger import RunDirectory
from belljar.policy import LoadedPolicy
from belljar.policy.limits import AirGap

_NAME: Final = "air gap"


async def hold_air_gap(run: RunDirectory, loaded: LoadedPolicy) -> None:
    """Check the air gap before the run's first cell of a policy that requires one, and watch it.

    Raises `HostError`, on record: a way beyond this host is there, can't be told, or appeared.
    """
    if loaded.policy.air_gap is not AirGap.REQUIRED:
        return
    from belljar.airgap.held import HeldAirGap  # late: few policies require one

    def hold() -> None:
        held = run.enter_once(_NAME, lambda: HeldAirGap(run.recorder), ends_on_record=True)
        held.raise_if_broken()

    try:
        await anyio.to_thread.run_sync(hold)
    except BelljarError as error:
        run.recorder.record(refused(loaded, error))
        raise


def end_air_gap(run: RunDirectory) -> None:
    """Record the last check, before the run is judged; nothing where no policy requires one."""
    held = run.shared(_NAME)
    if held is not None:
        held.end()
