"""Streams: exact, bounded, counted, and never a stall."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator

import anyio
import pytest
from tests.fakes.asking import is_alive, sh
from tests.machine import PATIENCE_S

from belljar.channel import ExecRequest, GuestClient

pytestmark = pytest.mark.anyio
MIB = 1 << 20


async def test_stdin_text_empty_and_none(client: GuestClient) -> None:
    """Input arrives byte by byte, in pieces of any size; no input is an immediate end."""

    async def pieces() -> AsyncIterator[bytes]:
        for size in (1, 0, 100_000, 300_000, 7):
            yield b"p" * size

    counted = await client.exec(ExecRequest(argv=["wc", "-c"]), input=pieces())
    assert counted.stdout.strip() == b"400008"
    every_byte = bytes(range(256)) * 5
    assert (await client.exec(ExecRequest(argv=["cat"]), input=every_byte)).stdout == every_byte
    assert (await client.exec(ExecRequest(argv=["cat"]), input=b"")).stdout == b""
    assert (await client.exec(ExecRequest(argv=["cat"]))).stdout == b""


@pytest.mark.promise("4.3")
@pytest.mark.thorough_in("microvm")
async def test_fifty_mebibytes_of_stdin_and_back(client: GuestClient) -> None:
    """50 MiB go in and come out unchanged, both at the same time."""
    content = os.urandom(MIB) * 50
    outcome = await client.exec(ExecRequest(argv=["cat"], max_stdout_bytes=64 * MIB), input=content)
    assert hashlib.sha256(outcome.stdout).digest() == hashlib.sha256(content).digest()


async def test_a_command_that_does_not_read_its_input(client: GuestClient) -> None:
    """Input that nobody reads neither hangs nor fails the command."""
    for script in ("exit 3", "exec 0<&-; sleep 0.3; exit 3", "head -c 10 >/dev/null; exit 3"):
        with anyio.fail_after(PATIENCE_S):
            assert (await client.exec(sh(script), input=b"x" * (4 * MIB))).returncode == 3, script


@pytest.mark.promise("4.3")
async def test_head_is_kept_and_the_rest_counted(client: GuestClient) -> None:
    """Bytes beyond the cap are dropped in the guest and counted; the command isn't killed by it."""
    outcome = await client.exec(
        sh("seq 1 300000; seq 1 100 >&2; exit 5", max_stdout_bytes=1000, max_stderr_bytes=10)
    )
    whole = "".join(f"{n}\n" for n in range(1, 300_001)).encode()
    errors = "".join(f"{n}\n" for n in range(1, 101)).encode()
    assert (outcome.stdout, outcome.stderr, outcome.returncode) == (whole[:1000], errors[:10], 5)
    assert (outcome.stdout_dropped_bytes, outcome.stderr_dropped_bytes) == (
        len(whole) - 1000,
        len(errors) - 10,
    )
    assert outcome.output_cap_reached


@pytest.mark.promise("4.1")
async def test_the_guest_stops_when_nobody_takes_its_output(client: GuestClient) -> None:
    """A flood is held back at its source while its consumer waits, and others go on meanwhile."""
    async with client.open_exec(ExecRequest(argv=["yes"], max_stdout_bytes=1 << 40)) as running:
        for _ in range(20):
            assert (await client.exec(sh("echo hello"))).stdout == b"hello\n"
        async for _, chunk in running:
            assert len(chunk) <= MIB
            break


@pytest.mark.promise("4.2")
async def test_a_background_child_that_holds_stdout_does_not_hang(
    client: GuestClient, folder: str
) -> None:
    """The command is over when its main process is, though a child keeps the pipe."""
    with anyio.fail_after(PATIENCE_S):
        late = '(sleep 0.5; echo late; : >"$1/late"; sleep 1000) & echo $!'
        pid = (await client.exec(sh(late, folder))).stdout
        while (await client.exec(sh('test -e "$1/late"', folder))).returncode:
            pass  # it has not written into its old pipe yet
    assert await is_alive(client, pid)
    await client.exec(sh('pkill -KILL -P "$1"; kill -KILL "$1"', pid.decode().strip()))
