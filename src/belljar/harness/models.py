"""The model cells of an evaluation: opened once for each file, and closed with the last task."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from belljar.errors import BelljarError, CellError, PolicyError
from belljar.model.serve import ModelCell, open_model
from belljar.policy.limits import Tier, demanded_tier
from belljar.policy.loaded import with_tier
from belljar.units import printable
from belljar.waiting import print_status

if TYPE_CHECKING:
    from belljar.ledger.rundir import RunDirectory
    from belljar.policy.loaded import LoadedPolicy


class ModelCells:
    """Mutable, owned by one event loop. `tier`: the highest of the samples' policies so far."""

    def __init__(self) -> None:
        self.tier: Tier | None = None
        self.opened: dict[str, ModelCell | BelljarError] = {}
        self._owners: list[AsyncExitStack] = []
        self._opening = anyio.Lock()

    def need(self, tier: Tier) -> None:
        """Note the tier of a sample. Raises `PolicyError` when a model cell runs in a lower one."""
        for served in self.opened.values():
            if not isinstance(served, BelljarError) and Tier(served.cell.tier) < tier:
                what = f"the model cell's tier, `{served.cell.tier}`, is less than `{tier}`"
                hint = f"write `tier: {tier}` into the model's policy"
                raise PolicyError(what, where=printable(served.policy.source), hint=hint)
        self.tier = tier if self.tier is None else max(self.tier, tier)

    async def get(self, policy: LoadedPolicy, run: RunDirectory, home: Path | None) -> ModelCell:
        """The model cell of this policy, opened if needed. Raises as `open_model`.

        One that could not be opened is not tried again.
        """
        # Samples that begin together must share one cell.
        async with self._opening:
            if (found := self.opened.get(policy.source)) is None:
                print_status(f"belljar: starting the model cell of {printable(policy.source)}")
                own = demanded_tier(policy.policy.risk, policy.policy.tier)
                # At least the tier of the samples so far: `need` refuses a lower one.
                raised = with_tier(policy, max(own, self.tier or own))
                owner = AsyncExitStack()

                def report_end(error: CellError) -> None:
                    what = printable(f"{error.where}: {error.what}")
                    print_status(f"belljar: the model answers no more: {what}")

                opening = open_model(raised, run=run, home=home, on_end=report_end)
                try:
                    found = await owner.enter_async_context(opening)
                    print_status(f"belljar: the model answers, in {found.cell!r}")
                except BelljarError as error:
                    found = error
                self._owners.append(owner)
                self.opened[policy.source] = found
            if isinstance(found, BelljarError):
                raise found
            return found

    async def close(self) -> list[BelljarError]:
        """Destroy them with proof; what goes wrong with each is the run's."""
        self.opened.clear()
        errors: list[BelljarError] = []
        while self._owners:
            with anyio.CancelScope(shield=True):
                try:
                    await self._owners.pop().aclose()
                except BelljarError as error:
                    errors.append(error)
                except Exception as error:  # noqa: BLE001 - the others are destroyed, too
                    errors.append(CellError(f"{type(error).__name__}: {error}"))
        return errors
