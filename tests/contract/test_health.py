"""Ways in which a workload breaks its own sandbox."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.machine import PATIENCE_S

from belljar.cell.cell import Cell
from belljar.cell.health import Cause, HealthFinding, damage
from belljar.cell.open import open_cell
from belljar.policy.load import load_policy
from belljar.process import identify, is_alive

pytestmark = pytest.mark.anyio
POLICY = """\
belljar: 1
risk: low
tier: {tier}
user: nobody
workdir: /opt
resources: {{cpus: 1, memory: 192MiB, disk: 48MiB, processes: 64, output: 64KiB, exec_timeout: 300s, lifetime: 20m}}
"""
DAMAGE = {
    "programs": ("rm -rf /bin/* /usr/bin/* /sbin/* /usr/sbin/*", Cause.SHELL_MISSING),
    "accounts": ("rm -f /etc/passwd", Cause.CANNOT_START),
    "full disk": ("cat /dev/zero > /var/tmp/full; rm -f /nothing", None),
    "nothing": ("true", None),
}
"""Done by root. A full disk is a limit: commands still run. What a check finds is judged in one
place for all tiers; that each tier's agent reports it takes the first."""
SLOW_TIERS = ("gvisor", "microvm")
HOLD = "while :; do sleep 300 >/dev/null 2>&1 & done 2>/dev/null"

BUSY = "for i in $(seq {}); do (while :; do :; done) > /dev/null 2>&1 & done"


@pytest.fixture
async def fresh(
    tier: str, anyio_backend: str, vm_home: Path, tmp_path: Path
) -> AsyncIterator[Cell]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(tier=tier))
    async with open_cell(load_policy(policy), home=vm_home) as cell:
        yield cell


async def baseline_of(cell: Cell) -> HealthFinding:
    found = await cell.check_health()
    assert found == HealthFinding(began=True, ended=True, ran=True)
    return found


@pytest.mark.promise("7.5")
@pytest.mark.parametrize(
    "what",
    [
        "programs",
        *(
            pytest.param(what, marks=pytest.mark.thorough_in(*SLOW_TIERS))
            for what in list(DAMAGE)[1:]
        ),
    ],
)
async def test_damage_is_found(fresh: Cell, what: str) -> None:
    """Each with its cause, and only where commands no longer run as before."""
    script, cause = DAMAGE[what]
    baseline = await baseline_of(fresh)
    await fresh.exec(["/bin/sh", "-c", script], user="root", cwd="/")
    found = damage(baseline, await fresh.check_health())
    assert (found[0] if found else None) == cause


@pytest.mark.promise("7.5")
@pytest.mark.thorough_in(*SLOW_TIERS)
async def test_a_full_process_table_is_found(fresh: Cell) -> None:
    """One command's processes leave room for the next command; those of several together do not."""
    baseline = await baseline_of(fresh)
    found = None
    with anyio.move_on_after(PATIENCE_S):
        while found is None:
            await fresh.exec(["/bin/sh", "-c", HOLD])
            found = damage(baseline, await fresh.check_health())
    assert found is not None
    assert found[0] is Cause.PROCESS_TABLE_FULL


@pytest.mark.promise("7.5")
@pytest.mark.thorough_in(*SLOW_TIERS)
async def test_a_busy_cell_is_no_damage(fresh: Cell, tier: str) -> None:
    """What commands left busy leaves the next command its share of the processors."""
    baseline = await baseline_of(fresh)
    # Elsewhere the next command's share of one processor is as small as theirs.
    for count in (45, 45) if tier == "microvm" else (12,):
        assert (await fresh.exec(["/bin/sh", "-c", BUSY.format(count)])).success
    assert damage(baseline, await fresh.check_health()) is None


@pytest.mark.promise("7.5")
async def test_a_dead_cell_is_found(fresh: Cell) -> None:
    """The guest agent ends with the cell's outermost process."""
    baseline = await baseline_of(fresh)
    assert fresh.host_pid is not None
    process = identify(fresh.host_pid)
    os.kill(fresh.host_pid, signal.SIGKILL)
    with anyio.fail_after(PATIENCE_S):
        while process is not None and is_alive(process):  # until then its agent may answer
            await anyio.lowlevel.checkpoint()
    found = damage(baseline, await fresh.check_health())
    assert found is not None
    assert found[0] is Cause.AGENT_DIED
