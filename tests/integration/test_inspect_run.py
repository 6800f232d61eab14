"""`belljar run` on real cells, from the command line, as its users call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.log import EvalLog, read_eval_log
from tests.integration.processes import ended, quick_command, wait_for
from tests.machine import PATIENCE_S

from belljar.events import Kind
from belljar.harness.evidence import stored_evidence
from belljar.ledger.listing import read_events
from belljar.ledger.verification import verify
from belljar.probe.model import Verdict
from belljar.report.cells import CellFindings, gather_cells
from belljar.report.reasons import ReasonCode
from belljar.report.verdict import judge

pytestmark = [pytest.mark.vm, pytest.mark.slow]

TASKS = """
import os, signal
import anyio
from pathlib import Path
from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import bash, mcp_server_sandbox
from inspect_ai.util import SandboxUnavailableError, sandbox

MARK = Path("on_the_host").absolute()

@solver
def run(*commands: str) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        for command in commands:
            result = await sandbox().exec(["sh", "-c", command])
            state.store.set(command, result.stdout.strip())
        return state
    return solve

@scorer(metrics=[mean()])
def said(command: str) -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=int(state.store.get(command) == target.text), explanation=state.store.get(command))
    return score

def one(name: str, *solvers: Solver, calls=(), command="true", target="", sandbox=None, **sample) -> Task:
    outputs = [ModelOutput.for_tool_call("mockllm", name, arguments) for name, arguments in calls]
    outputs.append(ModelOutput.from_content("mockllm", "done"))
    for output in outputs:
        output.usage = ModelUsage()
    return Task(
        dataset=[Sample(id=name, input="x", target=target, **sample)], solver=list(solvers),
        scorer=said(command), model=get_model("mockllm/model", custom_outputs=outputs), sandbox=sandbox,
    )

@task
def flags() -> Task:
    samples = [Sample(id=name, input="x", target=f"{name}-flag", metadata={"flag": f"{name}-flag"}) for name in ("a", "b")]
    return Task(dataset=samples, solver=run("echo $FLAG"), scorer=said("echo $FLAG"), sandbox=("belljar", "policy.yaml"), epochs=2)

@task
def asks() -> Task:
    command = "echo mockllm/model mockllm/grader"
    target = f"{get_model()} {get_model(role='grader')}"
    return one("asks", run(command), command=command, target=target)

@task
def counted() -> Task:
    calls = [("bash", {"command": f"touch {MARK}; echo hi"}), ("bash", {"command": "sleep 20"})]
    return one("counted", use_tools(bash(timeout=1)), generate(tool_calls="loop"), calls=calls)

@task
def serves() -> Task:
    return one("serves", react(tools=[mcp_server_sandbox(command="no-such-server")]), sandbox=("belljar", "refusing.yaml"))

@solver
def kill_the_machine() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        os.kill(sandbox()._sandbox.cell.host_pid, signal.SIGKILL)
        try:
            await sandbox().exec(["true"])
        except SandboxUnavailableError:
            state.store.set("noticed", "yes")
        return state
    return solve

@task
def dies() -> Task:
    return one("dies", kill_the_machine(), command="noticed", target="yes")

@task
def waits() -> Task:
    return one("waits", run("sleep 300"))

@task
def breaks() -> Task:
    wreck = "rm -rf /bin/* /usr/bin/* /sbin/* /usr/sbin/*"
    return one("breaks", run(wreck, "id"), command="id", sandbox=("belljar", "root.yaml"))

@task
def brings() -> Task:
    own = ("docker", "compose_7.yaml")  # a name that Inspect does not carry over
    return Task(dataset=[Sample(id="brings", input="x", target="/tmp", sandbox=own)], solver=run("(sleep 1000 &); pwd"), scorer=said("(sleep 1000 &); pwd"))

