"""Copies of a run without its contents: they verify, and say so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from belljar.errors import HostError, LedgerError
from belljar.events import Body, Event, Kind
from belljar.ledger.keys import SigningKey, load_or_make_key
from belljar.ledger.listing import read_events
from belljar.ledger.redaction import CLASSES, choose, share
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.schema import OMISSIONS
from belljar.ledger.verification import Status, verify

from .conftest import make_run
from .test_verification import edited


@pytest.fixture
def copy(finished: Path, key: SigningKey, tmp_path: Path) -> Path:
    share(finished, tmp_path / "copy", choose(finished, ["outputs"]), key)
    return tmp_path / "copy"


def bodies(run: Path) -> list[Path]:
    return sorted(path for path in (run / "bodies").rglob("*") if path.is_file())


def test_a_copy_verifies_and_says_what_is_missing(
    finished: Path, copy: Path, key: SigningKey
) -> None:
    """With the log that quotes the outputs; the original is as it was, and strict means whole."""
    assert bodies(finished)
    assert not bodies(copy)
    assert not (copy / "inspect/log.eval").exists()
    result = verify(copy, expected_key=key.fingerprint, expected_run=finished.name)
    assert (result.status, result.problem) == (Status.PARTIAL, None)
    assert (result.ok(), result.ok(strict=True)) == (True, False)
    for told in ("6 bodies and 1 files were redacted", "outputs, logs"):
        assert told in result.warnings[0]
    assert result.root == verify(finished).root
    assert verify(finished).status is Status.VERIFIED


def test_data_that_is_a_body_of_its_own_is_never_left_out(
    home: Path, key: SigningKey, tmp_path: Path
) -> None:
    """Also where another event names the same bytes as contents: the events must stay readable."""
    data = {"reason": "x" * 100_000}
    content = json.dumps(data, separators=(",", ":")).encode()
    with RunDirectory(home, "exec", ["x"]) as run:
        run.recorder.record(Event(kind=Kind.PROTOCOL_VIOLATION, data=data))
        body = Body(name="stdout", content=content, total_bytes=len(content), sha256="")
        run.recorder.record(Event(kind=Kind.AIR_GAP_CHANGED, data={"reason": ""}, bodies=(body,)))
    share(run.path, tmp_path / "copy", choose(run.path, CLASSES), key)
    assert verify(tmp_path / "copy").ok()
    assert [event.data for event in read_events(tmp_path / "copy")][1] == data


def _statement_of(home: str) -> Callable[[Path], None]:
    """Another run, redacted on another host or on this one: its statement, signed well."""

    def tamper(copy: Path) -> None:
        store = copy.parent / home
        run = make_run(store)
        share(run, other := store / "other", choose(run, CLASSES), load_or_make_key(store))
        shutil.copy(other / OMISSIONS, copy / OMISSIONS)

    return tamper


def _edit(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def tamper(copy: Path) -> None:
        path = copy / OMISSIONS
        path.write_bytes(change(path.read_bytes()))

    return tamper


def _put_back(copy: Path) -> None:
    body = next((copy.parent / "store").glob("runs/*/bodies/*/*"))
    put(copy / "bodies" / body.parent.name / body.name)


def put(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"lie")


TAMPERS: dict[str, Callable[[Path], object]] = {
    "the statement is gone": lambda copy: (copy / OMISSIONS).unlink(),
    "the statement is empty": _edit(lambda _: b""),
    "it has another class": _edit(lambda text: text.replace(b"outputs", b"inputss")),
    "it is cut": _edit(lambda text: text[:-40]),
    "it is no statement": _edit(lambda text: text + b"{}\n"),
    "of another key": _statement_of("forger"),
    "of another run": _statement_of("store"),
    "one more file is gone": lambda copy: (copy / "policy.yaml").unlink(),
    "the ledger is gone": lambda copy: (copy / "ledger.jsonl").unlink(),
    "the manifest is gone": lambda copy: (copy / "manifest.json").unlink(),
    "a file is another": lambda copy: put(copy / "inspect/log.eval"),
    "the final checkpoint is gone": edited("checkpoints.jsonl", lambda lines: lines[:-1]),
    "a body is put back changed": _put_back,
}


@pytest.mark.promise("5.2")
@pytest.mark.parametrize("tamper", TAMPERS)
def test_a_tampered_copy_fails(copy: Path, tamper: str) -> None:
    """What is missing without a good statement of this run's key is a fault, as ever."""
    TAMPERS[tamper](copy)
    assert verify(copy).status is Status.BAD


def test_who_may_not_leave_anything_out(finished: Path, home: Path, tmp_path: Path) -> None:
    """Another key, an unfinished run and one that does not verify are refused; nothing is lost."""
    chosen, key = choose(finished, CLASSES), load_or_make_key(home)
    with pytest.raises(HostError):
        share(finished, tmp_path / "copy", chosen, load_or_make_key(tmp_path))
    with RunDirectory(home, "exec", ["x"]) as run, pytest.raises(LedgerError):
        share(run.path, tmp_path / "copy", choose(run.path, CLASSES), key)
    (finished / "policy.yaml").write_text("another")
    with pytest.raises(LedgerError):
        share(finished, tmp_path / "copy", chosen, key)
    assert len(bodies(finished)) == 6
    assert not (tmp_path / "copy").exists()
