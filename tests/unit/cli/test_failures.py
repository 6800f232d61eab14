"""How commands end: messages, exit codes, JSON, signals, and where input and output may not lead."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
from tests.unit.ledger.conftest import make_run

from belljar.cli.console import run_async
from belljar.cli.main import run
from belljar.errors import (
    BelljarError,
    CellError,
    ContainmentBreach,
    HostError,
    LedgerError,
    PolicyError,
    ProtocolViolation,
)

Failing = Callable[..., int]

CODES = {
    PolicyError: ("policy_error", 4),
    HostError: ("host_error", 3),
    CellError: ("cell_error", 5),
    ProtocolViolation: ("protocol_violation", 5),
    LedgerError: ("ledger_error", 5),
    ContainmentBreach: ("containment_breach", 2),
}
"""The code and the exit code of each kind."""


@pytest.fixture(autouse=True)
def _empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_what_inspect_prints_does_not_spoil_the_object_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its log handler prints on standard output, whether it is Python's or the descriptor."""

    def noisy(*_given: object) -> None:
        print("a warning of Inspect")
        os.write(1, b"a warning of a program\n")
        raise PolicyError("no such file", where="here")

    monkeypatch.setattr("belljar.harness.evaluate.inspect_load_tasks", noisy)
    (tmp_path / "task.py").touch()
    assert run(["run", str(tmp_path / "task.py"), "--json"]) == 4
    written = capfd.readouterr()
    assert json.loads(written.out)["error"]["message"] == "no such file"
    assert "a warning of Inspect" in written.err
    assert "a warning of a program" in written.err


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_task_that_leaves_while_it_is_loaded_is_wrong(command: str, tmp_path: Path) -> None:
    """Its `sys.exit(0)` would read as "contained"."""
    (tmp_path / "task.py").write_text("import sys\nsys.exit(0)\n")
    assert run([command, str(tmp_path / "task.py")]) == 4


@pytest.mark.parametrize("kind", CODES)
def test_each_kind_of_error_has_its_code(
    kind: type[BelljarError], failing: Failing, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code says whose fault it is, as without `--json`; task groups don't hide it."""
    code, exit_code = CODES[kind]
    error = kind("it\x1b broke", where="a", hint="do this")
    assert failing(ExceptionGroup("outer", [OSError("other"), error]), "--json") == exit_code
    assert json.loads(capsys.readouterr().out) == {
        "error": {"code": code, "message": "it\x1b broke", "where": "a", "hint": "do this"}
    }


def test_an_interrupt_or_a_defect_is_an_object_too(
    failing: Failing, capsys: pytest.CaptureFixture[str]
) -> None:
    """130 with what failed on the way out; a defect keeps its traceback beside the object."""
    interrupt = KeyboardInterrupt()
    interrupt.__cause__ = CellError("the jail ended", where="cell c-0")
    assert failing(interrupt, "--json") == 130
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["where"]) == ("interrupted", "cell c-0")
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError("mine"), "--json")
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "internal_error"


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
def test_interrupts_are_130_and_a_lack_of_descriptors_is_the_hosts(
    failing: Failing, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone, in a group, or beside an error that it caused."""
    group = BaseExceptionGroup("tasks", [KeyboardInterrupt(), CellError("closed")])
    lack = OSError(errno.EMFILE, "Too many open files")
    caused = caused_by(CellError("it could not be made"), lack)
    for error in (KeyboardInterrupt(), click.Abort(), group):
        assert failing(error) == 130
        assert "interrupted" in capsys.readouterr().err
    for of_host in (lack, caused, ExceptionGroup("tasks", [lack])):
        assert failing(of_host) == 3
        assert "ulimit -n" in capsys.readouterr().err


def caused_by(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def test_a_breach_wins_over_everything(failing: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over an interrupt or a lack, hidden by another error, and though it can't be told."""
    breach, lack = ContainmentBreach("a survivor"), OSError(errno.EMFILE, "Too many open files")
    looped = CellError("its own cause")
    looped.__cause__ = looped
    for error in (
        breach,
        caused_by(ContainmentBreach("a survivor"), lack),
        BaseExceptionGroup("tasks", [KeyboardInterrupt(), breach, looped]),
        caused_by(KeyboardInterrupt(), breach),
        caused_by(BrokenPipeError(errno.EPIPE, "gone"), breach),  # which click makes an exit
        caused_by(LedgerError("no space left"), BaseExceptionGroup("tasks", [lack, breach])),
        BaseExceptionGroup("tasks", [lack, caused_by(CellError("it is gone"), breach)]),
    ):
        assert failing(error) == 2
    assert failing(looped) == 5
    for failure in (BrokenPipeError(), OSError(errno.ENOSPC, "full"), KeyboardInterrupt()):
        with monkeypatch.context() as only:
            only.setattr("belljar.cli.console.show", Mock(side_effect=failure))
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


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["policy schema", "export"])
def test_output_that_can_not_be_written_is_one_message(
    command: str, unbuffered: str, tmp_path: Path
) -> None:
    """A full disk behind standard output: exit 3, what happened and what to do, no traceback."""
    words = [*command.split(), *([str(make_run(tmp_path))] if command == "export" else [])]
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "belljar", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert ran.returncode == 3
    said = "belljar: standard output can't be written: No space left on device"
    assert ran.stderr.splitlines()[0] == said
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_descriptor_is_an_empty_one(closed: str) -> None:
    """Its number is no file's of ours: `main` puts /dev/null there, and ends as it would have."""
    look = (
        "import os,sys; from belljar.cli import main as m; m._open_standard_streams();"
        " os._exit(os.open('.', 0) < 3 or None in (sys.stdin, sys.stdout, sys.stderr))"
    )
    argv = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", look]
    assert subprocess.run(argv, check=False).returncode == 0


