"""Every cause of a doubt, in every place that shows a verdict: one answer."""

from __future__ import annotations

import errno
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.log import list_eval_logs, read_eval_log, write_eval_log
from tests.fakes.cell import FakeCell, RecordedCells
from tests.fakes.judged import RUN_PLACES, SAMPLE_PLACES, Judged, cell_verdicts
from tests.fakes.probing import read_canary

from belljar.cell.health import HealthFinding
from belljar.errors import ContainmentBreach, HostError, LedgerError
from belljar.events import Event, Kind
from belljar.harness import evaluate
from belljar.harness.evaluate import run_evaluation
from belljar.harness.options import RunRequest
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.writer import LedgerWriter
from belljar.report.reasons import ReasonCode as Code

TASK = """
import signal
import sys
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, mean, metric, scorer
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

tries = []

@solver
def work():
    async def solve(state, generate):
        await sandbox().exec(["true"])
        tries.append(1)
        if state.metadata.get("fails") and len(tries) == 1:
            raise RuntimeError("the first try fails")
        if state.metadata.get("leaves") == "solver":
            sys.exit(0)
        if state.metadata.get("interrupts"):
            signal.raise_signal(signal.SIGINT)
        return state
    return solve

@metric
def left():
    def value(scores):
        answers = [getattr(each, "score", each).answer for each in scores]
        return sys.exit(0) if "metric" in answers else 1
    return value

@scorer(metrics=[mean(), left()])
def points():
    async def score(state, target):
        said = state.metadata.get("says")
        leaves = state.metadata.get("leaves")
        return Score(value=1, answer=leaves, metadata={"containment": said} if said else None)
    return score

@task
def one(fails: bool = False, interrupts: bool = False, says: str = "", leaves: str = ""):
    about = {"fails": fails, "interrupts": interrupts, "says": says, "leaves": leaves}
    return Task(dataset=[Sample(id="s", input="x", metadata=about)], solver=work(), scorer=points())
"""


@dataclass(frozen=True)
class Cause:
    """What a run is made to suffer, and what every place must say of it."""

    verdict: str
    exit_code: int
    codes: set[Code]
    sample: str = ""
    options: tuple[str, ...] = ()
    arm: Callable[[FakeCell, int], object] = lambda _cell, _number: None
    spoil: Callable[[RunDirectory], object] = lambda _run: None
    destroy_error: Exception | None = None

    @property
    def sample_verdict(self) -> str:
        return self.sample or self.verdict


def at(number: int, act: Callable[[FakeCell], object]) -> Callable[[FakeCell, int], object]:
    return lambda cell, now: act(cell) if now == number else None


def silent(cell: FakeCell) -> None:
    cell.run_probe_program.spoil = lambda _: b""


def loses_shell(cell: FakeCell) -> None:
    """From the second check on no command can be run."""
    cell.healths.append(HealthFinding(stage="exec", errno=errno.ENOENT))


def escaped(cell: FakeCell) -> None:
    cell.run_probe_program.touch = read_canary


def another_sample(cell: FakeCell) -> None:
    """A second cell, of a sample that no log will have."""
    recorder: Any = cell.run.recorder
    started: dict[str, Any] = {"sample": "lost", "epoch": 1, "task": "one", "uuid": "elsewhere"}
    recorder.record(Event(kind=Kind.SAMPLE_STARTED, cell_id="fake-lost", data=started))
    ended: dict[str, Any] = {"clean": True, "survivors": [], "duration_ms": 1}
    recorder.record(Event(kind=Kind.CELL_DESTROYED, cell_id="fake-lost", data=ended))


def log_of(run: RunDirectory) -> Path:
    (path,) = run.inspect_log_dir.iterdir()
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def unfinish(run: RunDirectory) -> None:
    (info,) = list_eval_logs(str(run.inspect_log_dir))
    log = read_eval_log(info)
    log.status = "started"
    write_eval_log(log, info.name)


def without_samples(run: RunDirectory) -> None:
    old = log_of(run)
    with zipfile.ZipFile(old) as before:
        names = [name for name in before.namelist() if not name.startswith("samples/")]
        kept = {name: before.read(name) for name in names}
    with zipfile.ZipFile(old, "w") as after:
        for name, content in kept.items():
            after.writestr(name, content)


def change_a_byte(run: RunDirectory) -> None:
    path = run.path / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"sample":"s"', b'"sample":"t"', 1))


