"""The run directory: what it holds, and how it ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import anyio
import pytest
from tests.fakes.vm import staged

from belljar.errors import CellError, LedgerError
from belljar.events import Event, Kind
from belljar.ledger.listing import read_events
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.verification import Status, verify


def exit_code_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def last_data(path: Path) -> dict[str, object]:
    *_, last = read_events(path)
    assert last.kind is Kind.RUN_FINISHED
    return last.data


def test_a_run_is_sealed(finished: Path) -> None:
    """From `run.started` to `run.finished`; all in it is in the manifest or covered."""
    first, *_ = read_events(finished)
    assert first.kind is Kind.RUN_STARTED
    assert first.data["run_id"] == finished.name
    assert {"cryptography", "pydantic-core", "ruamel-yaml"} <= set(first.data["libraries"])
    assert last_data(finished) == {"outcome": "completed", "exit_code": 0}
    manifest = json.loads((finished / "manifest.json").read_bytes())
    others = {"inspect/log.eval", "policy.yaml", "versions.json"}
    assert {*manifest["files"]} == {"ledger.jsonl", *others}
    assert verify(finished).status is Status.VERIFIED
    assert finished.stat().st_mode & 0o777 == 0o700


ENDS: list[tuple[BaseException, str, int]] = [
    (CellError("died"), "failed", 5),
    (OSError("x"), "failed", 1),
    (KeyboardInterrupt(), "interrupted", 130),
    (SystemExit(0), "completed", 0),
    (SystemExit(3), "failed", 3),
    (ExceptionGroup("tasks", [CellError("died")]), "failed", 5),
    (BaseExceptionGroup("tasks", [KeyboardInterrupt()]), "interrupted", 130),
]


@pytest.mark.parametrize(("error", "outcome", "code"), ENDS)
def test_a_run_that_raises_is_sealed_too(
    home: Path, error: BaseException, outcome: str, code: int
) -> None:
    """The exception is recorded and goes on; the record is complete and verifies."""
    with pytest.raises(type(error)), RunDirectory(home, "exec", []) as run:
        raise error
    last = last_data(run.path)
    assert (last["outcome"], last["exit_code"]) == (outcome, code)
    assert verify(run.path).status is Status.VERIFIED


def test_only_new_plain_names_are_written(home: Path) -> None:
    """A name with a path or of the seal's is refused; a file that is there stays."""
    with RunDirectory(home, "exec", []) as run:
        for name in ("../x", "a/b", "", "..", "/x", "manifest.json", "manifest.json.new"):
            with pytest.raises(ValueError, match="not a plain"):
                run.write_text(name, "x")
        run.write_json("plan.json", {"a": 1})
        with pytest.raises(LedgerError, match="exists"):
            run.write_text("plan.json", "y")
    assert (run.path / "plan.json").read_text() == '{"a":1}\n'


def test_a_link_in_a_run_is_not_sealed(home: Path) -> None:
    """A symlink among the files can't be covered, so the run is not sealed and says why."""
    with pytest.raises(LedgerError, match="link"), RunDirectory(home, "exec", []) as run:
        (run.path / "leak").symlink_to("/etc/passwd")
    assert verify(run.path).problem is not None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("act", ["record", "leave", "destroy"])
def test_a_fork_of_the_owner_ends_before_it_acts(home: Path, act: str) -> None:
    """A solver's child that returns would destroy its parent's cells and end their record."""

    async def in_a_cell() -> None:
        async with staged() as stage:
            if (child := os.fork()) == 0:
                signal.alarm(5)
                await stage.cell.destroy()
                os._exit(0)
            assert exit_code_of(child) == 1

    run = RunDirectory(home, "exec", [])
    with run:
        if act == "destroy":
            anyio.run(in_a_cell)
        elif (child := os.fork()) == 0:
            signal.alarm(5)
            if act == "record":
                run.recorder.record(Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": "x"}))
            else:
                run.__exit__(None, None, None)
            os._exit(0)
        else:
            assert exit_code_of(child) == 1
        assert run.recorder.events == len((run.path / "ledger.jsonl").read_bytes().splitlines())
    assert verify(run.path).status is Status.VERIFIED
