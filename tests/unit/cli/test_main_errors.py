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
from tests.unit.ledger.conftest import make_run

from belljar.cli.main import run
from belljar.errors import CellError, ContainmentBreach, LedgerError

Failing = Callable[..., int]


def test_interrupts_are_130(failing: Failing, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone, in a group, or beside an error that the interrupt caused."""
    group = BaseExceptionGroup("tasks", [KeyboardInterrupt(), CellError("closed")])
    for error in (KeyboardInterrupt(), click.Abort(), group):
        assert failing(error) == 130
        assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["runs --json", "run --help", "export last --format jsonl"])
def test_a_reader_that_went_away_ends_a_command_quietly(words: str, tmp_path: Path) -> None:
    """The exit code is a shell's for SIGPIPE, not a failed evaluation's; whatever prints."""
    make_run(tmp_path)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "belljar", *words.split()],
            env={**os.environ, "BELLJAR_HOME": str(tmp_path)},
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.promise("1.3")
def test_a_lack_of_descriptors_is_the_hosts(
    failing: Failing, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever it comes from."""
    lack = OSError(errno.EMFILE, "Too many open files")
    caused = caused_by(CellError("it could not be made"), lack)
    for error in (lack, caused, ExceptionGroup("tasks", [lack])):
        assert failing(error) == 3
        assert "ulimit -n" in capsys.readouterr().err


def caused_by(error: BaseException, cause: BaseException) -> BaseException:
    """The error with its cause."""
    error.__cause__ = cause
    return error


def test_a_breach_wins_over_everything(failing: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside an interrupt or a lack of descriptors, hidden by what was raised while it was handled,
    and though it can't be told: nobody reads, the disk is full, Ctrl-C."""
    breach, lack = ContainmentBreach("a survivor"), OSError(errno.EMFILE, "Too many open files")
    looped = CellError("its own cause")
    looped.__cause__ = looped
    for error in (
        breach,
        caused_by(ContainmentBreach("a survivor"), lack),
        BaseExceptionGroup("tasks", [KeyboardInterrupt(), breach, looped]),
        caused_by(KeyboardInterrupt(), breach),
        caused_by(LedgerError("no space left"), BaseExceptionGroup("tasks", [lack, breach])),
        BaseExceptionGroup("tasks", [lack, caused_by(CellError("it is gone"), breach)]),
    ):
        assert failing(error) == 2
    assert failing(looped) == 5
    for untold in (BrokenPipeError(), OSError(errno.ENOSPC, "full"), KeyboardInterrupt()):

        def show(*_: object, untold: BaseException = untold, **__: object) -> None:
            raise untold

        with monkeypatch.context() as only:
            only.setattr("belljar.cli.console.show", show)
            only.setattr("belljar.cli.main._reader_gone", lambda: 141)
            assert failing(breach) == 2


def test_no_command_succeeds_by_sys_exit(failing: Failing) -> None:
    """A library's or a task's `sys.exit(0)` would read as "contained"."""
    for error in (SystemExit(0), SystemExit(), SystemExit("x")):
        with pytest.raises(RuntimeError):
            failing(error)


@pytest.fixture
def unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that can't be one, not even for root."""
    home = tmp_path / "file" / "store"
    home.parent.write_text("")
    monkeypatch.setenv("BELLJAR_HOME", str(home))
    return home


@pytest.mark.parametrize(
    "words", [["exec", "--", "true"], ["ps"], ["runs"], ["image", "import", "oci-archive:/nowhere"]]
)
def test_a_store_that_can_not_be_used_is_this_hosts(
    words: list[str], unusable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever meets it first: exit 3, one message that names the place and `BELLJAR_HOME`."""
    assert run(words) == 3
    said = capsys.readouterr().err
    assert str(unusable) in said
    assert "BELLJAR_HOME" in said
