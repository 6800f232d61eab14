"""Nothing of an evaluation runs beside its cell: `belljar run` on real cells, from the command
line."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.integration.processes import quick_command

from belljar.ledger.verification import verify

pytestmark = [pytest.mark.vm, pytest.mark.slow]

TASKS = """
from pathlib import Path
from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate, solver, use_tools
from inspect_ai.tool import bash, mcp_server_sandbox, tool, web_search
from inspect_ai.util import sandbox
from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

MARK = Path("on_the_host").absolute()
Path("loaded").touch()

def one(solver, *calls):
    outputs = [ModelOutput.for_tool_call("mockllm", name, arguments) for name, arguments in calls]
    outputs.append(ModelOutput.from_content("mockllm", "done"))
    for output in outputs:
        output.usage = ModelUsage()
    return Task(dataset=[Sample(id="s", input="x")], solver=solver, model=get_model("mockllm/model", custom_outputs=outputs))

@tool
def lookup():
    async def execute(word: str) -> str:
        '''Look a word up.

        Args:
            word: Which.
        '''
        return "nothing"
    return execute

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
def marks():
    return one([use_tools(bash()), generate(tool_calls="loop")], ("bash", {"command": f"touch {MARK}; echo done"}))

@task
def makes_a_local_one():
    return one(local())

@task
def searches_later():
    return one(search_later())

@task
def serves_in_the_cell():
    return one(react(tools=[mcp_server_sandbox(command="no-such-server")]))

@task
def counted():
    return one(
        [use_tools(bash(timeout=1), lookup()), generate(tool_calls="loop")],
        ("bash", {"command": "echo hi"}), ("bash", {"command": "sleep 20"}), ("lookup", {"word": "x"}),
    )
"""
SOURCES = ["environment", "dotenv", "run_config"]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A directory with tasks."""
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "refusing.yaml").write_text("belljar: 1\nrisk: low\nhost_tools: refuse\n")
    return tmp_path


def belljar_run(tasks: Path, *arguments: str, **variables: str) -> tuple[int, dict[str, Any], str]:
    """`belljar run --json …`: exit code, what it printed, and its standard error."""
    done = subprocess.run(
        quick_command("run", "--json", *arguments),
        cwd=tasks,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@pytest.mark.parametrize("source", SOURCES)
def test_no_source_moves_the_commands_to_the_host(home: Path, tasks: Path, source: str) -> None:
    """Each source of the option `sandbox` is refused by name, before the task's file is loaded."""
    arguments, variables = ["tasks.py@marks", "--policy", "low"], {}
    if source == "environment":
        variables = {"INSPECT_EVAL_SANDBOX": "local"}
    elif source == "dotenv":
        (tasks / ".env").write_text("INSPECT_EVAL_SANDBOX=local\n")
    else:
        (tasks / "run.yaml").write_text("sandbox: local\n")
        arguments += ["--run-config", "run.yaml"]
    code, said, _ = belljar_run(tasks, *arguments, **variables)
    assert code == 4
    assert "sandbox" in said["error"]["message"]
    assert not (tasks / "on_the_host").exists()
    assert not (tasks / "loaded").exists()


def test_the_commands_run_in_a_cell(home: Path, tasks: Path) -> None:
    """Without such a source the same task runs, in a cell; its file is not on this host."""
    code, said, errors = belljar_run(tasks, "tasks.py@marks", "--policy", "low")
    assert code == 0, (said["problems"], [s["reasons"] for s in said["samples"]], errors)
    assert said["verdict"] == "contained"
    assert not (tasks / "on_the_host").exists()


@pytest.mark.parametrize(
    ("task", "named"), [("makes_a_local_one", "Local"), ("searches_later", "web_search")]
)
def test_what_a_solver_does_late_stops_the_run(
    home: Path, tasks: Path, task: str, named: str
) -> None:
    """Another provider's sandbox, or a tool that the policy refuses: exit 2, nothing ran, the
    record verifies."""
    code, said, errors = belljar_run(tasks, f"tasks.py@{task}", "--policy", "refusing.yaml")
    assert code == 2, errors
    assert any(named in problem["text"] for problem in said["problems"])
    assert not (tasks / "on_the_host").exists()
    assert verify(Path(said["run_dir"])).ok(strict=True)
    assert all(sample["destroyed"] for sample in said["samples"])


def test_an_mcp_server_in_the_cell_is_no_tool_of_this_host(home: Path, tasks: Path) -> None:
    """A policy that refuses the host's tools lets a sample use it: the server is started in the
    cell."""
    _, said, errors = belljar_run(tasks, "tasks.py@serves_in_the_cell", "--policy", "refusing.yaml")
    (sample,) = said["samples"]
    assert sample["verdict"] == "contained", (said["problems"], sample["reasons"], errors)
    assert sample["commands"] > 0
    print(said["exit_code"], said["problems"], said["tools"], sample)


def test_tools_are_counted_against_the_ledger(home: Path, tasks: Path) -> None:
    """A command that timed out has no event in the transcript, and reached the cell all the
    same."""
    code, said, errors = belljar_run(tasks, "tasks.py@counted", "--policy", "low")
    assert code == 0, (said["problems"], [s["reasons"] for s in said["samples"]], errors)
    uses = {use["name"]: (use["calls"], use["reached_cell"]) for use in said["tools"]}
    assert uses == {"bash": (2, 2), "lookup": (1, 0)}
