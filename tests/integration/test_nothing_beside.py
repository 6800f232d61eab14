"""What a solver does late, beside its cell, stops the run: `belljar run` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.integration.processes import ended, quick_command

from belljar.ledger.verification import verify

pytestmark = [pytest.mark.vm, pytest.mark.slow]

TASKS = """
from pathlib import Path
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver, use_tools
from inspect_ai.tool import web_search
from inspect_ai.util import sandbox
from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

MARK = Path("on_the_host").absolute()

@solver
def local():
    async def solve(state, generate):
        await sandbox().exec(["true"])
        box = (await LocalSandboxEnvironment.sample_init("t", None, {}))["default"]
        await box.exec(["touch", str(MARK)])
        return state
    return solve

@solver
def search_later():
    async def solve(state, generate):
        return await generate(await use_tools(web_search("tavily"))(state, generate))
    return solve

@task
def makes_a_local_one():
    return Task(dataset=[Sample(input="x")], solver=local())

@task
def searches_later():
    return Task(dataset=[Sample(input="x")], solver=search_later())
"""


@pytest.mark.promise("1.5", "1.9")
@pytest.mark.parametrize(
    ("task", "named"), [("makes_a_local_one", "Local"), ("searches_later", "web_search")]
)
def test_what_a_solver_does_late_stops_the_run(
    home: Path, tmp_path: Path, task: str, named: str
) -> None:
    """Another provider's sandbox, or a tool that the policy refuses."""
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "refusing.yaml").write_text("belljar: 1\nrisk: low\nhost_tools: refuse\n")
    words = [f"tasks.py@{task}", "--policy", "refusing.yaml", "--model", "mockllm/model"]
    done = ended(quick_command("run", "--json", *words), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    said = json.loads(done.stdout)
    assert any(named in problem["text"] for problem in said["problems"])
    assert not (tmp_path / "on_the_host").exists()
    assert verify(Path(said["run_dir"])).ok(strict=True)
    assert all(sample["destroyed"] for sample in said["samples"])
