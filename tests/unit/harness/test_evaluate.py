"""`belljar run` from command line to sealed run directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from inspect_ai._cli.eval import eval_command
from inspect_ai.log import list_eval_logs, read_eval_log
from tests.fakes.cell import RecordedCells
from tests.unit.harness.runs import MODEL, ONE, evaluated

from belljar.airgap import AirGapFinding, State
from belljar.cli.main import run as belljar
from belljar.cli.run import show_findings
from belljar.differences import Difference, DifferenceKind
from belljar.errors import HostError, PolicyError
from belljar.harness.evaluate import NOTED_IN, RunOutcome
from belljar.harness.evidence import stored_evidence
from belljar.ledger.keys import local_fingerprint
from belljar.ledger.verification import verify
from belljar.policy.load import policy_of
from belljar.probe.model import Verdict
from belljar.report.verdict import judge

TASK = """
from contextlib import suppress
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import sandbox

@solver
def work() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        box = sandbox()
        await box.write_file("note", "12345")
        said = await box.exec(["sh", "-c", "cat note; seq 100"])
        with suppress(TimeoutError):
            await box.exec(["sleep", "30"], timeout=1)
        await box.exec(["echo", "/var/tmp/sandbox-services"])
        return state
    return solve

@scorer(metrics=[mean()])
def points() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=1)
    return score

@task
def good(n: int = 1) -> Task:
    return Task(dataset=[Sample(id=f"s{i}", input="x") for i in range(n)], solver=work(), scorer=points(), sandbox="docker")

@task
def differs() -> Task:
    samples = [Sample(id=n, input="x", sandbox=("docker", "own-compose.yaml") if n == 3 else None) for n in (1, 2, 3)]
    return Task(dataset=samples, solver=work(), scorer=points(), sandbox=("docker", "compose.yaml"))

@task
def refused() -> Task:
    samples = [Sample(id=name, input="x") for name in "bc"]
    return Task(dataset=samples, sandbox=("docker", "refused-compose.yaml"))
"""


@pytest.fixture
def task_file(tmp_path: Path) -> str:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    (tmp_path / "refused-compose.yaml").write_text("services: {default: {image: i, gpus: all}}")
    return str(path)


def run(
    arguments: Sequence[str],
    tmp_path: Path,
    cells: RecordedCells | None = None,
    policy: str = "",
    **more: Any,  # noqa: ANN401 - fields of a request
) -> RunOutcome:
    return evaluated(tmp_path, *arguments, cells=cells, policy=policy, **more)


def test_a_run_from_end_to_end(
    task_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the transcript hides is found, of each sample and epoch in a cell of its own."""
    monkeypatch.setenv(NOTED_IN, str(tmp_path / "noted"))
    cells = RecordedCells()
    words = [f"{task_file}@good", "--model", "mockllm/model", "-T", "n=2", "--epochs", "2"]
    outcome = run(words, tmp_path, cells)
    rows = outcome.findings.rows
    assert (outcome.findings.verdict, outcome.exit_code) == (Verdict.CONTAINED, 0)
    assert len(rows) == len(cells.opened) == len({row.cells[0].cell_id for row in rows}) == 4
    for row in rows:
        hidden = {operation.what for operation in row.hidden}
        assert {"sleep 30", "echo /var/tmp/sandbox-services"} <= hidden
        assert sum(cell.bytes_in for cell in row.cells) == 5
    assert (tmp_path / "noted").read_text() == str(outcome.path)
    assert json.loads((outcome.path / "findings.json").read_text())["verdict"] == "contained"


