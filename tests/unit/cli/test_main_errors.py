"""Every command is there and helps, and every error has its message and exit code."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import belljar
from belljar.cli.main import run
from belljar.errors import (
    CellError,
    ContainmentBreach,
)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    """Runs a command in which this is raised, and gives its exit code."""

    def run_it(error: BaseException) -> int:
        def fail() -> None:
            raise error

        monkeypatch.setattr("belljar.isolation.reap.list_cells", fail)
        return run(["ps"])

    return run_it


def belljar_command(
    *words: str, home: str = os.environ.get("BELLJAR_HOME", ""), **options: object
) -> subprocess.CompletedProcess[bytes]:
    """A process of its own, on the store `home`."""
    env = {**os.environ, "PYTHONPATH": str(Path(belljar.__file__).parents[1]), "BELLJAR_HOME": home}
    argv = [sys.executable, "-m", "belljar", *words]
    return subprocess.run(argv, env=env, timeout=120, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_an_error_says_what_where_and_what_to_do(
    failing: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """With everything escaped, on standard error."""
    assert failing(CellError("it\x1b[2J broke", where="a\rb", hint="do this\nthen that")) == 5
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "belljar: a\\rb: it\\x1b[2J broke\n  hint: do this\n  hint: then that\n"


def test_interrupts_are_130(
    failing: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone, in a group, or beside an error that the interrupt caused."""
    group = BaseExceptionGroup("tasks", [KeyboardInterrupt(), CellError("closed")])
    for error in (KeyboardInterrupt(), click.Abort(), group):
        assert failing(error) == 130
        assert "interrupted" in capsys.readouterr().err


def without_a_reader(*words: str, home: Path) -> subprocess.CompletedProcess[bytes]:
    """The command with a standard output that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return belljar_command(*words, home=str(home), stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "doctor --no-prove",
        "runs",
        "runs --json",
        "policy schema",
        "plan low",
        "run --help",
        "ps --json",
    ],
)
def test_a_reader_that_went_away_ends_a_command_quietly(words: str, tmp_path: Path) -> None:
    """With the exit code that a shell gives for SIGPIPE, not with that of a failed evaluation;
    whatever prints."""
    (tmp_path / "runs" / "broken").mkdir(parents=True)
    done = without_a_reader(*words.split(), home=tmp_path)
    assert (done.returncode, done.stderr) == (141, b"")


def test_another_broken_pipe_is_not_taken_for_a_reader_that_went_away(
    failing: Callable[[BaseException], int],
) -> None:
    """While standard output is read, the error is a defect of ours and keeps its traceback."""
    broken = BrokenPipeError(errno.EPIPE, "Broken pipe")
    with pytest.raises(RuntimeError) as caught:
        failing(broken)
    assert caught.value.__cause__ is broken


@pytest.mark.promise("1.3")
def test_a_lack_of_descriptors_is_the_hosts(
    failing: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever it comes from; but a breach stays one, beside an interrupt too."""
    lack = OSError(errno.EMFILE, "Too many open files")
    caused, breach = CellError("it could not be made"), ContainmentBreach("a survivor")
    caused.__cause__ = breach.__cause__ = lack
    for error in (lack, caused, ExceptionGroup("tasks", [lack])):
        assert failing(error) == 3
        assert "ulimit -n" in capsys.readouterr().err
    assert failing(breach) == 2
    assert failing(BaseExceptionGroup("tasks", [KeyboardInterrupt(), breach])) == 2
