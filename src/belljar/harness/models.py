"""The models of an evaluation: whether a task has the one it needs; and model cells, opened once
for each file and closed with the last task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from belljar.errors import BelljarError, CellError, PolicyError
from belljar.harness.source import print_status
from belljar.model.serve import ModelCell, load_model, open_model
from belljar.policy import Tier, demanded_tier, with_tier
from belljar.units import printable

if TYPE_CHECKING:
    from inspect_ai import Task

    from belljar.harness.options import InspectOptions
    from belljar.ledger import RunDirectory
    from belljar.policy import LoadedPolicy

_PREFIX: Final = "belljar/"


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
            if (found := self.opened.get(policy.source)) is None:
                print_status(f"belljar: starting the model cell of {printable(policy.source)}")
                own = demanded_tier(policy.policy.risk, policy.policy.tier)
                raised = with_tier(policy, max(own, self.tier or own))
                owner = AsyncExitStack()
                opening = open_model(raised, run=run, home=home, on_end=_report_end)
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
        errors = []
        while self._owners:
            with anyio.CancelScope(shield=True):
                try:
                    await self._owners.pop().aclose()
                except BelljarError as error:
                    errors.append(error)
        return errors


def _report_end(error: CellError) -> None:
    print_status(f"belljar: the model answers no more: {printable(f'{error.where}: {error.what}')}")


def check_models(names: Iterable[str], home: Path | None) -> list[LoadedPolicy]:
    """The policies of those that run in a cell. Raises `PolicyError`, `HostError`: one is wrong."""
    files = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
    return [load_model(Path(file), home=home) for file in files]


# Inspect's own solvers that call the evaluated model, unless they are given one
_CALL_MODEL: Final = frozenset(
    {"generate", "multiple_choice", "self_critique", "basic_agent", "react"}
)


def check_model(options: InspectOptions, tasks: Iterable[Task]) -> None:
    """Refuse a task whose solver calls a model when none is named: Inspect would do so in a cell.

    What a solver of the task's own calls is not foreseen.
    """
    from inspect_ai._util.registry import is_registry_object, registry_info, registry_params
    from inspect_ai.solver import Solver

    if options.model or options.context.params.get("solver"):
        return
    for task in tasks:
        waiting: list[Solver] = [] if task.model else [task.solver]
        while waiting:
            solver = waiting.pop()
            name = registry_info(solver).name if is_registry_object(solver) else ""
            if name.removeprefix("inspect_ai/") in _CALL_MODEL:
                if not registry_params(solver).get("model"):
                    raise PolicyError(
                        f"its solver `{name.removeprefix('inspect_ai/')}` needs a model",
                        where=f"task {printable(task.name)}",
                        hint="add --model PROVIDER/NAME, such as mockllm/model",
                    )
            elif isinstance(solver, Sequence):  # a chain
                waiting += solver
