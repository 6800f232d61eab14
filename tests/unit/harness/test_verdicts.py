"""The verdicts of a run in Inspect's own log."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log
from tests.fakes.cell import FakeCell, RecordedCells
from tests.fakes.probing import read_canary
from tests.unit.harness.runs import MODEL, evaluated

from belljar.cli.run import dropped
from belljar.harness.evaluate import RunOutcome
from belljar.ledger.verification import verify
from belljar.probe.model import Verdict

TASK = """
import anyio
WAITS = ""
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, mean, scorer
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def work():
    async def solve(state, generate):
        await sandbox().exec(["touch", f"is-{state.sample_id}"])
        while state.sample_id == "s1" and WAITS:
            if WAITS == "a model":
                await anyio.sleep(600)
            else:
                await sandbox().exec(["true"])
        return state
    return solve

@scorer(metrics=[mean()])
def points():
    async def score(state, target):
        return Score(value=float(state.sample_id[1:]))
    return score

@task
def numbers():
    return Task(dataset=[Sample(id=f"s{n}", input="x") for n in range(3)], solver=work(), scorer=points())
"""


def run(
    tmp_path: Path,
    cells: RecordedCells,
    *arguments: str,
    require_contained: bool = False,
    waits: str = "",
) -> tuple[RunOutcome, EvalLog]:
    """A run of three samples worth 0, 1 and 2, one after the other, and its log."""
    task = tmp_path / "task.py"
    task.write_text(TASK.replace('WAITS = ""', f"WAITS = {waits!r}"))
    words = [str(task), *MODEL, "--max-samples", "1", *arguments]
    outcome = evaluated(tmp_path, *words, cells=cells, require_contained=require_contained)
    (info,) = list_eval_logs(str(outcome.path / "inspect"))
    return outcome, read_eval_log(info)


def of(cell: FakeCell) -> str:
    return next((path.name.removeprefix("is-") for path in cell.directory.glob("is-*")), "")


@pytest.mark.promise("7.4")
@pytest.mark.parametrize(("voids", "mean"), [(("s2",), 0.5), (("s0", "s1", "s2"), None)])
def test_required_contained_drops_void_samples_from_the_metrics(
    tmp_path: Path, voids: tuple[str, ...], mean: float | None
) -> None:
    """Void samples do not count, are marked invalid with the reason, and are named."""
    cells = RecordedCells()

    def arm(cell: FakeCell, phase: str) -> None:
        if phase == "end" and of(cell) in voids:
            cell.run_probe_program.spoil = lambda _: b""

    cells.on_probe = arm
    outcome, log = run(tmp_path, cells, require_contained=True)
    assert log.results is not None
    scores = log.results.scores
    assert [score.metrics["mean"].value for score in scores] == ([] if mean is None else [mean])
    assert {sample.id for sample in log.samples or [] if sample.invalidation} == {*voids}
    assert outcome.dropped == [f"{name} #1" for name in voids]
    assert all(name in dropped(outcome)[0] for name in voids)
    counts = {"contained": 3 - len(voids), "void": len(voids), "breached": 0}
    assert (log.metadata["containment"], outcome.exit_code) == (counts, 2)
    assert verify(outcome.path).ok(strict=True)


@pytest.mark.promise("7.4")
@pytest.mark.parametrize(("waits", "backend"), [("a model", "asyncio"), ("its cell", "trio")])
def test_a_breach_ends_what_waits_for_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: str, backend: str
) -> None:
    """A sample that is elsewhere or at work when another's breach shows ends too."""
    monkeypatch.setenv("INSPECT_ASYNC_BACKEND", backend)
    cells = RecordedCells()

    def arm(cell: FakeCell, now: str) -> None:
        cell.run_probe_program.touch = (
            read_canary if now == "end" and of(cell) == "s2" else lambda _: None
        )

    cells.on_probe = arm
    outcome, log = run(tmp_path, cells, "--max-samples", "3", waits=waits)
    assert (outcome.findings.verdict, outcome.exit_code) == (Verdict.BREACHED, 2)
    # "error" where a sample meets the breach before the interrupt comes
    assert log.status in {"cancelled", "error"}
    assert all(cell.destroyed for cell in cells.opened)
    assert verify(outcome.path).ok(strict=True)