@task
def built() -> Task:
    own = ("docker", "values.yaml")
    return Task(dataset=[Sample(id="built", input="x", target="", sandbox=own)], solver=run("true"), scorer=said("true"))

boxes = {}

@solver
def both_fail() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        boxes[state.sample_id] = sandbox()._sandbox
        await sandbox().exec(["true"])
        while len(boxes) < 2 or state.sample_id == "second" and not boxes["first"].containment.clean:
            await anyio.sleep(0.001)
        raise IndexError("the model's script is over")
    return solve

@task
def crashes() -> Task:
    return Task(dataset=[Sample(id=name, input="x") for name in ("first", "second")], solver=both_fail())

@task
def quick() -> Task:
    return one("quick", run("true"))
"""
POLICY = 'belljar: 1\nrisk: low\nenv:\n  FLAG: "${SAMPLE_METADATA_FLAG}"\n'
COMPOSE = (
    "services:\n  default:\n    image: default\n    working_dir: /tmp\n    network_mode: none\n   "
    " command: tail -f /dev/null\n"
)
FILES = {
    "tasks.py": TASKS,
    "policy.yaml": POLICY,
    "refusing.yaml": "belljar: 1\nrisk: low\nhost_tools: refuse\n",
    "root.yaml": "belljar: 1\nrisk: low\nuser: root\n",
}


def write_tasks(folder: Path) -> Path:
    """A directory with tasks, their policies and a compose file."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with tasks. Their cells are containers, the quickest."""
    monkeypatch.setenv("BELLJAR_POLICY", "low")
    return write_tasks(tmp_path)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "belljar", *arguments]


@dataclass(frozen=True)
class Finished:
    """A run that ended: what `--json` printed, and where it ran."""

    tasks: Path
    code: int
    said: dict[str, Any]
    errors: str

    @property
    def run_dir(self) -> Path:
        return Path(self.said["run_dir"])

    def samples(self, *names: str) -> list[dict[str, Any]]:
        return [each for each in self.said["samples"] if each["sample"] in names]


def belljar_run(tasks: Path, home: Path, *arguments: str, **variables: str) -> Finished:
    done = ended(
        quick_command("run", "--json", *arguments),
        cwd=tasks,
        env={**os.environ, "BELLJAR_HOME": str(home), "BELLJAR_POLICY": "low", **variables},
    )
    said = json.loads(done.stdout) if done.stdout else {}
    return Finished(tasks, done.returncode, said, done.stderr)


