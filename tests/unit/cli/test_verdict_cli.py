"""`belljar verdict` and the verdict in `belljar runs`, of runs of `belljar run` and of plain
Inspect: real Inspect and ledger, fake cells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inspect_ai
import pytest
from tests.fakes.cell import RecordedCells
from tests.unit.cli.conftest import evaluated

from belljar.cli.main import run as belljar
from belljar.harness import _registry  # noqa: F401 - the sandbox by its name
from belljar.harness.session import Session, session_scope

Said = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def ask(*arguments: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = belljar(["verdict", *arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return ask


def under_inspect(home: Path, act: Callable[[], Any]) -> Path:
    with session_scope(Session(source=RecordedCells(), home=home)):
        act()
    return sorted((home / "runs").iterdir())[-1]


def plain(file: str, **more: Any) -> list[inspect_ai.log.EvalLog]:  # noqa: ANN401 - Inspect's options
    return inspect_ai.eval(file, model="mockllm/model", display="none", log_dir="logs", **more)


def codes(findings: dict[str, Any]) -> set[str]:
    of_samples = [each for sample in findings["samples"] for each in sample["reasons"]]
    return {reason["code"] for reason in (*findings["problems"], *of_samples)}


@pytest.mark.promise("7.1")
def test_a_run_is_judged_by_every_name(
    ran: Path, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    """By id, its beginning, `last` and path: the exit code of the run itself, and a table."""
    for ref in (ran.name, ran.name[:20], "last", str(ran)):
        code, findings = said(ref)
        assert (code, findings["verdict"], findings["exit_code"]) == (1, "contained", 1)
        assert findings["run_dir"] == str(ran)
    assert belljar(["verdict", "last"]) == 1
    assert "failed: 2 sample(s), 2 contained" in capsys.readouterr().out


@pytest.mark.promise("7.1")
def test_a_plain_inspect_run_says_its_verdict(
    home: Path, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    """At its end, with the command; the same when it is judged again."""
    sandbox: Any = {"sandbox": ("belljar", "high"), "max_samples": 1, "fail_on_error": False}
    path = under_inspect(home, lambda: plain("task.py", **sandbox))
    told = capsys.readouterr().err
    assert "failed: 2 sample(s), 2 contained" in told
    assert f"belljar verdict {path.name}" in told
    code, findings = said("last")
    recorded = json.loads((path / "findings.json").read_text())
    assert (code, findings["samples"]) == (1, recorded["samples"])
    assert findings["unsealed_logs"] == recorded["unsealed_logs"]
    (log,) = Path("logs").glob("*.eval")
    for sample in inspect_ai.log.read_eval_log(str(log)).samples or []:
        about = sample.metadata["containment"]
        assert (about["cell_verdict"], about["run_id"]) == ("contained", path.name)
        assert "verdict" not in about
    moved = log.rename("moved.eval")
    code, findings = said("last")
    assert code == 2
    assert codes(findings) >= {"log_missing", "sample_not_in_log"}
    assert said("last", "--log", str(moved))[0] == 1
    under_inspect(home, lambda: plain("task.py", log_samples=False, **sandbox))
    code, findings = said("last")
    assert (code, findings["verdict"]) == (2, "void")
    assert codes(findings) >= {"log_without_samples", "sample_not_in_log"}


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
def test_a_data_set_cant_say_that_a_sample_is_another_runs(
    home: Path, ran: Path, said: Said
) -> None:
    """A sample without a cell that names a contained run of the store has no cell."""
    Path("forged.py").write_text(FORGED)
    under_inspect(home, lambda: plain("forged.py", task_args={"run": ran.name}))
    code, findings = said("last")
    assert (code, findings["reused_samples"]) == (2, [])
    reasons = {
        each["sample"]: [reason["code"] for reason in each["reasons"]]
        for each in findings["samples"]
    }
    assert reasons == {"a": [], "b": ["no_cell"]}


@pytest.mark.promise("7.2")
def test_a_reused_sample_keeps_its_verdict_with_the_run_that_gave_it(
    home: Path, ran: Path, said: Said
) -> None:
    """What `eval-retry` reuses is the old run's; what it makes is judged, alone."""
    (log,) = (ran / "inspect").iterdir()
    retry = lambda: inspect_ai.eval_retry(str(log), log_dir="logs", display="none")  # noqa: E731
    assert under_inspect(home, retry) != ran
    code, findings = said("last")
    rows = [(each["sample"], each["verdict"]) for each in findings["samples"]]
    assert rows == [("b", "contained")]
    assert findings["reused_samples"] == [
        {"sample": "a", "epoch": 1, "run_id": ran.name, "verdict_of_that_run": "contained"}
    ]
    assert (code, findings["problems"]) == (0, [])


@pytest.mark.promise("5.2")
def test_the_verdict_of_a_redacted_copy_says_what_is_missing(
    home: Path, ran: Path, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the same without bodies, and void without Inspect's log; page and export say so too."""
    before, copy = said(ran.name)[1]["verdict"], home.parent / "copy"
    assert belljar(["share", ran.name, str(copy), "--redact", "other", "--redact", "packets"]) == 0
    code, found = said(str(copy))
    assert found["verdict"] == before
    assert "were redacted" in found["left_out"]
    assert belljar(["export", str(copy), "--format", "intoto"]) == 1
    assert "were redacted" in capsys.readouterr().err
    assert belljar(["report", str(copy)]) == 0
    assert "left out on purpose" in copy.with_suffix(".html").read_text()
    bare = home.parent / "bare"
    assert belljar(["share", ran.name, str(bare), "--redact", "all"]) == 0
    code, found = said(str(bare))
    assert (code, found["verdict"]) == (2, "void")
    assert f"the verdict was: {before}" in found["left_out"]
    assert "log_missing" in codes(found)
    capsys.readouterr()
    assert belljar(["ledger", "verify", str(bare)]) == 0
    assert belljar(["ledger", "verify", str(bare), "--strict"]) == 1
    assert "were redacted on 20" in capsys.readouterr().out


def test_one_log_that_is_left_out_is_missing_evidence(home: Path, said: Said) -> None:
    """Though others are there, and a statement names it: nobody knows what it said."""
    run = evaluated(home, "task.py")
    logs = {log: log.read_bytes() for log in sorted((run / "inspect").iterdir())}
    assert len(logs) > 1
    copy = home.parent / "copy"
    assert belljar(["share", run.name, str(copy), "--redact", "logs"]) == 0
    (copy / "inspect").mkdir(exist_ok=True)
    for log, content in [*logs.items()][1:]:
        (copy / "inspect" / log.name).write_bytes(content)
    code, found = said(str(copy))
    assert (code, found["verdict"]) == (2, "void")
    assert "log_missing" in codes(found)
