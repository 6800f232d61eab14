"""The log of an evaluation in parts equals that of the whole: real Inspect, fake cells."""

from __future__ import annotations

from pathlib import Path

from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log
from tests.unit.harness.runs import MODEL, ONE, evaluated

from belljar.harness.verdicts import LogPart, merge_logs

TASK = """
from inspect_ai import Epochs
from inspect_ai.scorer import SampleScore, Score, mean, metric, scorer, stderr

@metric
def most():
    def compute(scores: list[SampleScore]) -> float:
        return max(score.score.as_float() for score in scores)
    return compute

@scorer(metrics={"odd": [mean(), stderr()], "all": [most()]})
def points():
    async def score(state, target):
        number = int(str(state.sample_id)) * state.epoch
        return Score(value={"odd": number % 2, "all": number})
    return score

@task
def numbers():
    return Task(dataset=[Sample(input="x") for _ in range(5)], solver=work(), scorer=points(), epochs=Epochs(2, ["mean", "max"]))
"""
NAMES = ("1", "2", "3", "4", "5")


def run(tmp_path: Path, *arguments: str) -> Path:
    (tmp_path / "task.py").write_text(ONE + TASK)
    outcome = evaluated(tmp_path, f"{tmp_path}/task.py@numbers", *MODEL, *arguments)
    assert outcome.exit_code == 0, outcome.findings.errors
    return outcome.path / "inspect"


def part(folder: Path, *samples: str) -> LogPart:
    keys = {(sample, epoch) for sample in samples for epoch in (1, 2)}
    return LogPart(name=folder.parent.name, directory=folder, counted=keys)


def log_in(folder: Path) -> EvalLog:
    (info,) = list_eval_logs(str(folder))
    return read_eval_log(info)


def reduced(log: EvalLog) -> list[object]:
    return [
        (each.scorer, each.reducer, [(one.sample_id, one.value) for one in each.samples])
        for each in log.reductions or []
    ]


def merged(tmp_path: Path, *parts: LogPart) -> tuple[EvalLog, str]:
    folder = tmp_path / "merged"
    folder.mkdir()
    return (merge_logs(parts, NAMES, folder, epochs=2), log_in(folder))[::-1]


def test_the_merged_log_is_that_of_one_run(tmp_path: Path) -> None:
    """Of two parts in any order, one with a sample that another part has, too."""
    whole = log_in(run(tmp_path))
    first, second = run(tmp_path, "--sample-id", "4,5,2"), run(tmp_path, "--sample-id", "1,2,3")
    log, differing = merged(tmp_path, part(first, "4", "5"), part(second, "1", "2", "3"))
    assert differing == ""
    assert log.results is not None
    assert whole.results is not None
    assert log.results.model_dump() == whole.results.model_dump()
    assert reduced(log) == reduced(whole) != []
    assert (log.status, log.eval.dataset.sample_ids) == (
        whole.status,
        whole.eval.dataset.sample_ids,
    )
    for mine, theirs in zip(log.samples or [], whole.samples or [], strict=True):
        assert (mine.id, mine.epoch) == (theirs.id, theirs.epoch)
        assert mine.scores is not None
        assert mine.scores["points"].value == (theirs.scores or {})["points"].value


def test_parts_with_other_settings_are_named(tmp_path: Path) -> None:
    """Their numbers mean nothing together."""
    first = run(tmp_path, "--sample-id", "1")
    second = run(tmp_path, "--sample-id", "2", "--temperature", "0.3")
    log, differing = merged(tmp_path, part(first, "1"), part(second, "2"))
    assert "model_generate_config" in differing
    assert (log.status, log.results, len(log.samples or [])) == ("cancelled", None, 4)
