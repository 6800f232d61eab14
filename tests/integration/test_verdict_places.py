"""One verdict in every place, of runs in real containers and ranges: the causes whose evidence
comes after the cell has given its own word."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.judged import RUN_PLACES, SAMPLE_PLACES, Judged, cell_verdicts

from belljar.harness.evaluate import run_evaluation
from belljar.harness.options import RunRequest
from belljar.report.reasons import ReasonCode as Code

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.root]

TASK = """
import os, signal
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, mean, scorer
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

tries = []

@solver
def work(command: str, dies: bool):
    async def solve(state, generate):
        done = await sandbox().exec(["sh", "-c", command])
        assert done.success, done.stderr
        tries.append(1)
        if dies and len(tries) == 1:
            os.kill(sandbox()._sandbox.cell.host_pid, signal.SIGKILL)
            raise RuntimeError("the first try fails")
        return state
    return solve

@scorer(metrics=[mean()])
def points():
    async def score(state, target):
        return Score(value=1)
    return score

@task
def one(command: str = "true", dies: bool = False):
    return Task(dataset=[Sample(id="s", input="x")], solver=work(command, dies), scorer=points())
"""
ALONE = (
    "belljar: 1\nrisk: low\nresources: {cpus: 1, memory: 256MiB, disk: 64MiB, processes: 64,"
    " lifetime: 10m}\n"
)
DEPOT = """\
network:
  stand_ins:
    depot:
      kind: cell
      names: [depot.example]
      ports: [8080/http]
      user: root
      command: [sh, -c, 'mkdir /d && cd /d && head -c 3000000 /dev/zero > big && exec python3 -m http.server 8080']
      health: {http: /, port: 8080, interval: 200ms, retries: 100}
"""
SMALL = "  record: {packets: 1MiB}\n"
FETCH = "curl -sSf -o /dev/null http://depot.example:8080/big"


CAUSES: dict[str, tuple[str, tuple[str, ...], str, set[Code]]] = {
    "nothing": (ALONE + DEPOT, ("-T", f"command={FETCH}"), "contained", set()),
    "a void attempt before a clean one": (
        ALONE,
        ("-T", "dies=true", "--retry-on-error", "1"),
        "void",
        {Code.PROBES_VOID},
    ),
    "a full packet record": (
        ALONE + DEPOT + SMALL,
        ("-T", f"command={FETCH}"),
        "void",
        {Code.PACKETS_NOT_RECORDED},
    ),
}


@pytest.mark.promise("7.1", "7.2")
@pytest.mark.parametrize("name", CAUSES)
def test_every_place_says_the_same(home: Path, tmp_path: Path, name: str) -> None:
    """Of one real run: the sample's and the run's verdict wherever they are shown, the exit code,
    the reason, and the cell's word by its own name."""
    policy, options, verdict, codes = CAUSES[name]
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "policy.yaml").write_text(policy)
    words = (str(tmp_path / "task.py"), "--model", "mockllm/model", *options)
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
    assert {reason.code for reason in row.reasons} == codes
    expected = dict.fromkeys(SAMPLE_PLACES, verdict)
    if verdict != "contained":
        expected["--require-contained"] = "not contained"
    assert {place: show(judged) for place, show in SAMPLE_PLACES.items()} == expected
    code = 0 if verdict == "contained" else 2
    assert {place: show(judged) for place, show in RUN_PLACES.items()} == dict.fromkeys(
        RUN_PLACES, (verdict, code)
    )
    assert all(words == {"cell_verdict"} for words in cell_verdicts(judged))
