"""A reverted cell in every tier: clean, another machine, and the old one's end proven."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from tests.machine import PATIENCE_S

from belljar.cell.canary import canary_in
from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.errors import BelljarError, CellError, ContainmentBreach
from belljar.events import Kind
from belljar.ledger.listing import read_events
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.schema import Line
from belljar.policy.load import load_policy

pytestmark = pytest.mark.anyio
POLICY = """\
belljar: 1
risk: low
tier: {tier}
user: root
workdir: /data
files:
  - {{source: notes, target: /data/notes}}
resources: {{memory: 512MiB, disk: 256MiB, processes: 512, exec_timeout: 120s, lifetime: 30m}}
"""
TRACES = {"file", "process", "environment", "memory", "port"}
IDENTITY = "cat /proc/sys/kernel/random/boot_id /etc/machine-id; hostname"
LEFT = "cat notes; ls /tmp /dev/shm; ps -e -o args= | grep -c [c]arried; echo ${CARRIED:-unset}"


def not_seen(tier: str) -> list[str]:
    """An ordinary user may not read the memory of a container's processes (docs/limits.md)."""
    return ["memory"] if tier == "container" and os.geteuid() != 0 else []


@dataclass(frozen=True)
class Revertible:
    cell: Cell
    run: RunDirectory

    def lines(self, *kinds: Kind) -> list[Line]:
        return [line for line in read_events(self.run.path) if line.kind in kinds]


@asynccontextmanager
async def revertible(tier: str, home: Path, folder: Path) -> AsyncIterator[Revertible]:
    (folder / "notes").write_text("as the policy has it\n")
    (folder / "policy.yaml").write_text(POLICY.format(tier=tier))
    with start_run("test", None, [], home=home) as run:
        async with open_cell(load_policy(folder / "policy.yaml"), run=run, home=home) as cell:
            yield Revertible(cell, run)


async def said(cell: Cell, script: str) -> list[str]:
    output = await cell.exec(["sh", "-c", script])
    return output.stdout.decode().splitlines()


@pytest.mark.promise("3.5")
async def test_everything_but_the_policy_is_new(tier: str, vm_home: Path, tmp_path: Path) -> None:
    """Files, processes and identity of the old machine are gone, the policy's file is back."""
    async with revertible(tier, vm_home, tmp_path) as world:
        cell, first = world.cell, world.cell.id
        clean, identity = await said(cell, LEFT), await said(cell, IDENTITY)
        await said(cell, "echo x > notes; touch /tmp/x /dev/shm/x; (exec -a carried sleep 999) &")
        assert await said(cell, LEFT) != clean
        await cell.revert(verify=True)
        assert cell.id != first
        assert await said(cell, LEFT) == clean
        assert clean[0] == "as the policy has it"
        assert not set(identity) & set(await said(cell, IDENTITY))
        with pytest.raises(ContainmentBreach):
            async with canary_in(cell) as canary:
                await canary.search(cell)
        token = canary.token
        assert await said(cell, f"ls /tmp/{token} /data/{token}") == []
        assert await said(cell, f"ps -e -o args= | grep -c {token[:31]}[{token[31]}]") == ["0"]
    verified, breached = world.lines(Kind.CELL_REVERT_VERIFIED)
    assert verified.data["found"] == []
    assert [each.split(":")[0] for each in verified.data["not_checked"]] == not_seen(tier)
    assert {trace.split()[0] for trace in verified.data["planted"]} == TRACES
    assert {trace.split()[0] for trace in breached.data["found"]} == TRACES - {*not_seen(tier)}
    exchange = world.lines(Kind.CELL_REVERTING, Kind.CELL_REVERTED, Kind.CELL_DESTROYED)
    assert [(line.kind, line.cell) for line in exchange[:2]] == [
        (Kind.CELL_REVERTING, first),
        (Kind.CELL_REVERTED, cell.id),
    ]
    ends = exchange[2:]
    assert [line.data["clean"] for line in ends] == [True, True]
    assert {(line.kind, line.cell) for line in ends} == {
        (Kind.CELL_DESTROYED, first),
        (Kind.CELL_DESTROYED, cell.id),
    }


async def talk_across_a_revert(cell: Cell) -> None:
    """A command that is talked to before and after one."""
    async with cell.open_exec(["cat"]) as talking:
        await talking.send_stdin("x")
        await cell.revert()
        await talking.wait()


@pytest.mark.promise("3.5")
@pytest.mark.thorough_in("gvisor", "microvm")
async def test_what_runs_ends_with_an_error(tier: str, vm_home: Path, tmp_path: Path) -> None:
    """A command, one in the background and one that is talked to."""
    async with revertible(tier, vm_home, tmp_path) as world:
        cell, errors = world.cell, list[BelljarError]()

        async def run() -> None:
            try:
                await cell.exec(["sleep", "999"])
            except BelljarError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            background = await cell.start(["sleep", "999"])
            with pytest.raises(CellError):
                await talk_across_a_revert(cell)
            with pytest.raises(CellError):
                await background.wait(timeout_s=PATIENCE_S)
        assert len(errors) == 1
        assert await said(cell, "echo fine") == ["fine"]
        assert not world.lines(Kind.CELL_FAILED)
        assert cell.host_pid is not None
        os.kill(cell.host_pid, signal.SIGKILL)
        await cell.revert(verify=True)
        await cell.destroy()
        await cell.revert()
        assert await said(cell, "cat notes") == ["as the policy has it"]
    (verified,) = world.lines(Kind.CELL_REVERT_VERIFIED)
    assert (verified.data["planted"], verified.data["found"]) == ([], [])
