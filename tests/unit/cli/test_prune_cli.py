"""`belljar prune`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.isolation.test_prune import (
    DAY_S,
    OLD_KERNEL,
    STALE,
    held_by_another,
    make_store,
    template,
)

from belljar.cli.main import run
from belljar.isolation.prune import PrunedPart


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A store with images and kernels, made from nothing."""
    return make_store(tmp_path / "store")


def test_the_command_says_what_was_freed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words and as JSON; 3 when something stayed that should have gone, 0 else; nonsense is a
    usage error."""
    monkeypatch.setenv("BELLJAR_HOME", str(home))
    directory = template(home, STALE, used_s_ago=15 * DAY_S)
    assert run(["prune", "--dry-run"]) == 0
    assert "would remove template 222222222222" in capsys.readouterr().out
    with held_by_another(directory):
        assert run(["prune"]) == 0
    assert "kept template 222222222222" in capsys.readouterr().out
    assert run(["prune", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["dry_run"], shown["parts"][0]["state"]) == (False, "removed")
    assert shown["freed_bytes"] == shown["parts"][0]["size_bytes"] > 0
    assert run(["prune"]) == 0
    assert capsys.readouterr().out == "nothing to remove\n"
    assert run(["prune", "--unused-for", "2"]) == 2
    stayed = PrunedPart(
        kind="kernel",
        path=home / "kernels" / OLD_KERNEL,
        why="old",
        state="failed",
        note="Permission denied",
    )

    async def prune(*_: object, **__: object) -> list[PrunedPart]:
        return [stayed]

    monkeypatch.setattr("belljar.isolation.prune.prune", prune)
    assert run(["prune"]) == 3
    shown_text = "NOT removed kernel dddddddddddd (0 B): old: Permission denied\n"
    assert capsys.readouterr().out == shown_text