@pytest.mark.promise("1.5")
def test_refusals_come_before_anything_runs(task_file: str, tmp_path: Path) -> None:
    """What can't be run, or mustn't, ends with the right error, and no cell."""
    cells, good = RecordedCells(), f"{task_file}@good"
    for error, named, words, policy in (
        (PolicyError, "gpus", [f"{task_file}@refused"], ""),
        (PolicyError, "no sample is selected", [good, "--limit", "0"], ""),
        (PolicyError, "no-such-policy", [good], "no-such-policy"),
        (click.UsageError, "which task", [], ""),
        (click.UsageError, "--policy", [good, "--sandbox", "docker"], ""),
        (click.UsageError, "no-such-option", [good, "--no-such-option"], ""),
    ):
        with pytest.raises(error, match=named):
            run(words, tmp_path, cells, policy=policy)
    with pytest.raises(PolicyError, match="can't be loaded") as caught:
        run([f"{task_file}@missing"], tmp_path, cells)
    assert caught.value.where.endswith("task.py@missing")
    assert not cells.opened


def test_a_disk_that_fills_in_mid_run_is_no_missing_evidence(
    task_file: str, tmp_path: Path
) -> None:
    """The second sample's cell can't be made: exit code 5, now and when it is judged again."""
    cells = RecordedCells()
    cells.full_after = 1
    arguments = [f"{task_file}@good", "-T", "n=2", "--max-samples", "1"]
    outcome = run([*arguments, "--model", "mockllm/model"], tmp_path, cells)
    assert outcome.exit_code == 5
    assert "No space" in outcome.findings.errors[0]
    key = local_fingerprint(tmp_path / "home")
    assert judge(stored_evidence(outcome.path, expected_key=key)).exit_code == 5


