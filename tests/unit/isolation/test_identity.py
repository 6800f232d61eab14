"""Who a jailed program is: ranges that no two living cells share."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.isolation import identity
from belljar.isolation.identity import TREE_IDS_START, hold_identity, hold_range, hold_uids

root = pytest.mark.root


@pytest.mark.promise("3.2")
@root
def test_ranges_do_not_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workload's is never the stage's, a VMM's or the trees'; it is held while a cell lives."""
    monkeypatch.setattr(identity, "_HOST_LOCKS", tmp_path)
    with hold_range() as one, hold_range() as two:
        assert one.ids is not None
        assert two.ids is not None
        taken = [
            set(range(outer, outer + count))
            for held in (one.ids, two.ids)
            for _, outer, count in held.uid_map
        ]
        assert sum(len(ids) for ids in taken) == len(set.union(*taken))
        assert max(max(ids) for ids in taken) < TREE_IDS_START
        with hold_identity() as vmm:
            assert not any(vmm.own_uid in ids for ids in taken)
            with hold_uids(vmm.own_uid) as free:
                assert not free
        with hold_uids(one.own_uid) as free:
            assert not free
    with hold_uids(one.own_uid) as free:
        assert free
