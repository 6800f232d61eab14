"""`belljar decoy find`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from belljar.cell.decoys import decoy_key
from belljar.cell.parts import start_run
from belljar.cli.main import run
from belljar.events import Event, JsonValue, Kind
from belljar.policy.guarding import DecoyKind, DecoySpec
from belljar.signals.decoys import digests, mint

CELL = "c-0123456789ab"


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The token of a decoy of the only sample of a run, after which there was another run."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    with start_run("run", "task.py", [], home=tmp_path) as made:
        key = decoy_key(made)
        minted = mint(key, CELL, DecoySpec(id="git", kind=DecoyKind.GIT_CREDENTIALS))
        placed: dict[str, JsonValue] = {
            "decoy": "git",
            "kind": minted.kind,
            "place": "~",
            "values": dict(digests(key, minted)),
        }
        for kind, data in (
            (Kind.SAMPLE_STARTED, {"sample": "thief/1"}),
            (Kind.DECOY_PLACED, placed),
        ):
            made.recorder.record(Event(kind=kind, cell_id=CELL, data=data))
    with start_run("run", "task.py", [], home=tmp_path) as other:
        decoy_key(other)
    return minted.values[0].text


@pytest.mark.promise("5.6")
def test_a_value_names_its_sample(token: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without repeating it; what nobody minted is nobody's."""
    assert run(["decoy", "find", token]) == 0
    shown = capsys.readouterr().out
    assert "sample thief/1" in shown
    assert CELL in shown
    assert token not in shown
    assert run(["decoy", "find", "--json", token]) == 0
    [found] = json.loads(capsys.readouterr().out)["found"]
    assert (found["sample"], found["decoy"], found["cell_id"]) == ("thief/1", "git", CELL)
    assert run(["decoy", "find", token[:-1] + "~"]) == 1
    assert run(["decoy", "find", "--run", "last", token]) == 1
