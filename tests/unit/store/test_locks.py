"""Claims: a lock on a directory of the store as long as a cell uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.isolation.test_prune import STALE, held_by_another, part_of

from belljar.errors import HostError
from belljar.store.locks import claimed, locked

LOOKER = """
import pathlib, sys
from belljar.store.locks import in_use
print(in_use(pathlib.Path(sys.argv[1])), flush=True)
while True:
    in_use(pathlib.Path(sys.argv[1]))
"""


def test_who_only_looks_refuses_no_claim(tmp_path: Path) -> None:
    """To look needs the lock alone, for an instant."""
    directory = part_of(tmp_path, "templates", STALE, 0)
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


def test_what_stands_and_stays_locked_is_an_error_and_not_missing(tmp_path: Path) -> None:
    """Whoever were told that it isn't there would make it again, over what cells use."""
    directory = part_of(tmp_path, "templates", STALE, 0)
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
