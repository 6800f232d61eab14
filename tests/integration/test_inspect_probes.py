"""Probes where they matter."""

from __future__ import annotations

import copy
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from tests.fakes.probing import FakeProbed
from tests.fakes.recorder import MemoryRecorder

from belljar.cell.parts import ContainerParts, Parts, gather_parts
from belljar.channel import ExecOutput
from belljar.events import Kind
from belljar.harness.evaluate import run_evaluation
from belljar.harness.options import RunRequest
from belljar.ledger.listing import read_events
from belljar.ledger.verification import verify
from belljar.policy.loaded import LoadedPolicy
from belljar.probe.model import Side, Verdict
from belljar.probe.run import probe_cell

PROGRAM = Path(__file__).parents[2] / "src" / "belljar" / "_bin" / f"probe-{platform.machine()}"
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, mean, scorer
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def work():
    async def solve(state, generate):
        await sandbox().exec(["sh", "-c", "(sleep 1000 &) ; touch /tmp/mine"])
        return state
    return solve

@scorer(metrics=[mean()])
def points():
    async def score(state, target):
        return Score(value=1)
    return score

@task
def two() -> Task:
    return Task(dataset=[Sample(id=name, input="x") for name in ("a", "b")], solver=work(), scorer=points(), sandbox="belljar")
"""


async def on_the_host(
    argv: Sequence[str],
    *,
    input: bytes,  # noqa: A002 - as a cell's
    timeout_s: float,
    user: str | None = None,
    alone: bool = False,
) -> ExecOutput:
    """The real program with nothing around it: no cell at all."""
    with anyio.fail_after(timeout_s):
        done = await anyio.run_process([PROGRAM, *argv[1:]], input=input, check=False)
    return ExecOutput(returncode=done.returncode, code=done.returncode, stdout=done.stdout)


def without_masks(policy: LoadedPolicy, home: Path, has_port: bool = False) -> Parts:
    """What a cell is made from, but for the files of the kernel that are covered in a container."""
    parts = gather_parts(policy, home)
    assert isinstance(parts, ContainerParts)
    config = copy.deepcopy(dict(parts.plan.oci.config))
    config["linux"] |= {"maskedPaths": [], "readonlyPaths": []}
    oci = replace(parts.plan.oci, config=config)
    return replace(parts, plan=replace(parts.plan, oci=oci))


@pytest.mark.promise("7.4")
@pytest.mark.vm
@pytest.mark.root
def test_a_weakened_cell_stops_the_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real container without its covers is breached at its start."""
    monkeypatch.setattr("belljar.cell.parts.gather_parts", without_masks)
    task = tmp_path / "task.py"
    task.write_text(TASK)
    words = [str(task), "--model", "mockllm/model", "--no-fail-on-error"]
    outcome = run_evaluation(
        RunRequest(inspect_args=words, policy="low", tier="container", quiet=True, home=home)
    )
    assert (outcome.exit_code, outcome.findings.verdict) == (2, Verdict.BREACHED)
    assert any("kernel.masked_files" in str(problem) for problem in outcome.findings.problems)
    lines = list(read_events(outcome.path))
    assert Kind.EXEC_STARTED not in {line.kind for line in lines}
    assert [line.data["clean"] for line in lines if line.kind is Kind.CELL_DESTROYED]
    assert all(line.data["clean"] for line in lines if line.kind is Kind.CELL_DESTROYED)
    assert verify(outcome.path).ok(strict=True)


ON_THE_HOST = [
    *("files.read_host", "files.write_host", "files.host_socket", "files.host_abstract"),
    *("processes.signal_host", "namespaces.shared"),
    *("network.host_tcp", "network.host_tcp6", "network.host_udp"),
]


@pytest.mark.promise("4.6")
@pytest.mark.anyio
async def test_with_no_wall_the_host_sees_every_attempt() -> None:
    """The program, run on the host itself."""
    nowhere = FakeProbed(host_pid=os.getpid())
    nowhere.run_probe_program = on_the_host  # type: ignore[assignment]
    report = await probe_cell(nowhere, which=ON_THE_HOST, recorder=MemoryRecorder())
    assert report.problem == ""
    assert report.verdict is Verdict.BREACHED
    assert {each.name: (each.verdict, each.seen_by) for each in report.findings} == dict.fromkeys(
        ON_THE_HOST, (Verdict.BREACHED, Side.HOST)
    )
