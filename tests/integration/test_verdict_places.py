"""One verdict in every place, of a run in a real container and range."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.judged import RUN_PLACES, SAMPLE_PLACES, Judged, cell_verdicts

from belljar.harness.evaluate import run_evaluation
from belljar.harness.options import RunRequest
from belljar.report.reasons import ReasonCode as Code

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.root]

TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, mean, scorer
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def work():
    async def solve(state, generate):
        done = await sandbox().exec(["curl", "-sSf", "-o", "/dev/null", "http://depot.example:8080/big"])
        assert done.success, done.stderr
        return state
    return solve

@scorer(metrics=[mean()])
def points():
    async def score(state, target):
        return Score(value=1)
    return score

@task
def one():
    return Task(dataset=[Sample(id="s", input="x")], solver=work(), scorer=points())
"""
POLICY = """\
belljar: 1
risk: low
resources: {cpus: 1, memory: 256MiB, disk: 64MiB, processes: 64, lifetime: 10m}
network:
  record: {packets: 1MiB}
  stand_ins:
    depot:
      kind: cell
      names: [depot.example]
      ports: [8080/http]
      user: root
      command: [sh, -c, 'mkdir /d && cd /d && head -c 3000000 /dev/zero > big && exec python3 -m http.server 8080']
      health: {http: /, port: 8080, interval: 200ms, retries: 100}
"""


@pytest.mark.promise("7.1", "7.2")
def test_every_place_says_the_same(home: Path, tmp_path: Path) -> None:
    """Of one real run whose packet record is full."""
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "policy.yaml").write_text(POLICY)
    words = (str(tmp_path / "task.py"), "--model", "mockllm/model")
    request = RunRequest(
        inspect_args=words,
        policy=str(tmp_path / "policy.yaml"),
        tier="container",
        quiet=True,
        home=home,
        require_contained=True,
    )
    judged = Judged(run_evaluation(request), sample="s")
    (row,) = judged.outcome.findings.rows
    assert {reason.code for reason in row.reasons} == {Code.PACKETS_NOT_RECORDED}
    expected = dict.fromkeys(SAMPLE_PLACES, "void")
    expected["--require-contained"] = "not contained"
    assert {place: show(judged) for place, show in SAMPLE_PLACES.items()} == expected
    assert {place: show(judged) for place, show in RUN_PLACES.items()} == dict.fromkeys(
        RUN_PLACES, ("void", 2)
    )
    assert all(words == {"cell_verdict"} for words in cell_verdicts(judged))
