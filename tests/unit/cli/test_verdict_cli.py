"""`belljar verdict` and the verdict in `belljar runs`, of runs of `belljar run` and of plain
Inspect: real Inspect and ledger, fake cells."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inspect_ai
import pytest
from tests.fakes.cell import RecordedCells

from belljar.cli.main import run as belljar
from belljar.errors import HostError
from belljar.harness import _registry  # noqa: F401 - the sandbox by its name
from belljar.harness.evaluate import run_evaluation
from belljar.harness.options import RunRequest
from belljar.harness.session import Session, session_scope

TASK = """
from pathlib import Path
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def work():
    async def solve(state, generate):
        await sandbox().exec(["true"])
        if state.sample_id == "b" and not Path("failed").exists():
            Path("failed").touch()
            raise RuntimeError("not yet")
        return state
    return solve

@task
def two():
    return Task(dataset=[Sample(id=name, input="x") for name in ("a", "b")], solver=work())
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the test's own, a task, and the directory in which it is run."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "home"))
    (tmp_path / "task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


Said = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Exit code and JSON of `belljar verdict …`."""

    def ask(*arguments: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = belljar(["verdict", *arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return ask


def evaluated(home: Path, cells: RecordedCells | None = None) -> Path:
    """A run of `belljar run`: its second sample has an error."""
    words = ["task.py", "--model", "mockllm/model", "--max-samples", "1", "--no-fail-on-error"]
    request = RunRequest(inspect_args=words, quiet=True, home=home, source=cells or RecordedCells())
    return run_evaluation(request).path


def under_inspect(home: Path, act: Callable[[], Any]) -> Path:
    """The run directory of something that plain Inspect does."""
    with session_scope(Session(source=RecordedCells(), home=home)):
        act()
    return sorted((home / "runs").iterdir())[-1]


def plain_eval(**options: Any) -> list[inspect_ai.log.EvalLog]:  # noqa: ANN401 - Inspect's options
    """`inspect eval task.py --sandbox belljar`."""
    return inspect_ai.eval(
        "task.py",
        model="mockllm/model",
        sandbox=("belljar", "high"),
        max_samples=1,
        display="none",
        log_dir="logs",
        fail_on_error=False,
        **options,
    )


@pytest.mark.promise("7.1")
def test_a_run_is_judged_by_every_name(
    home: Path, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    """By id, its beginning, `last` and path: the exit code of the run itself, and a table for
    people."""
    path = evaluated(home)
    for ref in (path.name, path.name[:20], "last", str(path)):
        code, findings = said(ref)
        assert (code, findings["verdict"], findings["exit_code"]) == (1, "contained", 1)
        assert findings["run_dir"] == str(path)
    assert belljar(["verdict", "last"]) == 1
    shown = capsys.readouterr().out
    assert "failed: 2 sample(s), 2 contained" in shown
    assert str(path) in shown


@pytest.mark.promise("7.1")
def test_a_run_that_crashed_is_void(home: Path, said: Said) -> None:
    """Without a manifest, and with its last checkpoint gone: what is there is shown, and none of it
    is contained."""
    path = evaluated(home)
    crashed = home / "runs" / "crashed"
    shutil.copytree(path, crashed)
    (crashed / "manifest.json").unlink()
    lines = (crashed / "checkpoints.jsonl").read_bytes().splitlines(keepends=True)
    (crashed / "checkpoints.jsonl").write_bytes(b"".join(lines[:-1]))
    code, findings = said(str(crashed))
    assert code == 2
    assert {reason["code"] for reason in findings["problems"]} == {"ledger_unfinished"}
    assert {sample["verdict"] for sample in findings["samples"]} == {"void"}


@pytest.mark.promise("7.1")
def test_a_run_that_was_refused_ends_as_it_did(home: Path, said: Said) -> None:
    """Nothing ran: the exit code is that of the refusal, now as then."""
    cells = RecordedCells()
    cells.prepare_error = HostError("no virtualisation here")
    with pytest.raises(HostError):
        evaluated(home, cells)
    code, findings = said("last")
    assert (code, findings["verdict"], findings["samples"]) == (3, "void", [])
    assert "run_refused" in {reason["code"] for reason in findings["problems"]}


@pytest.mark.promise("7.1")
def test_a_plain_inspect_run_says_its_verdict(
    home: Path, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    """At its end, with the command; the same when it is judged again, from anywhere; what is in the
    log is called the cell's."""
    path = under_inspect(home, plain_eval)
    told = capsys.readouterr().err
    assert "failed: 2 sample(s), 2 contained" in told
    assert f"belljar verdict {path.name}" in told
    code, findings = said("last")
    recorded = json.loads((path / "findings.json").read_text())
    assert (code, findings["samples"]) == (1, recorded["samples"])
    assert findings["unsealed_logs"] == recorded["unsealed_logs"]
    (info,) = inspect_ai.log.list_eval_logs("logs")
    for sample in inspect_ai.log.read_eval_log(info).samples or []:
        about = sample.metadata["containment"]
        assert (about["cell_verdict"], about["run_id"], "verdict" in about) == (
            "contained",
            path.name,
            False,
        )


def codes(findings: dict[str, Any]) -> set[str]:
    """All causes, of the run and of its samples."""
    reasons = (
        *findings["problems"],
        *(each for sample in findings["samples"] for each in sample["reasons"]),
    )
    return {reason["code"] for reason in reasons}


@pytest.mark.promise("7.1")
def test_a_plain_runs_log_that_is_gone_is_missing_evidence(home: Path, said: Said) -> None:
    """Void, until somebody says where it is."""
    under_inspect(home, plain_eval)
    (log,) = Path("logs").glob("*.eval")
    moved = log.rename("moved.eval")
    code, findings = said("last")
    assert code == 2
    assert codes(findings) >= {"log_missing", "sample_not_in_log"}
    assert said("last", "--log", str(moved))[0] == 1


FORGED = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver

@solver
def nothing():
    async def solve(state, generate):
        return state
    return solve

@task
def forged(run: str):
    mine = {"containment": {"run_id": run, "verdict": "contained"}}
    samples = [Sample(id="a", input="x", sandbox=("belljar", "high")), Sample(id="b", input="x", metadata=mine)]
    return Task(dataset=samples, solver=nothing())
"""


@pytest.mark.promise("7.2")
def test_a_data_set_cant_say_that_a_sample_is_another_runs(home: Path, said: Said) -> None:
    """A sample without a cell that names a run of the store, one that was contained: it has no
    cell."""
    first = evaluated(home)
    Path("forged.py").write_text(FORGED)
    named = {"run": first.name}
    under_inspect(
        home,
        lambda: inspect_ai.eval(
            "forged.py", task_args=named, model="mockllm/model", display="none", log_dir="logs"
        ),
    )
    code, findings = said("last")
    assert (code, findings["reused_samples"]) == (2, [])
    codes = {
        each["sample"]: [reason["code"] for reason in each["reasons"]]
        for each in findings["samples"]
    }
    assert codes == {"a": [], "b": ["no_cell"]}


@pytest.mark.promise("7.2")
def test_a_reused_sample_keeps_its_verdict_with_the_run_that_gave_it(
    home: Path, said: Said
) -> None:
    """`eval-retry` of a run of ours: what it reuses is listed as that run's, what it makes is
    judged, and an earlier run's attempts are not held against it."""
    first = evaluated(home)
    (log,) = (first / "inspect").iterdir()
    second = under_inspect(
        home, lambda: inspect_ai.eval_retry(str(log), log_dir="logs", display="none")
    )
    code, findings = said("last")
    assert second != first
    assert [(each["sample"], each["verdict"]) for each in findings["samples"]] == [
        ("b", "contained")
    ]
    assert findings["reused_samples"] == [
        {"sample": "a", "epoch": 1, "run_id": first.name, "verdict_of_that_run": "contained"}
    ]
    assert (code, findings["problems"]) == (0, [])


@pytest.mark.promise("5.2")
def test_the_verdict_of_a_redacted_copy_says_what_is_missing(
    home: Path, said: Said, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the same without bodies, and void without Inspect's log; page and export say so too."""
    run, copy = evaluated(home), tmp_path / "copy"
    before = said(run.name)[1]["verdict"]
    assert belljar(["share", run.name, str(copy), "--redact", "other", "--redact", "packets"]) == 0
    code, found = said(str(copy))
    assert found["verdict"] == before
    assert "were redacted" in found["left_out"]
    assert belljar(["export", str(copy), "--format", "intoto"]) == 1
    assert "were redacted" in capsys.readouterr().err
    assert belljar(["report", str(copy)]) == 0
    assert "left out on purpose" in (tmp_path / "copy.html").read_text()
    assert belljar(["purge", run.name, "--force"]) == 0
    assert not (home / "reports" / f"{run.name}.html").exists()
    code, found = said(run.name)
    assert (code, found["verdict"]) == (2, "void")
    assert f"the verdict was: {before}" in found["left_out"]
    assert "log_missing" in {each["code"] for each in found["problems"]}
    capsys.readouterr()
    assert belljar(["ledger", "verify", run.name]) == 0
    assert belljar(["ledger", "verify", run.name, "--strict"]) == 1
    assert "were purged on 20" in capsys.readouterr().out


def test_a_purge_asks_first_and_a_dry_run_deletes_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer, nothing is deleted."""
    run = evaluated(home)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert belljar(["purge", run.name, "--dry-run", "--json"]) == 0
    assert belljar(["purge", run.name, "--json"]) == 2
    assert belljar(["purge", run.name]) != 0
    assert not (run / "omissions.jsonl").exists()


def test_one_log_that_is_left_out_is_missing_evidence(home: Path, said: Said) -> None:
    """Though others are there, and a statement names it: nobody knows what it said."""
    words = ["task.py", "task.py", "--model", "mockllm/model", "--no-fail-on-error"]
    request = RunRequest(inspect_args=words, quiet=True, home=home, source=RecordedCells())
    run = run_evaluation(request).path
    logs = {log: log.read_bytes() for log in sorted((run / "inspect").iterdir())}
    assert len(logs) > 1
    assert belljar(["purge", run.name, "--force", "--class", "logs"]) == 0
    for log, content in [*logs.items()][1:]:
        log.parent.mkdir(exist_ok=True)
        log.write_bytes(content)
    code, found = said(run.name)
    assert (code, found["verdict"]) == (2, "void")
    assert "log_missing" in {each["code"] for each in found["problems"]}
