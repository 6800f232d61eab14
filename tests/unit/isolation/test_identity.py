"""Who a jailed program is: ranges that no two living cells share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from belljar.isolation.identity import TREE_IDS_START, hold_range, hold_uids
from belljar.plan.jail import SLOTS_PER_HOME, UID_RANGE_START

root = pytest.mark.root


@pytest.mark.promise("3.2")
@root
def test_ranges_do_not_overlap(tmp_path: Path) -> None:
    """The workload's is never the stage's, a VMM's or the trees'; it is held while a cell lives."""
    with hold_range(tmp_path) as one, hold_range(tmp_path) as two:
        assert one.ids is not None
        assert two.ids is not None
        taken = [
            set(range(outer, outer + count))
            for held in (one.ids, two.ids)
            for _, outer, count in held.uid_map
        ]
        assert sum(len(ids) for ids in taken) == len(set.union(*taken))
        assert min(min(ids) for ids in taken) > UID_RANGE_START
        assert max(max(ids) for ids in taken) < TREE_IDS_START
        with hold_uids(tmp_path, one.own_uid, locks=tmp_path) as free:
            assert not free
    with hold_uids(tmp_path, one.own_uid, locks=tmp_path) as free:
        assert free


@root
def test_two_stores_at_one_path_have_two_ranges(tmp_path: Path) -> None:
    """A VMM's uids differ by what the store is, not by its path in some mount namespace."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom belljar.isolation.identity import *\n"
        "with hold_identity(Path(sys.argv[1])) as held: print(held.own_uid)"
    )

    def uid_of(store: Path, *, at: Path) -> int:
        for directory in (store, at):
            directory.mkdir(exist_ok=True)
        mount = 'mount --bind "$1" "$2" && shift && exec "$2" -c "$3" "$1"'
        argv = ["unshare", "--mount", "sh", "-c", mount, "sh", str(store), str(at)]
        done = subprocess.run(
            [*argv, sys.executable, script], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    store, place = tmp_path / "one", tmp_path / "mounted"
    first = uid_of(store, at=place)
    assert uid_of(tmp_path / "two", at=place) // SLOTS_PER_HOME != first // SLOTS_PER_HOME
    assert uid_of(store, at=place) == first
    assert uid_of(store, at=tmp_path / "elsewhere") == first
