"""How commands fail: one message for a person, one JSON object for a program, whatever failed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

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

    monkeypatch.setattr("inspect_ai._eval.loader.load_tasks", noisy)
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
