"""Containers of both OCI runtimes, for real: made, used, killed by their limits, unmade."""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.fakes.recorder import MemoryRecorder
from tests.machine import PATIENCE_S

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.cell.parts import ContainerParts, gather_parts
from belljar.errors import ContainmentBreach
from belljar.events import Kind
from belljar.host.model import RuntimeFact, Trial
from belljar.image.store import Store
from belljar.isolation import proofs
from belljar.isolation.cgroup import plan_groups
from belljar.isolation.hold import hold
from belljar.isolation.identity import TREE_IDS_START
from belljar.isolation.oci import trees
from belljar.isolation.oci.container import Container, open_container
from belljar.isolation.oci.trees import ensure_tree
from belljar.isolation.proofs import prove_switch
from belljar.ledger.schema import check_data
from belljar.policy.load import load_policy
from belljar.probe.run import probe_cell
from belljar.store.journal import Journal
from belljar.store.locks import claimed
from belljar.store.scratch import MAKING

pytestmark = [pytest.mark.root, pytest.mark.anyio]
TIERS = ("container", "gvisor")
POLICY = (
    "belljar: 1\nrisk: low\ntier: {tier}\nresources: {{memory: 256MiB, disk: 32MiB, processes: 64,"
    " lifetime: 5m}}\n"
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def policy_file(folder: Path, tier: str) -> Path:
    file = folder / f"{tier}.yaml"
    file.write_text(POLICY.format(tier=tier))
    return file


async def parts_of(home: Path, folder: Path, tier: str) -> ContainerParts:
    parts = await anyio.to_thread.run_sync(
        gather_parts, load_policy(policy_file(folder, tier)), home
    )
    assert isinstance(parts, ContainerParts)
    return parts


def outer_ids(pid: int | None) -> list[int]:
    """The first host id of each line of a process's map."""
    return [int(word) for word in Path(f"/proc/{pid}/uid_map").read_text().split()[1::3]]


def sleeper(uid: int) -> subprocess.Popen[bytes]:
    """A process of that uid that has nothing else of a cell."""
    return subprocess.Popen(["/usr/bin/sleep", "1000"], user=uid, group=uid, extra_groups=[])


@asynccontextmanager
async def container(
    home: Path, parts: ContainerParts, recorder: MemoryRecorder
) -> AsyncIterator[Container]:
    planned: dict[str, object] = {"policy_sha256": "0" * 64, "tier": parts.plan.tier.value}
    planned |= {"emulated": False, "layers": []}
    async with open_container(
        parts.plan, parts.image, home=home, recorder=recorder, planned=planned
    ) as live:
        yield live


def cell_of(live: Container, parts: ContainerParts, recorder: MemoryRecorder) -> Cell:
    return Cell(live, parts.plan, recorder, actor=recorder.events[0].actor, has_port=False)


def quota_of(group: Path) -> str:
    files = (group / "cpu.max", group / "cpu.cfs_quota_us")
    return next(file.read_text().split()[0] for file in files if file.exists())


def nothing_left(home: Path) -> bool:
    return not Journal(home).entries() and not list((home / "cells").glob("*"))


def pending_signals() -> int:
    """How many signals, timers among them, the kernel counts for this user on the host."""
    found = re.search(r"^SigQ:\t(\d+)/", Path("/proc/self/status").read_text(), re.M)
    assert found is not None
    return int(found[1])


@pytest.mark.promise("8.2")
async def test_what_the_kernel_counts_by_user_is_not_the_host_roots(
    vm_home: Path, tmp_path: Path
) -> None:
    """Waiting signals are charged to the cell's own ids, all the way up."""
    parts, recorder = await parts_of(vm_home, tmp_path, "container"), MemoryRecorder()
    stopped = "sleep 60 & kill -STOP $!; until grep -q 'State:.T' /proc/$!/status; do :; done"
    queue = (
        f"{stopped}; i=0; while [ $i -lt 2000 ]; do kill -40 $!; i=$((i+1)); done; grep SigQ"
        " /proc/$!/status"
    )
    async with container(vm_home, parts, recorder) as live:
        cell = cell_of(live, parts, recorder)
        before = pending_signals()
        said = (await cell.exec(["sh", "-c", f"({queue}) 2>&1"], timeout_s=PATIENCE_S)).stdout
        assert int(said.split()[1].partition(b"/")[0]) >= 2000
        assert pending_signals() - before < 1000


async def test_hostile_root_cannot_have_somebody_else_probed(vm_home: Path, tmp_path: Path) -> None:
    """Account files that give root another number change nothing."""
    parts, recorder = await parts_of(vm_home, tmp_path, "container"), MemoryRecorder()
    rewrite = "sed -i 's/^root:x:0:0:/root:x:65533:65533:/' /etc/passwd && id -u root"
    async with container(vm_home, parts, recorder) as live:
        cell = cell_of(live, parts, recorder)

        async def regained(user: str, phase: str = "") -> str:
            which = "namespaces.regain"
            report = await probe_cell(cell, which=which, recorder=recorder, user=user, phase=phase)
            return report.findings[0].detail

        first = await regained("root")
        assert (await cell.exec(["sh", "-c", rewrite], user="root")).stdout == b"65533\n"
        assert first == await regained("root", "end") != await regained("65533")


@pytest.mark.parametrize("tier", TIERS)
async def test_a_cell_from_start_to_end(vm_home: Path, tmp_path: Path, tier: str) -> None:
    """It works, is somebody else's on the host, leaves nothing: the proof is on record."""
    parts, recorder = await parts_of(vm_home, tmp_path, tier), MemoryRecorder()
    async with container(vm_home, parts, recorder) as live:
        cell = cell_of(live, parts, recorder)
        assert (await cell.exec(["sh", "-c", "cat; id -u"], input=b"in ")).stdout == b"in 1000\n"
        assert live.host_pid is not None
        assert min(outer_ids(live.host_pid)) >= 0x7000_0000
        cpu = plan_groups(live.cell_id, parts.plan.jail_controllers).paths["cpu"]
        assert quota_of(cpu) == "100000"
        assert (live.cause_of_death(), live.death_limit(), live.disk_full()) == ("", None, False)
    for event in recorder.events:
        check_data(event.kind, dict(event.data))
    kinds = recorder.kinds()
    assert kinds[:2] == [Kind.CELL_PLANNED, Kind.CELL_STARTING]
    assert kinds.index(Kind.CELL_STARTED) < kinds.index(Kind.EXEC_STARTED)
    destroyed = recorder.events[-1]
    end = (destroyed.kind, destroyed.data["clean"], destroyed.data["survivors"])
    assert end == (Kind.CELL_DESTROYED, True, [])
    checked = destroyed.data["checked"]
    assert isinstance(checked, (list, tuple))
    assert {"processes in its namespaces", "files"} <= set(checked)
    assert nothing_left(vm_home)


@pytest.mark.promise("6.1")
async def test_a_survivor_is_found(vm_home: Path, tmp_path: Path) -> None:
    """A process with one of the cell's 65,537 uids is killed, and makes the cell a breach."""
    survivor: subprocess.Popen[bytes] | None = None
    with pytest.raises(ContainmentBreach, match="with the cell's uid"):
        async with open_cell(policy_file(tmp_path, "container"), home=vm_home) as cell:
            survivor = sleeper(outer_ids(cell.host_pid)[1] + 12_345)
    assert survivor is not None
    assert survivor.wait(timeout=PATIENCE_S) == -9
    assert nothing_left(vm_home)


@pytest.mark.promise("3.2")
def test_a_tree_is_nobodys(vm_home: Path) -> None:
    """No file of an unpacked image belongs to anybody here, and nobody else may enter."""
    image = Store(vm_home).find("default")
    tree = anyio.run(lambda: ensure_tree(image, home=vm_home))
    assert (vm_home / "trees").stat().st_mode & 0o777 == 0o700
    setuid = 0
    for path in tree.root.rglob("*"):
        found = path.lstat()
        assert min(found.st_uid, found.st_gid) >= TREE_IDS_START, path
        setuid += bool(found.st_mode & 0o4000)
    assert setuid > 0
    assert (tree.first_uid, tree.first_gid) == (TREE_IDS_START, TREE_IDS_START)


@pytest.mark.promise("3.2")
async def test_rubbish_is_swept(vm_home: Path) -> None:
    """What a crash and a removed image left, by the next start; not what a living cell holds."""
    half_made = vm_home / "trees" / f"{MAKING}1-1-c-000000000000"
    stale = vm_home / "trees" / ("0" * 64)
    for directory in (half_made, stale):
        (directory / "root/etc").mkdir(parents=True)
    with claimed(stale):
        await trees.sweep_trees(vm_home)
        assert (half_made.exists(), stale.exists()) == (False, True)
    await trees.sweep_trees(vm_home)
    assert not stale.exists()


@pytest.mark.promise("6.3")
@pytest.mark.parametrize("halts", [True, False])
async def test_the_kill_switch_tests_itself(
    halts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the store is held. A switch that halts nothing is told."""
    if not halts:
        monkeypatch.setattr(proofs, "halt", lambda *_: {})
    hold(tmp_path)
    runtime = RuntimeFact(tier="container", name="runc", kind="runc", path="/usr/sbin/runc")
    found = await prove_switch(runtime, home=tmp_path)
    assert found == Trial.of("" if halts else "its processes were not halted")
    assert nothing_left(tmp_path)
