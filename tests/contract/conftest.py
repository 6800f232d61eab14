"""What carries the contract's channel: here the real agent's native mode on a socket pair, on this host without a container.

A tier that wants the same suite gives its own `agent_socket`; only the one test that kills the agent asks for `agent_process`.
"""

from __future__ import annotations

import platform
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.fakes.asking import renew, sh

import belljar
from belljar.channel import ExecRequest, GuestClient

LONGEST_TEST_S = 150
AGENT = Path(belljar.__file__).parent / "_bin" / f"agent-{platform.machine()}"


@pytest.fixture
def agent_process() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The agent in native mode and the host's end of its channel."""
    if not AGENT.exists():
        pytest.fail(f"{AGENT.name} is not built: run `python hatch_build.py`", pytrace=False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen([AGENT, "--serve", str(theirs.fileno())], pass_fds=[theirs.fileno()], env={})
        theirs.close()
        watchdog = threading.Timer(LONGEST_TEST_S, process.kill)  # a test that would hang fails with a dead cell
        watchdog.start()
        try:
            yield process, ours
        finally:
            watchdog.cancel()
            ours.close()
            process.wait(timeout=10)


@pytest.fixture
def agent_socket(agent_process: tuple[subprocess.Popen[bytes], socket.socket]) -> socket.socket:
    """The host's end of a channel to a real agent that has said READY."""
    return agent_process[1]


@pytest.fixture
async def client(agent_socket: socket.socket) -> AsyncIterator[GuestClient]:
    """A client that has shaken hands and renewed its guest."""
    async with GuestClient.from_socket(agent_socket) as made:
        await made.wait_ready(timeout_s=10)
        await made.hello()
        await renew(made)
        yield made


@pytest.fixture
async def folder(client: GuestClient) -> AsyncIterator[str]:
    """A directory in the guest that everyone may use; removed afterwards."""
    made = (await client.exec(sh('dir=$(mktemp -d) && chmod 1777 "$dir" && printf %s "$dir"'))).stdout.decode()
    yield made
    await client.exec(ExecRequest(argv=["rm", "-rf", "--", made]))
