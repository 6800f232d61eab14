"""Container and gVisor for an ordinary user."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.as_user import (
    UsersBelljar,
    another_store,
    kinds,
    started,
    subordinate_uids,
    uids_of,
)
from tests.integration.processes import wait_for
from tests.machine import PATIENCE_S

pytestmark = [pytest.mark.vm, pytest.mark.root]
TIERS = ("container", "gvisor")


@pytest.mark.promise("1.3")
@pytest.mark.parametrize("tier", TIERS)
def test_a_cell_and_its_processes(grouped: UsersBelljar, tier: str) -> None:
    """Under subordinate ids, never as the user, in groups below his own; nothing is left."""
    process = started(grouped, "low", "--tier", tier)
    try:
        theirs = subordinate_uids(grouped.uid)
        assert grouped.groups is not None
        cells = [Path(path) for path in grouped.groups.cells()]
        inside = {int(pid) for cell in cells for pid in (cell / "cgroup.procs").read_text().split()}
        owners = {pid: uids_of(Path("/proc", str(pid))) for pid in inside}
        limits = {path.read_text().strip() for cell in cells for path in cell.glob("pids.max")}
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert {grouped.uid} in owners.values(), "the jail's first process is the user's"
    assert any(uids <= set(theirs) for uids in owners.values()), "the container's are nobody's"
    assert all(uids <= {grouped.uid} or not uids & {grouped.uid, 0} for uids in owners.values()), (
        owners
    )
    assert limits == {str(grouped.planned("low", "--tier", tier)["jail"]["processes"])}
    assert "cell.destroyed" in kinds(grouped)


@pytest.mark.promise("6.2")
def test_owner_killed_leaves_nothing_after_reap(grouped: UsersBelljar) -> None:
    """`reap` removes what is left of it, control groups too; the other owner's cell lives."""
    living, dying = (started(grouped, "low", "--tier", "container") for _ in range(2))
    dying.kill()
    dying.communicate(timeout=PATIENCE_S)
    states = [cell["state"] for cell in json.loads(grouped("ps", "--json").stdout)]
    reaped = grouped("reap", "--json")
    kept = [cell["state"] for cell in json.loads(grouped("ps", "--json").stdout)]
    os.killpg(living.pid, signal.SIGINT)
    _, stderr = living.communicate(timeout=PATIENCE_S)
    assert sorted(states) == ["alive", "orphaned"]
    assert reaped.returncode == 0, reaped.stderr
    assert [one["remaining"] for one in json.loads(reaped.stdout)] == [[]]
    assert (kept, living.returncode) == (["alive"], 130), stderr


@pytest.mark.promise("6.2")
def test_trees_of_other_owners_are_removed_by_their_user(grouped: UsersBelljar) -> None:
    """A tree half made when its owner died belongs to ids that are not the user's."""
    with another_store(grouped) as store:
        here = replace(grouped, home=store)
        command, trees = ("exec", "low", "--tier", "container", "--", "true"), store / "trees"
        process = here.start(*command)

        def is_half_made() -> bool:
            return any(path.is_dir() for path in trees.glob(".making-*/root/usr"))

        wait_for(is_half_made, "files of a tree")
        process.kill()
        process.communicate(timeout=PATIENCE_S)
        foreign = {path.lstat().st_uid for path in trees.glob(".making-*/root/*")} - {grouped.uid}
        reaped = here("reap")
        assert reaped.returncode == 0, reaped.stderr
        assert foreign <= set(subordinate_uids(grouped.uid))
        assert foreign
        assert list(trees.iterdir()) == []
        # roots of jails are written by nobody, not even by him
        writable = 'chmod -R u+w "$1" && rm -rf "$1"'
        removed = grouped.run(["sh", "-c", writable, "sh", str(store)])
        assert (removed.returncode, store.exists()) == (0, False), removed.stderr


def test_a_cell_is_probed(grouped: UsersBelljar) -> None:
    """Every probe: contained, though its owner has no rights over this host."""
    assert grouped.probed("low", "--tier", "container")
