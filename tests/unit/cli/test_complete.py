"""What shells are offered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from belljar.store.journal import CellAbout, Journal, new_cell_id, own_entry

CELL = new_cell_id()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two runs and a cell of this process."""
    for name in ("20260101-000000000-aaaaaa", "20260102-000000000-bbbbbb"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    journal = Journal(tmp_path)
    journal.write(own_entry(CELL, "cell"))
    journal.describe(CELL, CellAbout(tier="gvisor", sample="arith-7"))
    return tmp_path


def offered(store: Path, *words: str) -> list[str]:
    """What bash is answered while the last of the words is written."""
    line = " ".join(("belljar", *words))
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words)), "BELLJAR_HOME": str(store)}
    done = subprocess.run(
        [sys.executable, "-m", "belljar"],
        env={**os.environ, **asked, "_BELLJAR_COMPLETE": "bash_complete"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    return [line.partition(",")[2] for line in done.stdout.decode().split()]


def test_what_bash_is_offered(store: Path) -> None:
    """Commands, options, presets, runs with the newest first, and living cells."""
    assert {"policy", "plan", "probe", "ps", "prune"} <= set(offered(store, "p"))
    assert "--tier" in offered(store, "exec", "--ti")
    assert offered(store, "exec", "lo") == ["low"]
    runs = ["last", "20260102-000000000-bbbbbb", "20260101-000000000-aaaaaa"]
    assert offered(store, "ledger", "show", "") == runs
    assert offered(store, "attach", CELL[:5]) == [CELL]
    Journal(store).remove(CELL)
