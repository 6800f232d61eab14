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
    part_of,
)

from belljar.cli.main import run
from belljar.isolation.prune import PrunedPart


def test_the_command_says_what_was_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words and as JSON; 3 when something stayed that should have gone, 0 else; nonsense is a
    usage error."""
    home = tmp_path
    monkeypatch.setenv("BELLJAR_HOME", str(home))
    directory = part_of(home, "templates", STALE, 15 * DAY_S)
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
        why="Permission denied",
        state="failed",
    )

    async def prune(*_: object, **__: object) -> list[PrunedPart]:
        return [stayed]

    monkeypatch.setattr("belljar.isolation.prune.prune", prune)
    assert run(["prune"]) == 3
    shown_text = "NOT removed kernel dddddddddddd (0 B): Permission denied\n"
    assert capsys.readouterr().out == shown_text
