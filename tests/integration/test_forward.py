"""`belljar forward` against a real cell's attach socket: many clients, loopback only, a clean
end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.contract.test_connect import serving
from tests.machine import PATIENCE_S

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.harness.attach import AttachSocket

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def forwarded(
    cell: Cell, home: Path, where: str
) -> AsyncIterator[tuple[int, subprocess.Popen[bytes]]]:
    """The port, and the process of `belljar forward`, beside the served attach socket."""
    attached = AttachSocket(cell, home=home)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attached.serve, cell)
        process = subprocess.Popen(  # noqa: ASYNC220 - it begins at once
            [sys.executable, "-m", "belljar", "forward", cell.id, where, "--json"],
            env={**os.environ, "BELLJAR_HOME": str(home), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            line = await anyio.to_thread.run_sync(process.stdout.readline)
            yield json.loads(line)["port"], process
        finally:
            process.kill()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(process.communicate)
                await attached.close()


@pytest.mark.thorough_in("trio")
async def test_clients_are_led_to_the_cell(vm_home: Path) -> None:
    """Several at once, each with its own bytes; no other address; Ctrl-C ends it with 130."""
    async with (
        open_cell("low", home=vm_home) as cell,
        serving(cell, "8080"),
        forwarded(cell, vm_home, "0:8080") as (port, process),
        anyio.create_task_group() as tasks,
    ):

        async def talk(number: int) -> None:
            said = bytes([number]) * 300_000
            async with await anyio.connect_tcp("127.0.0.1", port) as client:
                async with anyio.create_task_group() as both:

                    async def send() -> None:
                        await client.send(said)
                        await client.send_eof()

                    both.start_soon(send)
                    heard = b"".join([chunk async for chunk in client])
                assert heard == said

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as talks:
                for number in range(6):
                    talks.start_soon(talk, number)
        with pytest.raises(OSError):  # noqa: PT011 - refused, whatever anyio calls it
            await anyio.connect_tcp("127.0.0.2", port)
        process.send_signal(signal.SIGINT)
        assert await anyio.to_thread.run_sync(process.wait) == 130
        tasks.cancel_scope.cancel()
