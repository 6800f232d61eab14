"""A fleet's stores, its commands, and what the tests of each engine look at."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.integration.processes import quick_command

from belljar.events import Kind
from belljar.ledger.files import is_being_written
from belljar.ledger.listing import read_events

TASKS = """
from pathlib import Path
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, mean, scorer, stderr
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def work(seconds, hold):
    async def solve(state, generate):
        is_held = bool(seconds) and state.sample_id == "s1"
        if is_held and hold:  # by the first attempt alone, which takes the file away
            file = Path(hold + ".once")  # a word that names a file would be refused
            is_held = file.exists()
            file.unlink(missing_ok=True)
        wait = seconds if is_held else 0
        said = await sandbox().exec(["sh", "-c", f"sleep {wait}; echo {state.sample_id} {state.epoch}"])
        state.store.set("said", said.stdout.split())
        return state
    return solve

@scorer(metrics=[mean(), stderr()])
def points():
    async def score(state, target):
        name, epoch = state.store.get("said")
        return Score(value=int(name[1:]) * int(epoch), answer=name)
    return score

@task
def numbers(count: int = 4, seconds: float = 0, hold: str = ""):
    samples = [Sample(id=f"s{n}", input="x") for n in range(count)]
    return Task(dataset=samples, solver=work(seconds, hold), scorer=points())
"""


class Fleet:
    """The nodes' stores and the head's; commands of the head."""

    def __init__(
        self,
        folder: Path,
        homes: Sequence[Path],
        head: Path,
        environment: Mapping[str, str],
        *,
        address: str,
    ) -> None:
        self.folder, self.homes, self.head, self.address = folder, homes, head, address
        (folder / "task").mkdir()
        (folder / "task" / "tasks.py").write_text(TASKS)
        # Inspect imports what is installed beside it: seconds for each unit on two processors.
        (folder / "empty" / "inspect_evals").mkdir(parents=True)
        for name in ("__init__.py", "_registry.py"):
            (folder / "empty" / "inspect_evals" / name).write_text("")
        self.environment = {
            **environment,
            "PYTHONPATH": str(folder / "empty"),
            "BELLJAR_POLICY": "low",
            "BELLJAR_FLEET_SILENCE_S": "60",  # no busy node is taken for a dead one
            "BELLJAR_HOME": str(head),
            "NO_COLOR": "1",
            "COLUMNS": "300",
        }

    def start_run(self, *arguments: str) -> subprocess.Popen[str]:
        words = ["tasks.py", *arguments, "--model", "mockllm/model", "--fleet", self.address]
        return subprocess.Popen(
            quick_command("run", "--json", *words),
            cwd=self.folder / "task",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def belljar(self, *words: str, home: Path | None = None) -> str:
        environment = {"BELLJAR_HOME": str(home or self.head)}
        return self.output(*quick_command(*words), environment=environment)

    def output(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            words,
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done.stdout + done.stderr


def lines_until(process: subprocess.Popen[str], word: str, count: int) -> list[str]:
    """The run's status lines until so many have the word."""
    found: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        found.append(line)
        if sum(word in each for each in found) == count:
            return found
    pytest.fail("".join(found))


def nothing_runs(nodes: Fleet, *homes: Path) -> bool:
    """Whether no node, or none of these stores, has a cell, and none of its runs goes on."""
    return all(
        nodes.belljar("ps", home=home) == "no cells\n"
        and not any(is_being_written(run) for run in (home / "runs").glob("*"))
        for home in homes or nodes.homes
    )


def keys_of(run: Path) -> dict[str, str]:
    """The keys of the nodes whose units came back, by name."""
    return {
        line.data["node"]: line.data["key"]
        for line in read_events(run)
        if line.kind is Kind.FLEET_UNIT_FINISHED
    }


def failures(run: Path, node: str) -> list[str]:
    """The reasons of the units that failed on a node."""
    return [
        line.data["reason"]
        for line in read_events(run)
        if line.kind is Kind.FLEET_UNIT_FAILED and line.data["node"] == node
    ]


def placed(run: Path, sample: str) -> list[tuple[int, int, str]]:
    return [
        (line.data["unit"], line.data["attempt"], line.data["node"])
        for line in read_events(run)
        if line.kind is Kind.FLEET_UNIT_PLACED and sample in line.data["samples"]
    ]