LOST = Code.SAMPLE_NOT_IN_LOG
RETRIED = ("-T", "fails=true", "--retry-on-error", "1")
CAUSES: dict[str, Cause] = {
    "nothing": Cause("contained", 0, set()),
    "an error of the task": Cause("contained", 1, set(), options=("-T", "fails=true")),
    "an interrupt": Cause("contained", 130, set(), options=("-T", "interrupts=true")),
    "a sandbox that lost its shell": Cause("contained", 1, set(), arm=at(0, loses_shell)),
    "a scorer that says void": Cause("void", 2, {Code.SCORER_VOID}, options=("-T", "says=void")),
    "a scorer that says breached": Cause(
        "breached", 2, {Code.SCORER_BREACHED}, options=("-T", "says=breached")
    ),
    "a void attempt before a clean one": Cause(
        "void", 2, {Code.PROBES_VOID}, options=RETRIED, arm=at(1, silent)
    ),
    "a clean attempt before a void one": Cause(
        "void", 2, {Code.PROBES_VOID}, options=RETRIED, arm=at(3, silent)
    ),
    "no answer at the start": Cause("void", 2, {Code.PROBES_VOID}, arm=at(0, silent)),
    "a destruction that is not clean": Cause(
        "void", 2, {Code.CELL_SURVIVORS, Code.RUN_ERROR}, destroy_error=HostError("a survivor")
    ),
    "a way out at the end": Cause(
        "breached", 2, {Code.PROBES_BREACHED, Code.RUN_ERROR}, arm=at(1, escaped)
    ),
    "a sample that no log has": Cause(
        "void", 2, {LOST, Code.PROBES_MISSING}, sample="contained", arm=at(1, another_sample)
    ),
    "a log that is gone": Cause(
        "void", 2, {Code.LOG_MISSING, LOST}, spoil=lambda run: log_of(run).unlink()
    ),
    "a log that is cut short": Cause(
        "void",
        2,
        {Code.LOG_UNREADABLE, LOST, Code.VERDICTS_NOT_IN_LOG},
        spoil=lambda run: cut(log_of(run)),
    ),
    "a log without its samples": Cause(
        "void", 2, {Code.LOG_INCOMPLETE, LOST}, spoil=without_samples
    ),
    "a log that was not ended": Cause(
        "void", 2, {Code.LOG_UNFINISHED}, sample="contained", spoil=unfinish
    ),
    "a changed ledger": Cause("void", 2, {Code.LEDGER_BAD}, spoil=change_a_byte),
}


def suffer(cause: Cause, home: Path, patch: pytest.MonkeyPatch) -> Judged:
    patch.setenv("BELLJAR_HOME", str(home))
    task = home / "task.py"
    task.write_text(TASK)
    cells, probings, invoke = RecordedCells(), iter(range(100)), evaluate.invoke
    cells.destroy_error = cause.destroy_error

    def arm(cell: FakeCell, _phase: str) -> None:
        cause.arm(cell, next(probings))

    cells.on_probe = arm

    def spoiling(*arguments: Any, **options: Any) -> bool:  # noqa: ANN401 - as the real one
        interrupted = invoke(*arguments, **options)
        (run,) = [each for each in arguments if isinstance(each, RunDirectory)]
        cause.spoil(run)
        return interrupted

    words = (str(task), "--model", "mockllm/model", *cause.options)
    with patch.context() as only:
        only.setattr(evaluate, "invoke", spoiling)
        request = RunRequest(
            inspect_args=words, quiet=True, home=home, source=cells, require_contained=True
        )
        return Judged(run_evaluation(request), sample="s")


@pytest.mark.promise("7.1", "7.5")
@pytest.mark.parametrize("name", CAUSES)
def test_each_place_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Verdict and exit code of the run, the sample's verdict, and the cause's codes, when the run
    is judged and when it is judged again."""
    cause = CAUSES[name]
    judged = suffer(cause, tmp_path, monkeypatch)
    for place, run_said in RUN_PLACES.items():
        assert run_said(judged) == (cause.verdict, cause.exit_code), place
    scored = judged.logged is not None and "points" in (judged.logged.scores or {})
    for place, sample_said in SAMPLE_PLACES.items():
        said, expected = sample_said(judged), cause.sample_verdict
        if place == "--require-contained" and said == "not contained":
            said = expected if expected != "contained" else "not contained"
        is_hidden = judged.logged is None or (place == "scorer's view" and not scored)
        assert said == expected or (said is None and is_hidden), place
    assert all(words == {"cell_verdict"} for words in cell_verdicts(judged))
    findings = judged.outcome.findings
    reasons = [*findings.problems, *(reason for row in findings.rows for reason in row.reasons)]
    assert {reason.code for reason in reasons} == cause.codes
    again = dict(judged.said("verdict", judged.outcome.path.name)[1])
    recorded = json.loads((judged.path / "findings.json").read_text())
    recorded.pop("not_in_metrics")
    again.pop("run_dir")
    assert again == recorded


@pytest.mark.parametrize("what", ["findings.json", Kind.RUN_EVALUATED, Kind.RUN_FINISHED])
def test_a_breach_is_told_though_its_verdict_can_not_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A full disk would read as a fault of the record; without a breach it is one."""
    write_json, record = RunDirectory.write_json, LedgerWriter.record

    def full(run: RunDirectory, name: str, value: Any) -> Path:  # noqa: ANN401 - JSON's
        if name == what:
            raise LedgerError("no space left on device")
        return write_json(run, name, value)

    def full_ledger(ledger: LedgerWriter, event: Event) -> int:
        if event.kind == what:
            raise LedgerError("no space left on device")
        return record(ledger, event)

    monkeypatch.setattr(RunDirectory, "write_json", full)
    monkeypatch.setattr(LedgerWriter, "record", full_ledger)
    with pytest.raises(LedgerError):
        suffer(CAUSES["nothing"], tmp_path, monkeypatch)
    with pytest.raises(ContainmentBreach):
        suffer(CAUSES["a way out at the end"], tmp_path, monkeypatch)


@pytest.mark.promise("7.1")
@pytest.mark.parametrize(("place", "breached"), [("solver", False), ("metric", True)])
def test_a_task_that_leaves_by_sys_exit_chooses_no_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, *, breached: bool
) -> None:
    """Its 0 would read as "contained": the run ends as any that failed, and a breach stays one."""
    cause = Cause("", 0, set(), options=("-T", f"leaves={place}"))
    if breached:
        cause = replace(cause, arm=at(0, escaped))
    judged = suffer(cause, tmp_path, monkeypatch)
    assert judged.outcome.exit_code != 0
    if breached:
        assert RUN_PLACES["outcome"](judged) == ("breached", 2)
