"""A dozen samples (in slow tiers fewer, fifty when thorough) that each try to leave something for the next, one after
the other and side by side: nothing carries over."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.verification import verify
from belljar.policy.load import load_policy
from belljar.policy.loaded import LoadedPolicy

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.anyio]
SCRIPT = (Path(__file__).parent / "leave_things.pl").read_bytes()
TIERS = ("container", "gvisor", "microvm")
POLICY = """\
belljar: 1
risk: low
tier: {tier}
user: root
resources: {{memory: 256MiB, disk: 64MiB, processes: 64, exec_timeout: 300s, lifetime: 30m}}
"""
SAMPLES = {"container": 12, "gvisor": 4, "microvm": 3}
SAMPLES_WHEN_THOROUGH = 50
SIDE_BY_SIDE = 3
# What every tier lets its workload leave. The rest (keys, host name, kernel's values, …) a tier may
# refuse.
LEAVABLE = set(
    """file /|file /etc|file /root|file /tmp|file /run|file /dev/shm|file /var/tmp|file /usr/bin
|file /usr/local/lib|startup /etc/profile|startup /etc/bash.bashrc|startup /root/.bashrc|daemon
|cron /etc/cron.d/a|python /usr/lib/python3/dist-packages/carried.pth|account /etc/passwd|setuid
|times|mode|removed|preload|shm|sem|msg""".replace("\n", "").split("|")
)
# What the next would notice it by.
TELLING = set(
    """file //carried|file /etc/carried|file /dev/shm/carried|file /tmp/carried|file /etc/profile
|file /etc/passwd|file /etc/cron.d/a|names /usr/lib/python3/dist-packages|names /usr/bin
|file /usr/local/bin/carried-root|times /usr/bin/env|file /etc/fstab|file /etc/issue.net
|file /etc/ld.so.preload|process carried-daemon|shm|sem|msg|abstract|port""".replace(
        "\n", ""
    ).split("|")
)

# A cell's own name, by design unlike any other's.
OWN = {"file /etc/hostname", "file /etc/hosts", "file /etc/machine-id", "sysctl kernel/hostname"}


@dataclass
class Seen:
    """What one look saw, by key, and what came of each try to leave something."""

    state: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


async def run_script(cell: Cell, what: str) -> Seen:
    output = await cell.exec(["perl", "-", what], input=SCRIPT, cwd="/", max_output_bytes=1 << 20)
    assert output.returncode == 0, output.stderr.decode(errors="replace")
    seen = Seen()
    for line in output.stdout.decode(errors="replace").splitlines():
        words = line.split("\t")
        if words[0] == "left":
            seen.left[words[1]] = words[2]
        else:
            seen.state[words[0]] = words[1]
    return seen


def differences(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """What was added, changed or removed, but for what each cell has of its own."""
    keys = (expected.keys() | found.keys()) - OWN
    changed = [key for key in keys if expected.get(key) != found.get(key)]
    return [
        f"{key}: {expected.get(key, 'absent')!r} became {found.get(key, 'absent')!r}"
        for key in sorted(changed)
    ]


async def fresh(policy: LoadedPolicy, run: RunDirectory, home: Path, what: str = "look") -> Seen:
    """A cell of its own, the script in it, and its end."""
    async with open_cell(policy, run=run, home=home) as cell:
        seen = await run_script(cell, what)
    assert cell.destruction is not None
    assert cell.destruction.clean
    return seen


@pytest.mark.promise("3.2")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("tier", TIERS)
async def test_nothing_carries_over(
    tier: str, home: Path, tmp_path: Path, anyio_backend: str, pytestconfig: pytest.Config
) -> None:
    """Whatever a sample leaves, the next sees none of it."""
    (tmp_path / "policy.yaml").write_text(POLICY.format(tier=tier))
    policy = load_policy(tmp_path / "policy.yaml")
    carried: list[str] = []
    with start_run("run", "persistence", [], home=home) as run:
        expected = (await fresh(policy, run, home)).state
        await the_look_finds_it(policy, run, home, expected)
        todo = iter(
            range(SAMPLES_WHEN_THOROUGH if pytestconfig.getoption("thorough") else SAMPLES[tier])
        )

        async def samples() -> None:
            for number in todo:
                seen = await fresh(policy, run, home, "both")
                carried.extend(
                    f"sample {number}: {what}" for what in differences(expected, seen.state)
                )

        async with anyio.create_task_group() as group:
            for _ in range(SIDE_BY_SIDE):
                group.start_soon(samples)
    assert carried == []
    assert verify(run.path).ok(strict=True)


async def the_look_finds_it(
    policy: LoadedPolicy, run: RunDirectory, home: Path, expected: dict[str, str]
) -> None:
    """In the very cell that left them, all are seen: so a carry-over would be."""
    async with open_cell(policy, run=run, home=home) as cell:
        left = (await run_script(cell, "leave")).left
        again = (await run_script(cell, "look")).state
    assert {kind: left.get(kind) for kind in LEAVABLE if left.get(kind) != "ok"} == {}
    found = {line.partition(": ")[0] for line in differences(expected, again)}
    assert TELLING - found == set(), left