@pytest.fixture(scope="module")
def ordinary(vm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run of tasks of each kind: of one the sandbox breaks, of one the samples fail."""
    tasks = write_tasks(tmp_path_factory.mktemp("ordinary"))
    named = [f"tasks.py@{name}" for name in ("flags", "counted", "serves")]
    named += ["tasks.py@breaks", "tasks.py@crashes"]
    return belljar_run(tasks, vm_home, *named, "--max-tasks", "5", INSPECT_EVAL_SANDBOX="local")


def logs_of(finished: Finished) -> dict[str, EvalLog]:
    logs = (finished.run_dir / "inspect").glob("*.eval")
    return {log.eval.task: log for log in map(read_eval_log, map(str, logs))}


@pytest.mark.promise("1.5")
def test_every_sample_has_a_cell_of_its_own(ordinary: Finished) -> None:
    """The task's own policy, a sample's metadata in its environment, one cell for each epoch."""
    run = ordinary
    samples = run.samples("a", "b")
    assert [sample["error"] for sample in samples] == [""] * 4, run.errors
    assert [sample["scores"]["said"] for sample in samples] == ["1"] * 4
    assert len({cell for sample in samples for cell in sample["cells"]}) == 4
    assert run.said["verdict"] == "contained"
    assert all(sample["destroyed"] for sample in run.said["samples"])
    assert verify(run.run_dir).ok(strict=True)
    assert POLICY in [path.read_text() for path in run.run_dir.glob("policy*.yaml")]
    assert list((run.run_dir / "inspect").glob("*.eval"))
    assert not (run.tasks / "on_the_host").exists()
    uses = {use["name"]: (use["calls"], use["reached_cell"]) for use in run.said["tools"]}
    assert uses["bash"] == (2, 2)
    (served,) = run.samples("serves")
    assert served["commands"] > 0


def test_a_machine_that_dies_is_noticed(home: Path, tasks: Path) -> None:
    """The model's side reads that it is unavailable."""
    models = ("--model", "mockllm/model", "--model-role", "grader=mockllm/grader")
    run = belljar_run(tasks, home, "tasks.py@dies", "tasks.py@asks", *models)
    assert run.code == 2, run.errors
    (other,) = run.samples("asks")
    assert (other["verdict"], other["scores"]) == ("contained", {"said": "1"})
    (sample,) = run.samples("dies")
    probed = [probing["verdict"] for probing in sample["probes"]]
    assert (sample["verdict"], probed) == ("void", ["contained", "void"])
    assert sample["scores"] == {"said": "1"}
    cell = gather_cells(read_events(run.run_dir))[sample["cells"][0]]
    assert cell.failures
    assert cell.clean


def test_a_sample_that_inspect_drops_as_another_failed_is_cancelled(ordinary: Finished) -> None:
    """It fails while the first one's error cancels it, so no log has it."""
    (second,) = ordinary.samples("second")
    logged = [str(sample.id) for sample in logs_of(ordinary)["crashes"].samples or []]
    said = ordinary.said
    assert (logged, ordinary.code, said["verdict"]) == (["first"], 1, "contained")
    assert (second["reasons"], second["destroyed"]) == ([], True)
    assert second["error"].startswith("cancelled")
    lines = list(read_events(ordinary.run_dir))
    evidence = stored_evidence(ordinary.run_dir)
    for kind in (Kind.SAMPLE_FINISHED, Kind.CELL_DESTROYED):
        cells = gather_cells(line for line in lines if line.kind is not kind)
        rows = judge(replace(evidence, cells=cells)).rows
        codes = {reason.code for row in rows for reason in row.reasons}
        assert ReasonCode.SAMPLE_NOT_IN_LOG in codes


@pytest.mark.promise("7.5")
def test_a_broken_sandbox_is_no_failed_model(home: Path, ordinary: Finished) -> None:
    """Inspect says success and gives a score."""
    (sample,) = ordinary.samples("breaks")
    assert (sample["verdict"], sample["error"]) == ("contained", "")
    assert sample["scores"] == {"said": "1"}
    (broken,) = sample["degraded"]
    assert (broken["cause"], broken["phase"]) == ("shell_missing", "call")
    logged = logs_of(ordinary)["breaks"]
    assert logged.status == "success"
    assert logged.samples is not None
    assert logged.samples[0].metadata["sandbox_degraded"][0]["op"] == broken["op"]
    score = (logged.samples[0].scores or {})["said"]
    assert (score.metadata or {})["sandbox_degraded"] == "shell_missing"
    shown = ended(quick_command("verdict", ordinary.said["run_id"]))
    assert shown.returncode == 1
    assert "1 degraded: shell_missing" in shown.stdout


@pytest.mark.promise("1.6", "7.1", "7.3")
def test_a_samples_own_sandbox_is_used_or_refused(
    home: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Under plain `inspect eval --sandbox belljar`, from another directory."""
    (tasks / "compose_7.yaml").write_text(COMPOSE)
    (tasks / "values.yaml").write_text("replicas: 2\n")
    logs = tmp_path_factory.mktemp("logs")
    named = [f"{tasks}/tasks.py@{name}" for name in ("brings", "built")]
    words = ["inspect_ai", "eval", *named, "--sandbox", "belljar", "--model", "mockllm/model"]
    done = ended(
        quick_command("-m", *words, "--log-dir", str(logs), "--display", "plain"), cwd=logs
    )
    read = {log.eval.task: log for log in map(read_eval_log, map(str, logs.glob("*.eval")))}
    statuses = {name: log.status for name, log in read.items()}
    assert statuses == {"brings": "success", "built": "error"}, done.stdout + done.stderr
    samples = read["brings"].samples
    assert samples is not None
    score, found = (samples[0].scores or {})["said"], samples[0].metadata["containment"]
    assert (score.value, (score.metadata or {})["containment_cell_verdict"]) == (1, "contained")
    assert (found["cell_verdict"], found["destroyed"]) == ("contained", True)
    assert min(found[phase]["probes"] for phase in ("start", "end")) > 60
    run_dir, cell = last_cell(home)
    assert verify(run_dir).ok(strict=True)
    assert {cell.probed(phase) for phase in ("start", "end")} == {Verdict.CONTAINED}
    assert f"belljar verdict {run_dir.name}" in done.stdout + done.stderr


@contextmanager
def running(tasks: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`belljar run …` while it runs; signals to the process reach it."""
    process = subprocess.Popen(
        quick_command("run", "--model", "mockllm/model", *arguments),
        cwd=tasks,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def attach_sockets(home: Path) -> set[str]:
    return {path.name for path in (home / "attach").glob("*")}


def new_cell(home: Path, before: set[str]) -> str:
    wait_for(lambda: bool(attach_sockets(home) - before), "a cell", within_s=PATIENCE_S)
    return (attach_sockets(home) - before).pop()


def last_cell(home: Path) -> tuple[Path, CellFindings]:
    """The newest run, and its cell that had a sample."""
    run_dir = sorted((home / "runs").iterdir())[-1]
    (cell,) = [cell for cell in gather_cells(read_events(run_dir)).values() if cell.sample]
    return run_dir, cell


def test_an_interrupt_leaves_nothing(home: Path, tasks: Path) -> None:
    """The cell is destroyed, though it was to be kept; the ledger is sealed, the exit code 130."""
    before = attach_sockets(home)
    with running(tasks, "tasks.py@waits", "--no-sandbox-cleanup") as process:
        new_cell(home, before)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
    run_dir, cell = last_cell(home)
    assert cell.clean
    assert verify(run_dir).ok(strict=True)
    found = {event.kind: event.data for event in read_events(run_dir)}
    assert found[Kind.RUN_EVALUATED]["interrupted"] is True
    assert found[Kind.RUN_FINISHED]["outcome"] == "interrupted"
    assert attach_sockets(home) == before


def attached(cell: str) -> subprocess.CompletedProcess[str]:
    for _ in range(10):
        seen = ended(
            command("attach", cell, "--user", "root", "--", "sh", "-c", "tty; id -un; exit 5"),
            stdin=subprocess.DEVNULL,
        )
        if seen.returncode == 5:
            break
    return seen


def test_attach_and_hold(home: Path, tasks: Path) -> None:
    """A terminal in a held cell, recorded, until Inspect's own cleanup command releases it."""
    before = attach_sockets(home)
    with running(tasks, "tasks.py@quick", "--no-sandbox-cleanup") as process:
        cell = new_cell(home, before)
        seen = attached(cell)
        assert seen.returncode == 5, seen.stderr
        assert seen.stdout.split()[1:] == ["root"]
        assert seen.stdout.startswith("/dev/pts/")
        cleaned = ended(quick_command("-m", "inspect_ai", "sandbox", "cleanup", "belljar", cell))
        assert cleaned.returncode == 0, cleaned.stderr
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
        assert f"attach {cell}" in said
    run_dir, findings = last_cell(home)
    assert findings.clean
    assert any(each.data.get("pty") for each in read_events(run_dir))
    gone = ended(command("attach", cell), stdin=subprocess.DEVNULL)
    assert gone.returncode == 3
    assert os.environ["BELLJAR_HOME"] == str(home)
