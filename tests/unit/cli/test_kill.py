"""`belljar kill` and `belljar release` over a journal that is real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.cli.main import run
from belljar.isolation.hold import hold

CELL = "c-000000000001"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of the test's own; what the test left in its journal is forgotten."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    yield tmp_path
    shutil.rmtree(tmp_path / "journal", ignore_errors=True)


def test_what_is_not_proven_is_2(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged entry of the journal is named."""
    (store / "journal").mkdir()
    (store / "journal" / f"{CELL}.json").write_text("{")
    assert run(["kill", "--all"]) == 2
    assert CELL in capsys.readouterr().out


@pytest.mark.promise("6.4")
def test_hold_and_release(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`ps` says that the store is held and why; then it is released, once."""
    assert run(["kill", "--all", "--hold", "--reason", "incident 7"]) == 0
    capsys.readouterr()
    assert run(["ps"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "no cells\n"
    assert "incident 7" in shown.err
    assert run(["release", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hold"]["reason"] == "incident 7"
    assert run(["release", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"released": False, "hold": None}
    assert run(["ps"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.promise("6.4")
@pytest.mark.parametrize("words", [["exec", "--", "id"], ["probe"], ["plan", "low"]])
def test_a_held_host_says_so(
    store: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever would make a cell is refused with the way out; a plan says it and goes on where it
    can."""
    hold(store, "incident 7")
    code = run(words)
    said = capsys.readouterr().err
    assert "incident 7" in said
    assert "belljar release" in said
    assert code != 0
