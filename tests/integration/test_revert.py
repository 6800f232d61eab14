"""A revert under Inspect, many in a row, and its faults: on real containers."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.processes import quick_command

from belljar.events import Kind
from belljar.harness.evidence import stored_evidence
from belljar.ledger import Line, read_events
from belljar.report.cells import gather_cells
from belljar.report.reasons import ReasonCode
from belljar.report.verdict import judge

pytestmark = [pytest.mark.vm, pytest.mark.slow]

TASKS = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import sandbox
from belljar.inspect import revert

LOOK = "cat marker made-by-setup 2>&1; test -e /tmp/trace && echo TRACE; echo end"

@solver
def retries(attempts: int) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        seen = []
        for attempt in range(attempts):
            await sandbox().exec(["sh", "-c", "rm -f marker; touch /tmp/trace; sleep 1000 &"])
            await revert()
            seen.append((await sandbox().exec(["sh", "-c", LOOK])).stdout)
        state.store.set("seen", seen)
        return state
    return solve

@scorer(metrics=[mean()])
def is_fresh() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        seen = state.store.get("seen")
        return Score(value=int(seen == ["content\\nsetup\\nend\\n"] * 2), explanation=str(seen))
    return score

@task
def again() -> Task:
    sample = Sample(id="again", input="x", files={"marker": "content\\n"}, setup="echo setup > made-by-setup")
    return Task(dataset=[sample], solver=retries(2), scorer=is_fresh())
"""


@pytest.mark.parametrize("options", [[], ["--warm", "1"]], ids=["cold", "warm"])
def test_a_solver_reverts_its_sample(home: Path, tmp_path: Path, options: list[str]) -> None:
    """Each try begins with the sample's files and set-up and nothing of the try before. The sample
    is contained with three cells and two reverts, and void once the evidence of one is missing."""
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "policy.yaml").write_text("belljar: 1\nrisk: low\n")
    words = ("run", "--json", "--model", "mockllm/model", *options, "tasks.py@again")
    done = subprocess.run(
        quick_command(*words),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    (sample,) = said["samples"]
    assert (sample["verdict"], sample["scores"]) == ("contained", {"is_fresh": "1"})
    assert (sample["reverts"], len(sample["cells"]), sample["destroyed"]) == (2, 3, True)
    assert sample["not_in_transcript"]["silent"] == 0
    assert sample["commands"] == 4
    run_dir = Path(said["run_dir"])
    lines, evidence = list(read_events(run_dir)), stored_evidence(run_dir)
    first, *_, last = sample["cells"]
    for kind, cell, code in (
        (Kind.CELL_DESTROYED, first, ReasonCode.CELL_NOT_DESTROYED),
        (Kind.PROBE_COMPLETED, first, ReasonCode.PROBES_VOID),
        (Kind.PROBE_STARTED, last, ReasonCode.PROBES_MISSING),
    ):
        kept = [line for line in lines if not _is_of(line, kind, cell)]
        found = judge(replace(evidence, cells=gather_cells(kept)))
        assert code in {reason.code for row in found.rows for reason in row.reasons}


def _is_of(line: Line, kind: Kind, cell: str) -> bool:
    return line.kind is kind and line.cell == cell
