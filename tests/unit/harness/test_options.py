"""Which options Belljar takes for itself, and that no source gets round it. Real Inspect parses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from inspect_ai._cli.eval import eval_command
from tests.fakes.cell import RecordedCells

from belljar.errors import HostError, PolicyError
from belljar.harness.arguments import check_early
from belljar.harness.evaluate import RunRequest, run_evaluation
from belljar.harness.options import TAKEN, Setting, check, explicit_arguments, read_options

TASK = """
from pathlib import Path
Path("loaded").touch()
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def work():
    async def solve(state, generate):
        await sandbox().exec(["sh", "-c", "pwd"])
        return state
    return solve

@task
def quick() -> Task:
    return Task(dataset=[Sample(id="s", input="x")], solver=work())
"""


def test_every_option_of_inspects_passes_the_early_check() -> None:
    """It refuses only what Inspect's own parser would."""
    names = [name for param in eval_command.params for name in param.opts + param.secondary_opts]
    context = click.Context(click.Command("run"))
    for name in names:
        check_early([name], context)
    assert len(names) > 100
    check_early(["-T", "nosuch.py", "--model", "--modle"], context)  # values of options
    with pytest.raises(click.NoSuchOption):
        check_early(["--modle", "x"], context)


# (variable, value): every one that Inspect reads for an option of the table, and none that agrees
# with Belljar
VARIABLES = [
    ("INSPECT_EVAL_SANDBOX", "local"),
    ("INSPECT_EVAL_SANDBOX", "docker:compose.yaml"),
    ("INSPECT_EVAL_SANDBOX", "belljar:other.yaml"),
    ("INSPECT_LOG_DIR", "elsewhere"),
    ("INSPECT_EVAL_LOG_DIR", "elsewhere"),
    ("INSPECT_EVAL_LOG_FILE_PATTERN", "../../{task}"),
    ("INSPECT_EVAL_NO_LOG_SAMPLES", "true"),
    ("INSPECT_EVAL_NO_SANDBOX_CLEANUP", "1"),
    ("INSPECT_EVAL_DETACH", "true"),
    ("INSPECT_EVAL_JSON", "true"),
    ("INSPECT_EVAL_JSON_OUTPUT", "true"),
]
RUN_CONFIGS = [
    "sandbox: local",
    "sandbox: belljar:other.yaml",
    "sandbox: {type: docker, config: compose.yaml}",
    "eval_config: {log_samples: false}",
    "eval_config: {sandbox_cleanup: false}",
]
TYPED = ["--sandbox=local", "--log-dir=elsewhere", "--no-log-samples", "--detach", "--json"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a task in it; what the test sets in the environment is undone."""
    for name in list(os.environ):
        if name.startswith("INSPECT_"):
            monkeypatch.delenv(name)
    for name, _ in VARIABLES:  # so that what a `.env` file sets is undone as well
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / "task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(here: Path, *arguments: str, naming: str, error: type[Exception] = PolicyError) -> None:
    """The run is refused by this name, no cell was opened and the task's file never loaded."""
    cells = RecordedCells()
    with pytest.raises(error, match=naming):
        run_evaluation(
            RunRequest(
                inspect_args=["task.py", "--model", "mockllm/model", *arguments],
                quiet=True,
                home=here / "home",
                source=cells,
            )
        )
    assert not cells.opened
    assert not (here / "loaded").exists()
    assert not (here / "elsewhere").exists()


@pytest.mark.parametrize(("name", "value"), VARIABLES)
def test_a_variable_is_refused_by_name(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """In the environment, in a `.env` file, and given by --env: before the task's file is
    loaded."""
    refused(here, "--env", f"{name}={value}", naming=f"--env {name}")
    (here / ".env").write_text(f"{name}={value}\n")
    refused(here, naming=rf"{name} in .*\.env")
    (here / ".env").unlink()
    monkeypatch.setenv(name, value)
    refused(here, naming=f"environment variable {name}")


def test_inspect_sets_no_variable_of_ours(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would set it after the policy was checked."""
    refused(here, "--env", "BELLJAR_POLICY=low", naming="--env BELLJAR_POLICY")
    monkeypatch.setenv("INSPECT_EVAL_ENV", "BELLJAR-POLICY=low")
    refused(here, naming="--env BELLJAR_POLICY")


@pytest.mark.parametrize(
    "name", ["BELLJAR_HOME", "BELLJAR_OCI_RUNTIME", "BELLJAR_POLICY", "LD_PRELOAD"]
)
def test_a_file_beside_a_task_does_not_choose_programs_or_the_store(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A `.env` file is refused that names what runs on this host, or where keys are; the operator's
    own variable is none of its business."""
    monkeypatch.setenv(name, "")  # so that what Inspect sets is undone
    monkeypatch.delenv(name)
    (here / ".env").write_text(f"{name}={here}/elsewhere\n")
    refused(here, naming=rf"{name} in .*\.env")


@pytest.mark.parametrize("text", RUN_CONFIGS)
def test_a_run_configuration_is_refused_by_key(
    here: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """However the file is named, typed or by its variable."""
    (here / "run.yaml").write_text(text)
    key = "log_samples|sandbox_cleanup|sandbox"
    refused(here, "--run-config", "run.yaml", naming=f"`({key})` in run.yaml")
    monkeypatch.setenv("INSPECT_EVAL_RUN_CONFIG", "run.yaml")
    refused(here, naming=f"`({key})` in run.yaml")


@pytest.mark.parametrize("typed", TYPED)
def test_what_is_typed_is_refused(here: Path, typed: str) -> None:
    """As an error of usage."""
    refused(here, typed, naming=typed.partition("=")[0], error=click.UsageError)


@pytest.mark.parametrize("text", ["no: such key", "[1, 2", "sandbox: {kind: local}"])
def test_a_run_configuration_that_can_not_be_read(here: Path, text: str) -> None:
    """An input error, not a traceback."""
    (here / "run.yaml").write_text(text)
    refused(here, "--run-config", "run.yaml", naming="run.yaml")
    refused(here, "--run-config", "missing.yaml", naming="missing.yaml")


def test_what_says_the_same_is_accepted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that agrees with what Belljar does anyway changes nothing; the run configuration
    names the task."""
    monkeypatch.setenv("INSPECT_EVAL_SANDBOX", "belljar")
    monkeypatch.setenv("INSPECT_EVAL_DETACH", "false")
    (here / "run.yaml").write_text(
        "task: task.py@quick\nmodel: mockllm/model\nsandbox: belljar\n"
        "eval_config: {log_samples: true, sandbox_cleanup: true}\n"
    )
    cells = RecordedCells()
    request = RunRequest(
        inspect_args=["--run-config", "run.yaml"], quiet=True, home=here / "home", source=cells
    )
    outcome = run_evaluation(request)
    assert (outcome.exit_code, len(cells.opened)) == (0, 1)


def test_cleanup_is_a_persons_to_leave_out() -> None:
    """Typed it is accepted, from anywhere else not."""
    check([Setting(option="no_sandbox_cleanup", value=True)])
    with pytest.raises(PolicyError):
        check([Setting(option="no_sandbox_cleanup", value=True, source=".env")])


def test_every_option_of_the_table_is_known_to_inspect() -> None:
    """A renamed option would be one that nobody checks."""
    known = {parameter.name for parameter in read_options(["x.py"]).context.command.params}
    assert {option for option, taken in TAKEN.items() if taken.flag} - {"belljar_variable"} <= known


def test_inspect_is_handed_what_belljar_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its command line read; and a command line that works otherwise is not used."""
    from inspect_ai._cli import eval as command

    seen: list[dict[str, object]] = []
    monkeypatch.setattr(command, "eval", lambda **given: seen.append(given))
    explicit = read_options(["x.py"]).explicit(tmp_path)
    with explicit_arguments(explicit):
        vars(command)["eval"](sandbox="local", log_samples=False, tasks="x.py")
    vars(command)["eval"](sandbox="local")
    assert seen[0] == {**explicit, "tasks": "x.py"}
    assert (explicit["sandbox"], explicit["log_samples"], explicit["log_dir"]) == (
        "belljar",
        True,
        str(tmp_path),
    )
    assert seen[1] == {"sandbox": "local"}

    other: Callable[[], None] = lambda: None  # noqa: E731 - a function that calls no `eval`
    monkeypatch.setattr(command, "eval_exec", other)
    with pytest.raises(HostError, match="not known"), explicit_arguments(explicit):
        pass
