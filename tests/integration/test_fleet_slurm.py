"""`belljar run --fleet slurm`: Debian's Slurm on this machine, with one node, or two when thorough."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import copy_store
from tests.integration.fleets import Fleet, keys_of, lines_until, nothing_runs
from tests.integration.processes import wait_for
from tests.integration.slurm_cluster import missing, slurm
from tests.machine import PATIENCE_S

from belljar.ledger.keys import local_fingerprint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]


@pytest.fixture(scope="module")
def fleet(
    prepared_home: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("slurm")
    names = ("n1", "n2") if pytestconfig.getoption("thorough") else ("n1",)
    homes = [copy_store(prepared_home, folder / name) for name in names]
    with slurm(folder / "slurm", homes) as environment:
        head = copy_store(prepared_home, folder / "head")
        yield Fleet(folder, homes, head, environment, address="slurm")


def test_kill_reaches_a_busy_node(fleet: Fleet, tmp_path: Path) -> None:
    """The order doesn't wait for its processors; each record is signed with its node's key."""
    hold = tmp_path / "hold.once"
    hold.touch()
    words = ("seconds=600", f"hold={hold.with_suffix('')}", "count=2")
    with fleet.start_run(*(part for word in words for part in ("-T", word))) as process:
        wait_for(lambda: not hold.exists(), "the held sample", within_s=PATIENCE_S)
        killed = fleet.belljar("kill", "--all", "--fleet", fleet.address)
        assert all(f"{home.name}: killed" in killed for home in fleet.homes), killed
        out, errors = process.communicate(timeout=600)
    assert process.returncode == 2, errors  # nothing is tried again
    verdicts = {each["sample"]: each["verdict"] for each in json.loads(out)["samples"]}
    assert verdicts.get("s1") != "contained"
    assert nothing_runs(fleet)
    (run,) = (fleet.head / "runs").iterdir()
    named = {home.name: local_fingerprint(home) for home in fleet.homes}
    assert keys_of(run)
    assert keys_of(run).items() <= named.items()


@pytest.mark.thorough
def test_a_dead_head_leaves_nothing(fleet: Fleet) -> None:
    """Its units end by themselves, with their records, and Slurm has no job of theirs."""
    with fleet.start_run("-T", "seconds=600") as process:
        lines_until(process, "came back", 3)
        process.kill()
    wait_for(lambda: nothing_runs(fleet), "the end of all units", within_s=300)
    wait_for(lambda: not fleet.output("squeue", "--noheader"), "its jobs", within_s=120)
