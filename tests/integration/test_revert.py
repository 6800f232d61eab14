"""A revert under Inspect, many in a row, and its faults: on real containers."""

from __future__ import annotations

import errno
import json
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.integration.processes import quick_command
from tests.machine import PATIENCE_S

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.errors import CellError, HostError
from belljar.events import Kind
from belljar.harness.evidence import stored_evidence
from belljar.isolation.kill import kill
from belljar.ledger.listing import read_events
from belljar.ledger.schema import Line
from belljar.report.cells import gather_cells
from belljar.report.reasons import ReasonCode
from belljar.report.verdict import judge
from belljar.store.journal import Journal

pytestmark = [pytest.mark.vm, pytest.mark.slow]

TASKS = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import sandbox
from belljar.inspect import revert, snapshot

LOOK = "cat marker made-by-setup begun 2>&1; test -e /tmp/trace && echo TRACE; echo end"

async def run(script):
    return (await sandbox().exec(["sh", "-c", script])).stdout

@solver
def tries(forks: bool) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        begun, seen = None, []
        if forks:
            await run("echo costly >> begun")
            begun = await snapshot()
        for _ in range(2):
            await run("rm -f marker; echo attempt >> begun; touch /tmp/trace; sleep 1000 &")
            await revert(to=begun)
            seen.append(await run(LOOK))
        if forks:
            async with begun.fork():
                pass
        state.store.set("seen", seen)
        return state
    return solve

@scorer(metrics=[mean()])
def is_back() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        seen = state.store.get("seen")
        return Score(value=int(seen == [target.text] * 2), explanation=str(seen))
    return score

def made(forks: bool = False) -> Task:
    begun = "costly" if forks else "cat: begun: No such file or directory"
    sample = Sample(
        id="one", input="x", target=f"content\\nsetup\\n{begun}\\nend\\n",
        files={"marker": "content\\n"}, setup="echo setup > made-by-setup",
    )
    return Task(dataset=[sample], solver=tries(forks), scorer=is_back())

@task
def again() -> Task:
    return made()

@task
def forked() -> Task:
    return made(forks=True)
"""


@pytest.mark.promise("3.5", "3.6")
def test_a_solver_reverts_its_sample(home: Path, tmp_path: Path) -> None:
    """Each try begins anew, or as saved; void once the evidence of one cell is missing."""
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "policy.yaml").write_text(
        "belljar: 1\nrisk: low\ntier: container\nuser: root\nsnapshots: true\n"
    )
    words = ("run", "--json", "--model", "mockllm/model", "tasks.py", "--policy", "policy.yaml")
    done = subprocess.run(
        quick_command(*words),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    said = json.loads(done.stdout)
    samples = {sample["task"]: sample for sample in said["samples"]}
    verdicts = {task: sample["verdict"] for task, sample in samples.items()}
    expected = {"again": "contained", "forked": "void"}
    assert verdicts == expected, done.stderr
    for task, sample in samples.items():
        assert sample["scores"] == {"is_back": "1"}
        assert (sample["reverts"], sample["destroyed"]) == (2, True)
        assert len(sample["cells"]) == 3 + (task == "forked")
    assert samples["again"]["commands"] == 4
    run_dir = Path(said["run_dir"])
    lines, evidence = list(read_events(run_dir)), stored_evidence(run_dir)
    first, *_, last = samples["again"]["cells"]
    for kind, cell, code in (
        (Kind.CELL_DESTROYED, first, ReasonCode.CELL_NOT_DESTROYED),
        (Kind.PROBE_COMPLETED, first, ReasonCode.PROBES_VOID),
        (Kind.PROBE_STARTED, last, ReasonCode.PROBES_MISSING),
    ):
        kept = [line for line in lines if not _is_of(line, kind, cell)]
        found = judge(replace(evidence, cells=gather_cells(kept)))
        (row,) = [row for row in found.rows if last in {each.cell_id for each in row.cells}]
        assert code in {reason.code for reason in row.reasons}
    assert list((home / "tmp").iterdir()) == []


def _is_of(line: Line, kind: Kind, cell: str) -> bool:
    return line.kind is kind and line.cell == cell


LOW = {"belljar": 1, "risk": "low", "tier": "container", "user": "root"}
SMALL = {"memory": "64MiB", "disk": "16MiB", "processes": 32, "lifetime": "30m"}


@pytest.mark.parametrize("named", ["the run", "the new machine"])
@pytest.mark.usefixtures("short_grace")
def test_a_kill_while_a_machine_is_made_ends_the_cell(vm_home: Path, named: str) -> None:
    """By the id of a machine that a revert is making, or by its run."""

    async def strike(run: str) -> None:
        journal = Journal(vm_home)
        while len(entries := journal.entries()) < 2:
            await anyio.lowlevel.checkpoint()
        name = run if named == "the run" else entries[-1].cell_id
        await kill(name, reason="enough", home=vm_home)

    async def use() -> Path:
        with start_run("test", None, [], home=vm_home) as run:
            async with (
                open_cell({**LOW, "resources": SMALL}, run=run, home=vm_home) as cell,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(strike, run.run_id)
                with suppress(CellError):  # it may be there first
                    await cell.revert()
                await _until_killed(cell)
        return run.path

    ends = [line for line in read_events(anyio.run(use)) if line.kind is Kind.CELL_DESTROYED]
    assert all(line.data["clean"] for line in ends)
    assert len(ends) == 2
    assert Journal(vm_home).entries() == ()


def test_no_cell_runs_that_a_kill_of_its_run_would_not_find(
    vm_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the store takes no word of whose cell it is, there is none, and nothing is left."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(Journal, "describe", refuse)

    async def use() -> None:
        async with open_cell({**LOW, "resources": SMALL}, home=vm_home):
            pytest.fail("it runs")

    with pytest.raises(HostError, match="no space"):
        anyio.run(use)
    assert Journal(vm_home).entries() == ()


def test_a_rule_that_is_triggered_by_the_old_machines_end_stops_the_sample(vm_home: Path) -> None:
    """What a command printed is scanned when it is cut off with its machine."""
    decoys = [{"kind": "aws_credentials", "id": "keys", "place": "/root/.aws/credentials"}]
    policy = {**LOW, "decoys": decoys, "on": {"decoy_taken": "stop_sample"}}

    async def use() -> None:
        async with open_cell(policy, home=vm_home) as cell:
            await cell.start(["sh", "-c", "cat /root/.aws/credentials; touch /done; sleep 999"])
            await cell.exec(["sh", "-c", "until test -e /done; do :; done"])
            await cell.revert()
            await _until_killed(cell)

    anyio.run(use)


async def _until_killed(cell: Cell) -> None:
    async def use() -> None:
        while True:
            await cell.exec(["true"])

    with anyio.fail_after(PATIENCE_S), pytest.raises(CellError, match="killed"):
        await use()
