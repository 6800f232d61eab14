"""Set-user-ID programs: with the right for them they gain what a command of the cell's root has,
and nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.recorder import MemoryRecorder
from tests.security.conftest import policy_of

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.errors import HostError, PolicyError
from belljar.policy.loaded import LoadedPolicy
from belljar.probe.run import probe_cell

pytestmark = [pytest.mark.anyio, pytest.mark.vm, pytest.mark.slow]

_STATUS = "grep -E '^(Uid|CapInh|CapPrm|CapEff|CapBnd|CapAmb|Seccomp):' /proc/self/status"


def policy(tier: str, word: str) -> LoadedPolicy:
    rights = f"rights: {{setuid_programs: '{word}'}}"
    resources = "resources: {cpus: 1, memory: 256MiB, disk: 64MiB, processes: 64}"
    return policy_of(f"belljar: 1\nrisk: low\ntier: {tier}\n{rights}\n{resources}\n")


async def said(cell: Cell, command: str, user: str) -> list[bytes]:
    return (await cell.exec(["/bin/sh", "-c", command], user=user)).stdout.splitlines()


@pytest.mark.promise("2.4")
async def test_a_set_user_id_program_has_the_rights_of_a_command_of_root(vm_home: Path) -> None:
    """Its capabilities are those of the cell's root, its filter stays: contained."""
    async with open_cell(policy("microvm", "on"), home=vm_home) as cell:
        await said(cell, "cp /bin/grep /tmp/gained && chmod 4755 /tmp/gained", "root")
        of_root = await said(cell, _STATUS, "root")
        gained = await said(cell, _STATUS.replace("grep", "/tmp/gained", 1), "1000:1000")
        plain = await said(cell, _STATUS, "1000:1000")
        report = await probe_cell(cell, recorder=MemoryRecorder(), phase="end")
    assert [line for line in gained if line.startswith(b"Cap")] == [
        line for line in of_root if line.startswith(b"Cap")
    ]
    assert gained[0].split()[1:3] == [b"1000", b"0"]
    assert gained[-1].split() == [b"Seccomp:", b"2"]
    assert [line.split()[1] for line in plain if line.startswith((b"CapPrm", b"CapEff"))] == [
        b"0" * 16
    ] * 2
    assert report.verdict.value == "contained"


@pytest.mark.promise("2.4")
@pytest.mark.parametrize(("tier", "word"), [("microvm", "off"), ("container", "auto")])
async def test_without_the_right_it_gains_nothing(vm_home: Path, tier: str, word: str) -> None:
    """Where the policy does not ask for it, and in a tier that does not grant it."""
    async with open_cell(policy(tier, word), home=vm_home) as cell:
        await said(cell, "cp /usr/bin/id /tmp/gained && chmod 4755 /tmp/gained", "root")
        assert b"euid" not in (await said(cell, "/tmp/gained", "1000:1000"))[0]


@pytest.mark.promise("2.4")
async def test_a_tier_that_can_not_grant_it_is_refused(vm_home: Path) -> None:
    """Where the policy insists on it."""
    with pytest.raises((HostError, PolicyError)):
        async with open_cell(policy("container", "on"), home=vm_home):
            pass
