"""What every tier's cell promises its caller: defaults, sizes, errors, its death and its end."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.machine import PATIENCE_S

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.channel import ExecOutput
from belljar.errors import CellError
from belljar.events import Kind
from belljar.policy.load import load_policy

pytestmark = pytest.mark.anyio
SMALL = """\
belljar: 1
risk: low
tier: {tier}
user: nobody
workdir: /var/tmp
env: {{GREETING: hello}}
resources: {{cpus: 1, memory: 192MiB, disk: 48MiB, processes: 64, output: 64KiB, exec_timeout: 300s, lifetime: 10m}}
"""  # of the size that the limits' tests have: a virtual machine's template serves both


def small(tier: str, folder: Path) -> Path:
    path = folder / "policy.yaml"
    path.write_text(SMALL.format(tier=tier))
    return path


async def shell(cell: Cell, script: str, **options: object) -> ExecOutput:
    return await cell.exec(["sh", "-c", script], **options)  # type: ignore[arg-type]


async def test_host_names_differ_from_the_hosts(cell: Cell) -> None:
    """The host name is the cell's own, and the machine id too."""
    name = (await shell(cell, "cat /etc/hostname; uname -n")).stdout.decode().split()
    assert len(set(name)) == 1
    assert name[0] != os.uname().nodename
    assert "belljar" not in name[0]
    assert (await shell(cell, "wc -c </etc/machine-id")).stdout.strip() == b"33"


async def test_no_network_but_loopback(cell: Cell) -> None:
    """There is no interface but loopback, and that one works."""
    listed = (
        await shell(cell, "ls /sys/class/net 2>/dev/null || cut -d: -f1 /proc/net/dev | tail -n +3")
    ).stdout.split()
    assert set(listed) <= {b"lo"}
    script = (
        "import socket; s=socket.create_server(('127.0.0.1', 0));"
        " c=socket.create_connection(s.getsockname());a,_=s.accept(); c.sendall(b'x');"
        " print(a.recv(1))"
    )
    assert (await cell.exec(["python3", "-c", script])).stdout == b"b'x'\n"


@pytest.mark.thorough_in("gvisor", "microvm")
async def test_the_policys_defaults(tier: str, vm_home: Path, tmp_path: Path) -> None:
    """User, directory, environment and the cap on output are the policy's."""
    async with open_cell(small(tier, tmp_path), home=vm_home) as cell:
        asked = await shell(cell, 'printf "$(id -un) $(pwd) $GREETING"')
        assert asked.stdout == b"nobody /var/tmp hello"
        flood = await shell(cell, "yes | head -c 1000000")
        assert (len(flood.stdout), flood.stdout_dropped_bytes) == (65536, 934464)
        assert flood.output_cap_reached
        await cell.write_file("note", b"text")
        assert await cell.read_file("/var/tmp/note", max_bytes=10) == b"text"
    assert cell.destruction is not None
    assert cell.destruction.clean, cell.destruction.survivors
    events = newest_events(vm_home)
    kinds = {"cell.planned", "exec.started", "exec.completed", "limit.hit", "cell.destroyed"}
    assert kinds <= {event["kind"] for event in events}


@pytest.mark.promise("8.1")
@pytest.mark.thorough_in("gvisor", "microvm")
async def test_the_lifetime_ends_it(tier: str, vm_home: Path, tmp_path: Path) -> None:
    """A cell that outlives its lifetime is killed by the host, whatever it does."""
    loaded = load_policy(small(tier, tmp_path))
    resources = replace(loaded.policy.resources, lifetime_s=3.0)  # less than a policy may say
    short = replace(loaded, policy=loaded.policy.model_copy(update={"resources": resources}))
    async with open_cell(short, home=vm_home) as cell:
        with anyio.fail_after(PATIENCE_S), pytest.raises(CellError, match="lifetime"):
            await shell(cell, "trap '' TERM INT HUP; while :; do sleep 1000; done")
        with pytest.raises(CellError, match="lifetime"):
            await cell.exec(["true"])
    hit = [event for event in newest_events(vm_home) if event["kind"] == Kind.LIMIT_HIT]
    assert "lifetime" in [event["data"]["limit"] for event in hit]


@pytest.mark.promise("1.6")
@pytest.mark.parametrize(
    "by", ["death", pytest.param("destroying", marks=pytest.mark.thorough_in("gvisor", "microvm"))]
)
async def test_an_end_is_an_error_not_a_result(
    tier: str, vm_home: Path, tmp_path: Path, by: str
) -> None:
    """What waits in a cell that ends, and what comes later, raises; its destruction is proven."""
    async with open_cell(small(tier, tmp_path), home=vm_home) as cell:

        async def end() -> None:
            await cell.ping()
            if by == "destroying":
                await cell.destroy()
            else:
                assert cell.host_pid is not None
                os.kill(cell.host_pid, signal.SIGKILL)

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(end)
                with pytest.raises(CellError):
                    await shell(cell, "sleep 1000 & setsid sleep 1000 & sleep 1000")
        with pytest.raises(CellError, match="died" if by == "death" else None):
            await cell.read_file("/etc/hostname", max_bytes=100)
        first = await cell.destroy()
        assert first == await cell.destroy()
        assert first.clean, first.survivors


def newest_events(home: Path) -> list[dict[str, Any]]:
    newest = max((home / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(line) for line in (newest / "ledger.jsonl").read_bytes().splitlines()]
