"""`belljar run` on real cells, from the command line, as its users call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.log import read_eval_log
from tests.integration.processes import quick_command, wait_for

from belljar.events import Kind
from belljar.harness.evidence import stored_evidence
from belljar.ledger.listing import read_events
from belljar.ledger.verification import verify
from belljar.report.cells import CellFindings, gather_cells
from belljar.report.reasons import ReasonCode
from belljar.report.verdict import judge

pytestmark = [pytest.mark.vm, pytest.mark.slow]

TASKS = """
import os, signal, subprocess
import anyio
from contextlib import suppress
from pathlib import Path
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import SandboxUnavailableError, sandbox

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

@task
def flags() -> Task:
    samples = [Sample(id=name, input="x", target=f"{name}-flag", metadata={"flag": f"{name}-flag"}) for name in ("a", "b")]
    return Task(dataset=samples, solver=run("echo $FLAG"), scorer=said("echo $FLAG"), sandbox=("belljar", "policy.yaml"))

@task
def docker() -> Task:
    return Task(dataset=[Sample(id="d", input="x", target="/tmp")], solver=run("pwd"), scorer=said("pwd"), sandbox=("docker", "compose.yaml"))

@solver
def kill_the_machine() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        cell = sandbox()._sandbox.cell.id
        for entry in Path("/proc").iterdir():
            with suppress(OSError):  # others' processes end meanwhile
                if entry.name.isdigit() and (entry / "comm").read_text().startswith("qemu"):
                    if cell.encode() in (entry / "cmdline").read_bytes():
                        os.kill(int(entry.name), signal.SIGKILL)
        try:
            await sandbox().exec(["true"])
        except SandboxUnavailableError:
            state.store.set("noticed", "yes")
        return state
    return solve

@task
def dies() -> Task:
    return Task(dataset=[Sample(id="dies", input="x", target="yes")], solver=kill_the_machine(), scorer=said("noticed"))

@task
def waits() -> Task:
    return Task(dataset=[Sample(id="waits", input="x")], solver=run("sleep 300"))

@task
def breaks() -> Task:
    wreck = "rm -rf /bin/* /usr/bin/* /sbin/* /usr/sbin/*"
    return Task(dataset=[Sample(id="breaks", input="x", target="")], solver=run(wreck, "id"), scorer=said("id"))

@task
def brings() -> Task:
    own = ("docker", "compose_7.yaml")  # a name that Inspect does not carry over
    return Task(dataset=[Sample(id="brings", input="x", target="/tmp", sandbox=own)], solver=run("pwd"), scorer=said("pwd"))

@task
def built() -> Task:
    own = ("docker", "values.yaml")
    return Task(dataset=[Sample(id="built", input="x", target="", sandbox=own)], solver=run("true"), scorer=said("true"))

@task
def prepares() -> Task:
    sample = Sample(id="prepares", input="x", files={"marker": "x"}, setup="sleep 300")
    return Task(dataset=[sample], solver=run("true"))

@task
def asks() -> Task:
    target = f"{get_model()} {get_model(role='grader')}"
    command = "echo mockllm/model mockllm/grader"
    return Task(dataset=[Sample(id="asks", input="x", target=target)], solver=run(command), scorer=said(command))

@task
def naps() -> Task:
    return Task(dataset=[Sample(id="naps", input="x")], solver=run("sleep 3"))

@solver
def fail() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        raise IndexError("its own bug")
    return solve

@task
def fails() -> Task:
    return Task(dataset=[Sample(id="fails", input="x")], solver=fail())

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
    return Task(dataset=[Sample(id="quick", input="x")], solver=run("true"))
"""
POLICY = 'belljar: 1\nrisk: low\nenv:\n  FLAG: "${SAMPLE_METADATA_FLAG}"\n'
COMPOSE = (
    "services:\n  default:\n    image: default\n    working_dir: /tmp\n    network_mode: none\n   "
    " command: tail -f /dev/null\n"
)


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with tasks. Their cells are containers, the quickest, unless a test says
    otherwise."""
    monkeypatch.setenv("BELLJAR_POLICY", "low")
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    return tmp_path