JAIL_DIED = CellError("the jail ended while it came up", where="jail of cell c-0")


async def fail_of(error: Exception, number: int | None) -> None:
    """Fail, just after a signal came that the loop has not taken in yet."""
    if number is not None:
        os.kill(os.getpid(), number)
    raise error


@pytest.mark.parametrize(
    ("error", "number", "is_interruption"),
    [
        *((JAIL_DIED, number, True) for number in (signal.SIGINT, signal.SIGTERM)),
        (JAIL_DIED, None, False),
        (ContainmentBreach("out"), signal.SIGINT, False),
        (ZeroDivisionError(), signal.SIGINT, False),
    ],
)
def test_what_fails_of_a_signal_is_an_interruption(
    error: Exception, number: int | None, *, is_interruption: bool
) -> None:
    """A child that got the signal may be gone before ours is heard: the interruption says so. No
    signal hides a breach or a defect, and without one nothing is an interruption."""
    at = number or signal.SIGINT
    before = signal.signal(at, signal.SIG_DFL)  # one that was ignored at the start (`nohup`) stays
    try:
        with pytest.raises(KeyboardInterrupt if is_interruption else type(error)) as raised:
            run_async(fail_of, error, number)
    finally:
        signal.signal(at, before)
    assert (raised.value.__cause__ if is_interruption else raised.value) is error


def test_without_inspect_a_run_says_what_to_install() -> None:
    """It is an extra: other commands work without it."""
    words = "import sys; sys.modules['inspect_ai'] = None; from belljar.cli.main import run"
    argv = [sys.executable, "-c", f"{words}; sys.exit(run(['run', 'x.py']))"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, "pip install" in done.stderr) == (3, True)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        *(("logs", "belljar ledger show"), ("stats", "belljar watch"), ("view", "belljar report")),
        *(("help", "belljar --help"), ("policy check high", "belljar policy show high")),
        *(("guard scan x", "show RUN --kind guard"), ("purge last", "share RUN OUT --redact")),
        *(("ledger export last", "belljar export RUN"), ("forward c 1:2", "cell.connect(port)")),
        *((command, "no runs yet") for command in ("report", "verdict last", "replay last")),
        *(
            ("exec id", "exec -- "),
            ("exec low id", "exec -- "),
            ("run task.py --polcy x", "--policy"),
        ),
    ],
)
def test_a_usual_slip_is_answered_with_what_to_type(
    words: str, named: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A word of another tool or version, no `--`, no run yet, a mistyped option."""
    (tmp_path / "task.py").touch()
    assert run(words.split()) == 2
    assert named in capfd.readouterr().err