@pytest.mark.promise("7.2")
def test_a_task_does_not_choose_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sys.exit(0)` of a solver leaves Inspect's command as it is."""
    file = tmp_path / "task.py"
    file.write_text(ONE)

    def leave(_context: click.Context) -> None:
        raise SystemExit(0)

    with monkeypatch.context() as only:
        only.setattr(eval_command, "invoke", leave)
        outcome = run([str(file), *MODEL], tmp_path)
    assert outcome.exit_code != 0
    assert verify(outcome.path).ok(strict=True)
    leaving = "class Leaving(list):\n    def __len__(self):\n        raise SystemExit(0)\n"
    late = leaving + ONE.replace("[Sample", "Leaving([Sample").replace(")], solver", ")]), solver")
    for text in ("raise SystemExit(0)\n" + ONE, late):
        file.write_text(text)
        with pytest.raises(PolicyError):
            run([str(file), *MODEL], tmp_path)


@pytest.mark.promise("1.5")
def test_how_a_cell_differs_from_its_task_is_on_record(
    task_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the ledger, Inspect's log, the findings and the table, for the samples it is true of."""
    (tmp_path / "compose.yaml").write_text("services: {default: {image: default}}")
    own = "services: {default: {image: default, labels: {a: b}, mem_limit: 8g}}"
    (tmp_path / "own-compose.yaml").write_text(own)
    cells, dropped = RecordedCells(), DifferenceKind.DROPPED
    cells.of_images = (
        Difference(kind=dropped, where="image default", key="STOPSIGNAL", detail="why"),
    )
    words = [f"{task_file}@differs", "--model", "mockllm/model"]
    outcome = run(words, tmp_path, cells, policy="low")
    said = [line for line in capsys.readouterr().err.splitlines() if "labels" in line]
    assert len(said) == 1
    assert "sample 3" in said[0]
    rows = {row.transcript.sample: row for row in outcome.findings.rows}
    keys = ["labels", "resources.memory", "STOPSIGNAL"]
    assert [fact.key for fact in rows["3"].differences] == keys
    assert [fact.key for fact in rows["1"].differences] == keys[2:]
    found = json.loads((outcome.path / "findings.json").read_text())["samples"]
    assert [len(each["differences"]) for each in found] == [1, 1, 3]
    (log,) = list_eval_logs(str(outcome.path / "inspect"))
    logged = {sample.id: sample.metadata for sample in read_eval_log(log).samples or []}
    assert [len(logged[n]["containment"]["differences"]) for n in (1, 3)] == [1, 3]


def test_a_models_policy_may_require_an_air_gap(
    task_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model for a role, too, however it is written."""
    policy = policy_of({"belljar": 1, "risk": "low", "host": {"air_gap": "required"}})
    monkeypatch.setattr("belljar.harness.model_api.load_model", lambda *_, **__: policy)
    way = AirGapFinding(name="a way", state=State.PRESENT, how="looked", evidence="")
    monkeypatch.setattr("belljar.cell.air_gap.check_air_gap", lambda: (way,))
    cells = RecordedCells()
    words = [f"{task_file}@good", "--model", "mockllm/model"]
    for role in ("{}", "[mockllm/model, {}]", "{{model: {}}}"):
        named = f"grader={role.format('belljar/model.yaml')}"
        with pytest.raises(HostError, match="requires an air gap"):
            run([*words, "--model-role", named], tmp_path, cells)
    assert not cells.opened
    run(words, tmp_path, cells)


STARTS = """
import asyncio, os, subprocess
from contextlib import suppress
import anyio
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, mean, scorer
from inspect_ai.solver import solver
from inspect_ai.util import sandbox
from inspect_ai.util import subprocess as inspects

subprocess.run(["true", "at import"])

@solver
def work():
    async def solve(state, generate):
        await sandbox().exec(["sh", "-c", "pwd"])
        await inspects(["true", "by Inspect's function"])
        await anyio.run_process("echo x")
        await (await asyncio.create_subprocess_exec("/bin/echo")).wait()
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        return state
    return solve

@scorer(metrics=[mean()])
def points():
    async def score(state, target):
        os.system("true")
        subprocess.Popen(["true"], close_fds=False).wait()
        for number in range(30):
            with suppress(FileNotFoundError):
                subprocess.Popen([f"/nowhere/{number}"])
        await anyio.to_thread.run_sync(subprocess.run, ["true"])
        return Score(value=1)
    return score

@task
def starts():
    return Task(dataset=[Sample(id="s", input="x")], solver=work(), scorer=points())
"""


def test_programs_that_a_task_starts_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By solver, scorer and module, each once however it is started, up to a number of names."""
    (tmp_path / "task.py").write_text(STARTS)
    monkeypatch.chdir(tmp_path)
    outcome = run(["task.py", "--model", "mockllm/model"], tmp_path)
    (why,) = outcome.findings.left.unknown
    named = (each.rsplit(" ", 1) for each in why.partition(": ")[2].split(", "))
    found = {name: int(times.rstrip("×")) for name, times in named}
    assert (outcome.exit_code, found.pop("others"), len(found)) == (0, 13, 20)
    assert (found["true"], found["echo"]) == (5, 1)
    assert found["sh"] >= 2  # a fake cell starts shells of this host, too
    show_findings(outcome.findings, outcome.path)
    assert "true 5×" in capsys.readouterr().out


_STAND_IN = "{kind: http, names: [a.example], routes: [{path: no}]}"
_NETWORK = "network: {stand_ins: {site: %s}}\n"


@pytest.mark.parametrize(
    ("text", "is_the_operators"),
    [
        (_NETWORK % _STAND_IN, True),
        (_NETWORK % _STAND_IN, False),
        ("resources: {memory: none}\n", True),
    ],
)
def test_nothing_is_started_that_policy_check_refuses(
    task_file: str, tmp_path: Path, text: str, *, is_the_operators: bool
) -> None:
    """As `--policy`, also of parts that would stay unused, and as the task's own."""
    policy = tmp_path / "p.yaml"
    policy.write_text("belljar: 1\nrisk: low\n" + text)
    assert belljar(["policy", "check", str(policy)]) == 4
    if not is_the_operators:
        own = TASK.replace('sandbox="docker"', 'sandbox=("belljar", "p.yaml")')
        Path(task_file).write_text(own)
    cells = RecordedCells()
    named = str(policy) if is_the_operators else ""
    with pytest.raises(PolicyError):
        run([f"{task_file}@good", "--model", "mockllm/model"], tmp_path, cells, policy=named)
    assert not (tmp_path / "home").exists()
    assert not cells.opened
