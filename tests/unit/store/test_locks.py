"""Claims: a lock on a directory of the store as long as a cell uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.isolation.test_prune import DAY_S, STALE, held_by_another, part_of

from belljar.errors import HostError
from belljar.isolation.prune import unneeded
from belljar.store.locks import claimed, in_use, locked
from belljar.store.scratch import MAKING, is_owned, retire_unclaimed

LOOKER = """
import pathlib, sys
from belljar.store.locks import in_use
print(in_use(pathlib.Path(sys.argv[1])), flush=True)
while True:
    in_use(pathlib.Path(sys.argv[1]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty store."""
    return tmp_path


def test_a_cell_that_takes_one_between_look_and_removal_keeps_it(home: Path) -> None:
    """To take it out needs the lock that the cell shares."""
    directory = part_of(home, "templates", STALE, 15 * DAY_S)
    (part,) = unneeded(home, 14 * DAY_S)
    assert part.state == "unneeded"
    with held_by_another(directory):
        assert retire_unclaimed(directory) is None
    with claimed(directory):
        assert in_use(directory)
    retired = retire_unclaimed(directory)
    assert retired is not None
    assert not directory.exists()


def test_a_crash_while_removing_leaves_what_the_next_start_sweeps(home: Path) -> None:
    """What was taken out bears the name of who takes it out, beside where it was."""
    retired = retire_unclaimed(part_of(home, "templates", STALE, 0))
    assert retired is not None
    assert is_owned(retired.name, prefix=MAKING)
    assert retired.parent == home / "templates"
    assert retire_unclaimed(home / "templates" / STALE) is None
    assert not in_use(home / "templates" / STALE)


def test_who_only_looks_refuses_no_claim(home: Path) -> None:
    """To look needs the lock alone, for an instant."""
    directory = part_of(home, "templates", STALE, 0)
    with subprocess.Popen(
        [sys.executable, "-c", LOOKER, str(directory)], stdout=subprocess.PIPE
    ) as looker:
        try:
            assert looker.stdout is not None
            looker.stdout.readline()
            for _ in range(2000):
                with claimed(directory):
                    pass
        finally:
            looker.kill()


def test_what_stands_and_stays_locked_is_an_error_and_not_missing(home: Path) -> None:
    """Whoever were told that it isn't there would make it again, over what cells use."""
    directory = part_of(home, "templates", STALE, 0)
    with (
        held_by_another(directory, "LOCK_EX"),
        pytest.raises(HostError, match="keeps a lock"),
        claimed(directory),
    ):
        pass
    assert directory.exists()


def test_a_lock_by_name_is_held_by_one(tmp_path: Path) -> None:
    """Without waiting, whoever comes second gets an error; afterwards the lock is free again."""
    with locked(tmp_path, "one"):
        with locked(tmp_path, "two", wait=False):
            pass
        with pytest.raises(BlockingIOError), locked(tmp_path, "one", wait=False):
            pass
    with locked(tmp_path, "one", wait=False):
        pass