def command(*arguments: str) -> list[str]:
    """A command line of ours."""
    return [sys.executable, "-m", "belljar", *arguments]


def belljar_run(tasks: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """`belljar run --json …`: exit code, what it printed, and its standard error."""
    done = subprocess.run(
        quick_command("run", "--json", "--model", "mockllm/model", *arguments),
        cwd=tasks,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_policy_metadata_and_epochs(home: Path, tasks: Path) -> None:
    """The task's own policy, a sample's metadata in its environment, one cell for each epoch, and a
    record that verifies."""
    code, said, errors = belljar_run(tasks, "tasks.py@flags", "--epochs", "2")
    assert code == 0, errors
    assert [sample["scores"]["said"] for sample in said["samples"]] == ["1"] * 4
    assert len({cell for sample in said["samples"] for cell in sample["cells"]}) == 4
    assert all(
        sample["destroyed"] and sample["verdict"] == "contained" for sample in said["samples"]
    )
    run_dir = Path(said["run_dir"])
    assert verify(run_dir).ok(strict=True)
    assert (run_dir / "policy.yaml").read_text() == POLICY
    assert list((run_dir / "inspect").glob("*.eval"))


@pytest.mark.promise("1.5")
def test_a_docker_task_runs_in_a_cell(home: Path, tasks: Path) -> None:
    """Image and directory of its compose file are the cell's."""
    code, said, errors = belljar_run(tasks, "tasks.py@docker")
    assert code == 0, errors
    assert said["samples"][0]["scores"]["said"] == "1"


def test_a_task_may_ask_for_its_models_when_it_is_loaded(home: Path, tasks: Path) -> None:
    """As under Inspect: the model of `--model`, and those of roles."""
    role = ("--model-role", "grader=mockllm/grader")
    code, said, errors = belljar_run(tasks, "tasks.py@asks", *role)
    assert code == 0, errors
    assert said["samples"][0]["scores"]["said"] == "1"


def test_a_policy_the_host_cannot_keep(home: Path, tasks: Path) -> None:
    """`critical` demands hardware virtualisation; without it, exit code 3 or 4 and no sample. With
    it, a normal run."""
    code, said, _ = belljar_run(tasks, "tasks.py@quick", "--policy", "critical")
    if code == 0:
        assert not said["samples"][0]["emulated"]
        return
    assert code in {3, 4}
    assert list(said) == ["error"]
    assert "hardware" in said["error"]["message"]


def test_a_machine_that_dies_is_noticed(home: Path, tasks: Path) -> None:
    """The model's side reads that it is unavailable; the record has the failure and the
    destruction; what can't be probed any more is void."""
    code, said, errors = belljar_run(tasks, "tasks.py@dies", "--policy", "high")
    assert code == 2, errors
    (sample,) = said["samples"]
    assert (sample["verdict"], [probing["verdict"] for probing in sample["probes"]]) == (
        "void",
        ["contained", "void"],
    )
    assert sample["scores"] == {"said": "1"}
    (cell,) = [
        c for c in gather_cells(read_events(Path(said["run_dir"]))).values() if c.sample == "dies"
    ]
    assert cell.failures
    assert cell.clean


def test_a_sample_that_inspect_drops_as_another_failed_is_cancelled(
    home: Path, tasks: Path
) -> None:
    """It fails while the first one's error cancels it, so no log has it: an error of the
    evaluation. Once its destruction is not on record, the same run is void."""
    code, said, _ = belljar_run(tasks, "tasks.py@crashes")
    samples = {each["sample"]: each for each in said["samples"]}
    (log,) = (Path(said["run_dir"]) / "inspect").glob("*.eval")
    logged = [str(sample.id) for sample in read_eval_log(str(log)).samples or []]
    assert (logged, code, said["verdict"], said["problems"]) == (["first"], 1, "contained", [])
    assert (samples["second"]["reasons"], samples["second"]["destroyed"]) == ([], True)
    assert samples["second"]["error"].startswith("cancelled")
    lines = list(read_events(Path(said["run_dir"])))
    evidence = stored_evidence(Path(said["run_dir"]))
    for kind in (Kind.SAMPLE_FINISHED, Kind.CELL_DESTROYED):
        cells = gather_cells(line for line in lines if line.kind is not kind)
        reasons = {
            reason.code
            for row in judge(replace(evidence, cells=cells)).rows
            for reason in row.reasons
        }
        assert ReasonCode.SAMPLE_NOT_IN_LOG in reasons


@pytest.mark.parametrize("options", [[], ["--traceback"]])
def test_a_traceback_is_shown_when_asked_for(home: Path, tasks: Path, options: list[str]) -> None:
    """Otherwise the error is one of the last lines, and the traceback is in Inspect's log alone."""
    words = ("run", "tasks.py@fails", "--model", "mockllm/model", *options)
    done = subprocess.run(
        quick_command(*words), cwd=tasks, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1, done.stderr
    assert ("Traceback" in done.stdout) == bool(options)
    assert any("its own bug" in line for line in done.stdout.splitlines()[-6:])
    log = max(home.glob("runs/*/inspect/*_fails_*.eval"))
    error = read_eval_log(str(log)).error
    assert error is not None
    assert "Traceback" in error.traceback


@pytest.mark.promise("7.5")
def test_a_broken_sandbox_is_no_failed_model(home: Path, tasks: Path) -> None:
    """Inspect says success and gives a score; the run says degraded with its cause, by exit code,
    summary, JSON, record and score."""
    (tasks / "root.yaml").write_text("belljar: 1\nrisk: low\nuser: root\n")
    code, said, errors = belljar_run(tasks, "tasks.py@breaks", "--policy", "root.yaml")
    assert code == 1, errors
    (sample,) = said["samples"]
    assert (sample["verdict"], sample["error"], sample["scores"]) == (
        "contained",
        "",
        {"said": "1"},
    )
    (broken,) = sample["degraded"]
    assert (broken["cause"], broken["phase"]) == ("shell_missing", "call")
    run_dir = Path(said["run_dir"])
    (log,) = (run_dir / "inspect").glob("*.eval")
    logged = read_eval_log(str(log))
    assert logged.status == "success"
    assert logged.samples is not None
    assert logged.samples[0].metadata["sandbox_degraded"][0]["op"] == broken["op"]
    score = (logged.samples[0].scores or {})["said"]
    assert (score.metadata or {})["sandbox_degraded"] == "shell_missing"
    shown = subprocess.run(
        quick_command("verdict", said["run_id"]),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 1
    assert "1 degraded: shell_missing" in shown.stdout


@pytest.mark.promise("1.6")
def test_a_samples_own_sandbox_is_used_or_refused(
    home: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Under plain `inspect eval --sandbox belljar`, from another directory: never the default image
    instead."""
    (tasks / "compose.yaml").unlink()
    (tasks / "compose_7.yaml").write_text(COMPOSE)
    (tasks / "values.yaml").write_text("replicas: 2\n")
    logs = tmp_path_factory.mktemp("logs")
    named = [f"{tasks}/tasks.py@{name}" for name in ("brings", "built")]
    words = ["eval", *named, "--sandbox", "belljar", "--model", "mockllm/model"]
    done = subprocess.run(
        [sys.executable, "-m", "inspect_ai", *words, "--log-dir", str(logs), "--display", "plain"],
        cwd=logs,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    read = {log.eval.task: log for log in map(read_eval_log, map(str, logs.glob("*.eval")))}
    statuses = {name: log.status for name, log in read.items()}
    assert statuses == {"brings": "success", "built": "error"}, done.stdout + done.stderr
    samples = read["brings"].samples
    assert samples is not None
    assert (samples[0].scores or {})["said"].value == 1


def test_bad_input(home: Path, tasks: Path) -> None:
    """Each ends with one message and its exit code."""
    assert belljar_run(tasks, "tasks.py@nothing")[0] == 4
    assert belljar_run(tasks, "tasks.py@quick", "--policy", "no-such.yaml")[0] == 4
    assert belljar_run(tasks, "tasks.py@quick", "--no-such-option")[0] == 2


@contextmanager
def running(
    tasks: Path, *arguments: str, by: Callable[..., list[str]] = quick_command
) -> Iterator[subprocess.Popen[str]]:
    """`belljar run …` while it runs; signals to the process reach it."""
    process = subprocess.Popen(
        by("run", "--model", "mockllm/model", *arguments),
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


def new_cell(home: Path, before: set[str], *, timeout_s: float = 120) -> str:
    """The id of the cell whose attach socket appears."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        appeared = {path.name for path in (home / "attach").glob("*")} - before
        if appeared:
            return appeared.pop()
        time.sleep(0.1)
    pytest.fail("no cell appeared")


def attach_sockets(home: Path) -> set[str]:
    """The attach sockets that are there."""
    return {path.name for path in (home / "attach").glob("*")}


def last_cell(home: Path) -> tuple[Path, CellFindings]:
    """The newest run, and its cell that had a sample."""
    run_dir = sorted((home / "runs").iterdir())[-1]
    (cell,) = [cell for cell in gather_cells(read_events(run_dir)).values() if cell.sample]
    return run_dir, cell


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)]
)
def test_an_interrupt_leaves_nothing(home: Path, tasks: Path, number: signal.Signals) -> None:
    """The cell is destroyed, the ledger is sealed, the exit code is 130. A process of its own, as a
    user starts it."""
    before = attach_sockets(home)
    with running(tasks, "tasks.py@waits", by=command) as process:
        new_cell(home, before)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == 130
    run_dir, cell = last_cell(home)
    assert cell.clean
    assert verify(run_dir).ok(strict=True)
    found = {event.kind: event.data for event in read_events(run_dir)}
    if number == signal.SIGTERM:  # of Ctrl-C, Inspect's log tells
        assert found[Kind.RUN_EVALUATED]["interrupted"] is True
    assert found[Kind.RUN_FINISHED]["outcome"] == "interrupted"
    assert attach_sockets(home) == before


@pytest.mark.promise("7.2")
def test_an_interrupt_during_preparation_is_no_missing_evidence(home: Path, tasks: Path) -> None:
    """Inspect's own commands ran in the cell, the sample had not begun and no log has it: 130, not
    void."""
    known = set((home / "runs").glob("*"))
    with running(tasks, "tasks.py@prepares", "--json") as process:
        wait_for(
            lambda: any(
                b'"file.write.completed"' in text and b'"exec.started"' in text
                for text in ledgers(home, known)
            ),
            "the setup script",
            within_s=120,
        )
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    _, cell = last_cell(home)
    assert (cell.preparing, cell.clean, bool(cell.operations)) == (True, True, True)


@pytest.mark.promise("6.2")
@pytest.mark.parametrize("word", ["naps", pytest.param("waits", marks=pytest.mark.thorough)])
def test_what_nohup_ignores_stays_ignored(home: Path, tasks: Path, word: str) -> None:
    """A run that is started with SIGHUP and SIGINT ignored goes on when they come; SIGTERM still
    ends it in order."""
    line = command(
        "run", "--policy", "low", "--model", "mockllm/model", "--json", f"tasks.py@{word}"
    )
    known = set((home / "runs").glob("*"))
    with subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", *line],
        cwd=tasks,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            # Inspect prepares the sample with commands of its own; while it does, it logs no sample
            # that is cancelled.
            wait_for(
                lambda: any(b'"sleep ' in text for text in ledgers(home, known)),
                "the command",
                within_s=120,
            )
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGINT):
                process.send_signal(number)
            if word == "waits":
                process.terminate()
            said = json.loads(process.communicate(timeout=120)[0])
        finally:
            process.kill()
    assert process.returncode == (0 if word == "naps" else 130)
    assert [sample["destroyed"] for sample in said["samples"]] == [True]


def ledgers(home: Path, known: set[Path]) -> Iterator[bytes]:
    """What stands in the ledgers of new runs."""
    for run_dir in set((home / "runs").glob("*")) - known:
        with suppress(FileNotFoundError):
            yield (run_dir / "ledger.jsonl").read_bytes()


@pytest.mark.promise("3.4")
def test_samples_take_cells_made_ahead(home: Path, tasks: Path) -> None:
    """`--warm 1`: all but the first sample take one, each its own; contained as without, no more
    cells than samples, and the record verifies."""
    code, said, errors = belljar_run(
        tasks, "tasks.py@quick", "--epochs", "4", "--max-samples", "1", "--warm", "1"
    )
    assert code == 0, errors
    cells = gather_cells(read_events(Path(said["run_dir"])))
    assert len(cells) == len({cell for sample in said["samples"] for cell in sample["cells"]}) == 4
    assert sum(cell.taken for cell in cells.values()) >= 1
    assert all(cell.taken == cell.ahead for cell in cells.values())
    assert all(
        sample["destroyed"] and sample["verdict"] == "contained" for sample in said["samples"]
    )
    assert verify(Path(said["run_dir"])).ok(strict=True)


@pytest.mark.promise("3.4")
def test_an_interrupt_ends_cells_made_ahead_too(home: Path, tasks: Path) -> None:
    """The one that stands, or is in the making, is destroyed with the sample's; the ledger is
    sealed."""
    before = attach_sockets(home)
    with running(
        tasks, "tasks.py@waits", "--epochs", "3", "--max-samples", "1", "--warm", "1"
    ) as process:
        new_cell(home, before)
        run_dir = sorted((home / "runs").iterdir())[-1]
        wait_for(
            lambda: (run_dir / "ledger.jsonl").read_bytes().count(b"warm-up") > 1,
            "a cell made ahead",
        )
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
    cells = gather_cells(read_events(run_dir))
    assert sorted((cell.ahead, cell.is_unused, cell.clean) for cell in cells.values()) == [
        (False, False, True),
        (True, True, True),
    ]
    assert verify(run_dir).ok(strict=True)


def attached(cell: str) -> subprocess.CompletedProcess[str]:
    """A session in the held cell. One that falls into the end of its sample is cut off, and made
    again."""
    for _ in range(10):
        seen = subprocess.run(
            command("attach", cell, "--user", "root", "--", "sh", "-c", "tty; id -un; exit 5"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if seen.returncode == 5:
            break
    return seen


def test_termination_holds_nothing(home: Path, tasks: Path) -> None:
    """SIGTERM during a sample ends the run although its cells were to be kept; Ctrl-C's meaning,
    and no hang."""
    before = attach_sockets(home)
    with running(tasks, "tasks.py@waits", "--no-sandbox-cleanup") as process:
        new_cell(home, before)
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 130
    assert last_cell(home)[1].clean
    assert attach_sockets(home) == before


def test_attach_and_hold(home: Path, tasks: Path) -> None:
    """A terminal in a held cell, recorded, until it is released by Inspect's own cleanup
    command."""
    before = attach_sockets(home)
    with running(tasks, "tasks.py@quick", "--no-sandbox-cleanup") as process:
        cell = new_cell(home, before)
        seen = attached(cell)
        assert seen.returncode == 5, seen.stderr
        assert seen.stdout.split()[1:] == ["root"]
        assert seen.stdout.startswith("/dev/pts/")
        cleaning = (
            "import belljar.harness._registry; from inspect_ai._cli.sandbox import sandbox_cleanup;"
            " sandbox_cleanup()"
        )
        subprocess.run(
            [sys.executable, "-c", cleaning, "belljar", cell],
            check=True,
            capture_output=True,
            timeout=120,
        )
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert f"attach {cell}" in said
    _, findings = last_cell(home)
    assert findings.clean
    assert [operation.pty for operation in findings.operations.values() if operation.pty] != []
    gone = subprocess.run(
        command("attach", cell),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert gone.returncode == 3
    assert os.environ["BELLJAR_HOME"] == str(home)
