"""Which options Belljar takes for itself, and that no source gets round it. Real Inspect parses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from tests.fakes.cell import RecordedCells
from tests.unit.harness.runs import MODEL, ONE, evaluated

from belljar.errors import HostError, PolicyError
from belljar.harness import operator
from belljar.harness.evaluate import run_evaluation
from belljar.harness.options import TAKEN, RunRequest, explicit_arguments, read_options
from belljar.host import settings

TASK = "from pathlib import Path\nPath('loaded').touch()\n" + ONE
# What Inspect reads for an option that is Belljar's
VARIABLES = {
    "INSPECT_EVAL_SANDBOX": "local",
    "INSPECT_LOG_DIR": "elsewhere",
    "INSPECT_EVAL_LOG_DIR": "elsewhere",
    "INSPECT_EVAL_LOG_FILE_PATTERN": "../../{task}",
    "INSPECT_EVAL_NO_LOG_SAMPLES": "true",
    "INSPECT_EVAL_NO_SANDBOX_CLEANUP": "1",
    "INSPECT_EVAL_DETACH": "true",
    "INSPECT_EVAL_JSON": "true",
}
TYPED = ["--sandbox=local", "--log-dir=elsewhere", "--no-log-samples", "--detach", "--json"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a task in it; what the test sets in the environment is undone."""
    for name in list(os.environ):
        if name.startswith("INSPECT_"):
            monkeypatch.delenv(name)
    (tmp_path / "task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(here: Path, *arguments: str, naming: str, error: type[Exception] = PolicyError) -> None:
    """The run is refused by this name, no cell was opened and the task's file never loaded."""
    cells = RecordedCells()
    with pytest.raises(error, match=naming):
        evaluated(here, "task.py", *MODEL, *arguments, cells=cells)
    assert not cells.opened
    assert not (here / "loaded").exists()
    assert not (here / "elsewhere").exists()


@pytest.mark.promise("1.9")
def test_variables_move_nothing_out_of_the_cell(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands, log and samples are where Belljar has them."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    cells = RecordedCells()
    request = RunRequest(inspect_args=["task.py", *MODEL], home=here / "home", source=cells)
    outcome = run_evaluation(request)
    assert (outcome.exit_code, len(cells.opened)) == (0, 1)
    assert all(cell.destroyed for cell in cells.opened)
    assert len([*(outcome.path / "inspect").glob("*.eval")]) == 1
    assert not (here / "elsewhere").exists()
    assert "`sandbox` counts for nothing" in capsys.readouterr().err


@pytest.mark.promise("1.9")
def test_what_is_belljars_own_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typed, as an error of usage."""
    for typed in TYPED:
        refused(here, typed, naming=typed.partition("=")[0], error=click.UsageError)
    refused(here, "--env", "BELLJAR_POLICY=low", naming="--env BELLJAR_POLICY")
    refused(here, "--env", "INSPECT-EVAL-LOG-FILE-PATTERN=../x", naming="--env INSPECT_EVAL_LOG")
    refused(here, "--run-config", "run.yaml", naming="run configuration")
    for name, value, naming in (
        ("INSPECT_EVAL_ENV", "BELLJAR-POLICY=low", "--env BELLJAR_POLICY"),
        ("INSPECT_EVAL_RUN_CONFIG", "run.yaml", "run configuration"),
    ):
        with monkeypatch.context() as only:
            only.setenv(name, value)
            refused(here, naming=naming)
    known = {parameter.name for parameter in read_options(["x.py"]).command.params}
    assert set(TAKEN) <= known


DANGEROUS = """
BELLJAR_HOME LD_PRELOAD PATH OPENSSL_CONF SSL_CERT_FILE PYTHONPATH HTTPS_PROXY
TMPDIR HF_HOME TERM_PROGRAM VLLM_DEFAULT_SERVER_ARGS INSPECT_EVAL_ENV INSPECT_EVAL_SOLVER
INSPECT_EVAL_MODEL_ARGS INSPECT_DEBUG_PORT INSPECT_CACHE_DIR AWS_CONFIG_FILE openai_api_key
BELLJAR_X_API_KEY INSPECT_X_API_KEY ANYTHING VERTEX_BASE_URL OPENAI_BASE_URL INSPECT_EVAL_SANDBOX INSPECT_LOG_DIR
"""


@pytest.mark.promise("1.9")
def test_a_file_beside_a_task_sets_only_what_is_allowed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `.env` file names Inspect's and a provider's variables, or is refused; none is set."""
    before = dict(os.environ)
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    for name in DANGEROUS.split():
        (here / ".env").write_text(f"export {name}='{here}/elsewhere'\n")
        with pytest.raises(PolicyError, match=rf"{name}\b"):
            read_options(["no-such-file.py"])
    assert dict(os.environ) == before


def test_a_key_from_a_file_is_no_secret_of_the_environment(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider would be sent it."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-operator")
    for quote in ("", "'", '"'):
        secret = f"OPENAI_API_KEY={quote}${{AWS_SECRET_ACCESS_KEY}}{quote}\n"
        (here / ".env").write_text(secret)
        refused(here, naming="OPENAI_API_KEY")


def test_a_file_that_is_none_is_refused(here: Path) -> None:
    """A named pipe does not hold the start; nothing is read beyond a bound or skipped."""
    file = here / ".env"
    os.mkfifo(file)
    refused(here, naming=r"\.env")
    file.unlink()
    large = b"#" * operator.MAX_BYTES + b"\nLD_PRELOAD=x\n"
    for content in (large, b"OPENAI_API_KEY=\xe9\n", b"\xef\xbb\xbfLD_PRELOAD=x\n"):
        file.write_bytes(content)
        refused(here, naming=r"\.env")


@pytest.mark.promise("1.9")
def test_the_inspect_command_s_file_says_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """That reads a `.env` file unjudged before Belljar is imported."""
    moved = {"BELLJAR_HOME": "/moved", "BELLJAR_X": "1", "LD_PRELOAD": "/x.so"}
    moved |= {"https_proxy": "http://x", "SSL_CERT_FILE": "/x", "X_API_KEY": "k"}
    start = {name: value for name, value in os.environ.items() if name not in moved}
    start["BELLJAR_HOME"] = "/of-the-start"
    monkeypatch.setattr(settings, "environment_at_start", lambda: start)
    for name, value in moved.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["/venv/bin/own-program"])
    operator.restore_start()
    assert os.environ["BELLJAR_HOME"] == "/moved"
    monkeypatch.setattr("sys.argv", ["/venv/bin/inspect", "eval"])
    operator.restore_start()
    left = {name: os.environ[name] for name in moved if name in os.environ}
    assert left == {"BELLJAR_HOME": "/of-the-start", "X_API_KEY": "k"}


@pytest.mark.promise("1.9")
def test_inspect_is_handed_what_belljar_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its command line read; and a command line that works otherwise is not used."""
    from inspect_ai._cli import eval as command

    seen: list[dict[str, object]] = []
    monkeypatch.setattr(command, "eval", lambda **given: seen.append(given))
    given = read_options(["x.py"])
    with explicit_arguments(given, tmp_path):
        vars(command)["eval"](sandbox="local", log_samples=False, tasks="x.py")
    vars(command)["eval"](sandbox="local")
    forced = {"sandbox": "belljar", "log_samples": True, "log_dir": str(tmp_path)}
    assert seen[0].items() >= {**forced, "tasks": "x.py"}.items()
    assert seen[1] == {"sandbox": "local"}

    other: Callable[[], None] = lambda: None  # noqa: E731 - a function that calls no `eval`
    monkeypatch.setattr(command, "eval_exec", other)
    with pytest.raises(HostError, match="not known"), explicit_arguments(given, tmp_path):
        pass
