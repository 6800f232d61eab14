"""What every tier promises of streams to servers in a cell, and of commands in the background."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from tests.machine import PATIENCE_S

from belljar.cell.cell import Cell, CellStream
from belljar.cell.exec import RunningCommand

pytestmark = pytest.mark.anyio
SERVER = """\
import socket, sys, threading
kind, where, what = sys.argv[1:4]
if kind == "unix":
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(where)
    listening.listen(64)
else:
    listening = socket.create_server((kind, int(where)), backlog=64,
        family=socket.AF_INET6 if ":" in kind else socket.AF_INET)
print("ready", flush=True)
def serve(peer):
    try:
        exec(what, {"peer": peer, "socket": socket})
    except OSError:
        pass
    peer.close()
while True:
    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
"""
FULL = """\
import socket, time
listening = socket.socket(socket.AF_UNIX)
listening.bind("/tmp/full.sock")
listening.listen(0)
waiting = [socket.socket(socket.AF_UNIX) for _ in range(9)]
for one in waiting:
    one.setblocking(False)
    one.connect_ex("/tmp/full.sock")
print("full", flush=True)
time.sleep(1000)
"""
ECHO = "while got := peer.recv(65536): peer.sendall(got)"


@asynccontextmanager
async def serving(
    cell: Cell, where: str, what: str = ECHO, kind: str = "127.0.0.1"
) -> AsyncIterator[RunningCommand]:
    """A server in the cell that does `what` with each `peer`, until the block is left."""
    server = await cell.start(["python3", "-c", SERVER, kind, where, what])
    try:
        with anyio.fail_after(PATIENCE_S):
            while server.output().stdout != b"ready\n":
                assert server.running, await server.wait()
                await anyio.lowlevel.checkpoint()
        yield server
    finally:
        await server.kill()


async def rest(stream: CellStream) -> bytes:
    return b"".join([chunk async for chunk in stream])


@pytest.mark.promise("4.3")
async def test_to_a_port_and_back(cell: Cell) -> None:
    """What is sent arrives, the answer comes back, also after our side has ended."""
    async with serving(cell, "8080"), cell.connect(8080) as stream:
        await stream.send(b"through and back")
        await stream.send_eof()
        assert await rest(stream) == b"through and back"
        assert (stream.sent.total_bytes, stream.received.total_bytes) == (16, 16)


@pytest.mark.promise("4.3")
async def test_to_a_socket_and_to_the_other_loopback(cell: Cell) -> None:
    """A unix socket in the cell, and a port of ::1 alone, are reached too."""
    async with serving(cell, "/tmp/s.sock", kind="unix"), cell.connect("/tmp/s.sock") as stream:
        await stream.send(b"by name")
        assert await stream.receive() == b"by name"
    six = await cell.exec(
        ["python3", "-c", "import socket; socket.create_server(('::1', 0), family=socket.AF_INET6)"]
    )
    if six.returncode == 0:
        async with serving(cell, "8086", kind="::1"), cell.connect(8086) as stream:
            await stream.send(b"six")
            assert await stream.receive() == b"six"


@pytest.mark.promise("4.3")
async def test_why_there_is_no_connection(cell: Cell) -> None:
    """A closed port, a missing socket, a full backlog, a closed directory: each its own error."""
    with pytest.raises(ConnectionRefusedError, match="port 9"):
        async with cell.connect(9):
            pass
    with pytest.raises(FileNotFoundError):
        async with cell.connect("/tmp/none.sock"):
            pass
    await cell.exec(["sh", "-c", "mkdir -p /tmp/closed && chmod 700 /tmp/closed"], user="root")
    with pytest.raises(PermissionError):
        async with cell.connect("/tmp/closed/s.sock", user="nobody"):
            pass
    server = await cell.start(["python3", "-c", FULL])
    with anyio.fail_after(PATIENCE_S):
        while b"full" not in server.output().stdout:
            await anyio.lowlevel.checkpoint()
    with pytest.raises(TimeoutError):
        async with cell.connect("/tmp/full.sock", timeout_s=0.5):
            pass
    await server.kill()


@pytest.mark.promise("4.3")
async def test_much_both_ways_at_once(cell: Cell) -> None:
    """Ten times the window goes both ways at once, and many streams beside."""
    piece = bytes(range(256)) * 256

    async def talk(rounds: int) -> None:
        async with cell.connect(8080) as stream, anyio.create_task_group() as tasks:

            async def send() -> None:
                for _ in range(rounds):
                    await stream.send(piece)
                await stream.send_eof()

            tasks.start_soon(send)
            assert await rest(stream) == piece * rounds

    async with serving(cell, "8080"), anyio.create_task_group() as tasks:
        tasks.start_soon(talk, 160)
        for _ in range(8):
            tasks.start_soon(talk, 1)


@pytest.mark.promise("4.2")
async def test_commands_in_the_background(cell: Cell) -> None:
    """Several run at once and are told apart; each is signalled, killed and waited for alone."""
    async with anyio.create_task_group():
        first = await cell.start(["sh", "-c", "echo one; exec sleep 1000"])
        second = await cell.start(
            ["sh", "-c", "trap 'exit 7' TERM; echo two; while :; do sleep 0.1; done"]
        )
        third = await cell.start(["sh", "-c", "echo three; exit 3"])
        missing = await cell.start(["no-such-program"])
        assert len({first.id, second.id, third.id}) == 3
        assert (await third.wait(timeout_s=PATIENCE_S)).returncode == 3
        assert third.output().stdout == b"three\n"
        assert (await missing.wait(timeout_s=PATIENCE_S)).returncode == 127
        with anyio.fail_after(PATIENCE_S):
            while not (first.output().stdout and second.output().stdout):
                await anyio.lowlevel.checkpoint()
        assert first.running
        with pytest.raises(TimeoutError):
            await first.wait(timeout_s=0.1)
        await second.signal(15)
        assert (await second.wait(timeout_s=PATIENCE_S)).returncode == 7
        assert first.running
        await first.kill()
        assert (first.running, first.returncode) == (False, 137)


HOSTILE = {
    "8001": "while True: peer.sendall(b'z' * 65536)",
    "8002": "__import__('time').sleep(1000)",
    "8003": "pass",
    "8004": "peer.setsockopt(1, 13, bytes([1, 0, 0, 0, 0, 0, 0, 0]))",
}


@pytest.mark.promise("4.3")
@pytest.mark.parametrize("port", HOSTILE)
async def test_a_hostile_server_costs_its_own_stream(cell: Cell, port: str) -> None:
    """One that floods, never reads, closes at once or resets."""
    # A reset that is quicker than the connection's begin is told there
    ended = (anyio.BrokenResourceError, ConnectionResetError)
    async with serving(cell, port, HOSTILE[port]):
        with anyio.move_on_after(1), suppress(*ended):
            async with cell.connect(int(port)) as stream:
                for _ in range(100):
                    await stream.send(b"x" * 65536)
        for _ in range(10):
            with suppress(*ended):
                async with cell.connect(int(port)) as stream:
                    stream.end()
        assert (await cell.exec(["echo", "fine"])).stdout == b"fine\n"
