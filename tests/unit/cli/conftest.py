"""A run of `belljar run` that is over (real Inspect and ledger, fake cells."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.fakes.cell import RecordedCells

from belljar.cli.main import run as belljar
from belljar.harness.evaluate import run_evaluation
from belljar.harness.options import RunRequest

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


def evaluated(home: Path, *words: str, cells: RecordedCells | None = None) -> Path:
    """A run of the task in the working directory: its second sample has an error."""
    argv = ["task.py", *words, "--model", "mockllm/model", "--max-samples", "1"]
    argv.append("--no-fail-on-error")
    request = RunRequest(inspect_args=argv, quiet=True, home=home, source=cells or RecordedCells())
    return run_evaluation(request).path


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "task.py").write_text(TASK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BELLJAR_HOME", str(folder / "home"))
        patch.chdir(folder)
        evaluated(folder / "home")
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the test's own, a task, and the directory in which it is run."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "home"))
    (tmp_path / "task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def ran(once: Path, home: Path) -> Path:
    shutil.copytree(once, home.parent, dirs_exist_ok=True)
    (path,) = (home / "runs").iterdir()
    return path


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The exit code of `belljar ps WORDS…` in which this is raised."""

    def run_it(error: BaseException, *words: str) -> int:
        monkeypatch.setattr("belljar.cli.cells.list_cells", Mock(side_effect=error))
        return belljar(["ps", *words])

    return run_it
