"""Runs of small tasks on fake cells: real Inspect, real ledger."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from inspect_ai.dataset import Sample
from tests.fakes.cell import RecordedCells

from belljar.harness.evaluate import RunOutcome, run_evaluation
from belljar.harness.options import RunRequest
from belljar.harness.provider import BelljarSandboxEnvironment

MODEL = ("--model", "mockllm/model")
ONE = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def work():
    async def solve(state, generate):
        await sandbox().exec(["true"])
        return state
    return solve

@task
def one():
    return Task(dataset=[Sample(id="a", input="x")], solver=work())
"""


def evaluated(
    directory: Path,
    *words: str,
    cells: RecordedCells | None = None,
    **more: Any,  # noqa: ANN401 - fields of a request
) -> RunOutcome:
    source = cells or RecordedCells()
    home = directory / "home"
    return run_evaluation(
        RunRequest(inspect_args=words, quiet=True, home=home, source=source, **more)
    )


def one_sample(directory: Path, **more: Any) -> RunOutcome:  # noqa: ANN401 - fields of a request
    (directory / "task.py").write_text(ONE)
    return evaluated(directory, str(directory / "task.py"), *MODEL, **more)


async def opened() -> BelljarSandboxEnvironment:
    environments = await BelljarSandboxEnvironment.sample_init(
        "task", None, {"__sample_id__": "s1"}
    )
    return environments["default"].as_type(BelljarSandboxEnvironment)


async def close(environment: BelljarSandboxEnvironment) -> None:
    await BelljarSandboxEnvironment.sample_cleanup(
        "task", None, {"default": environment}, interrupted=False
    )


def active_sample(*, started: float | None) -> Any:  # noqa: ANN401 - stands for Inspect's
    about = {"epoch": 1, "task": "t", "sample_uuid": "u", "eval_id": "e", "log_location": "l"}
    return SimpleNamespace(started=started, sample=Sample(id="s", input="x"), tg=None, **about)
