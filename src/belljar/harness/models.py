"""The model cells of an evaluation: opened once for each file, closed with the last task."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from belljar.errors import BelljarError, PolicyError
from belljar.harness.source import print_status
from belljar.model.serve import ModelCell, at_least, load_model, open_model
from belljar.policy import Tier
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.ledger import RunDirectory
    from belljar.policy import LoadedPolicy

PREFIX: Final = "belljar/"
"""Of a model's name on Inspect's command line; the rest is the file."""


class ModelCells:
    """Mutable, owned by one event loop. `tier`: the highest of the samples' policies so far."""

    def __init__(self) -> None:
        self.tier: Tier | None = None
        self._open: dict[str, ModelCell] = {}
        self._failed: dict[str, BelljarError] = {}
        self._stack = AsyncExitStack()
        self._opening = anyio.Lock()

    @property
    def is_open(self) -> bool:
        """True while a model cell runs."""
        return bool(self._open)

    def need(self, tier: Tier) -> None:
        """A sample runs in this tier. Raises `PolicyError` when a running model cell is in a lower
        one.
        """
        for served in self._open.values():
            if Tier(served.cell.tier) < tier:
                what = (
                    f"the model cell runs in tier `{served.cell.tier}`, which is less than this "
                    f"sample's, `{tier}`"
                )
                hint = f"write `tier: {tier}` into the model's policy"
                raise PolicyError(what, where=printable(served.policy.source), hint=hint)
        self.tier = tier if self.tier is None else max(self.tier, tier)

    async def get(self, policy: LoadedPolicy, run: RunDirectory, home: Path | None) -> ModelCell:
        """The model cell of this policy, opened if needed. Raises as `open_model`.

        One that could not be opened is not tried again.
        """
        async with self._opening:
            if (failed := self._failed.get(policy.source)) is not None:
                raise failed
            if (served := self._open.get(policy.source)) is None:
                raised = at_least(policy, self.tier)
                print_status(f"belljar: starting the model cell of {printable(policy.source)}")
                opening = open_model(raised, run=run, home=home)
                try:
                    served = await self._stack.enter_async_context(opening)
                except BelljarError as error:
                    self._failed[policy.source] = error
                    raise
                self._open[policy.source] = served
                print_status(f"belljar: the model answers, in {served.cell!r}")
            return served

    async def close(self) -> list[BelljarError]:
        """Destroy them with proof; what goes wrong is the run's."""
        self._open.clear()
        self._failed.clear()
        stack, self._stack = self._stack, AsyncExitStack()
        with anyio.CancelScope(shield=True):
            try:
                await stack.aclose()
            except BelljarError as error:
                return [error]
        return []


def named_models(model: object) -> list[str]:
    """The files of the models of `--model` that are Belljar's."""
    names = model.split(",") if isinstance(model, str) else []
    return [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]


def check_models(model: object, home: Path | None) -> None:
    """Refuse wrong models before anything starts. Raises `PolicyError`, `HostError`."""
    for name in named_models(model):
        load_model(Path(name), home=home)
