"""What root of a cell must not do in any tier: one cell of each, attacked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.security.conftest import policy_of

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell

pytestmark = [pytest.mark.anyio, pytest.mark.vm]

POLICY = """\
belljar: 1
risk: low
tier: {tier}
user: root
resources: {{cpus: 1, memory: 256MiB, disk: 64MiB, processes: 64}}
"""
SIGNAL = """
import ctypes, fcntl, os, socket, struct
F_SETSIG, F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP = 10, 8, 15, 0x8901, 0x8902
fcntl_of = ctypes.CDLL(None).syscall
WAYS = {
    "process": lambda s: fcntl.fcntl(s, F_SETOWN, 1),
    "group": lambda s: fcntl.fcntl(s, F_SETOWN, -1),
    "extended process": lambda s: fcntl.fcntl(s, F_SETOWN_EX, struct.pack("ii", 1, 1)),
    "extended thread": lambda s: fcntl.fcntl(s, F_SETOWN_EX, struct.pack("ii", 0, 1)),
    "extended group": lambda s: fcntl.fcntl(s, F_SETOWN_EX, struct.pack("ii", 2, 1)),
    "ioctl of files": lambda s: fcntl.ioctl(s, FIOSETOWN, struct.pack("i", 1)),
    "ioctl of sockets": lambda s: fcntl.ioctl(s, SIOCSPGRP, struct.pack("i", 1)),
    "high bits": lambda s: fcntl_of(72, s.fileno(), F_SETOWN, ctypes.c_ulong(0x1_0000_0001)),
}
for name, way in WAYS.items():
    ours, theirs = socket.socketpair()
    fcntl.fcntl(ours, F_SETSIG, 9)
    try:
        way(ours)
        print(name)
    except PermissionError:
        pass
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    theirs.send(b"x")
"""
OWN_SIGNAL = """
import fcntl, os, signal, socket
ours, theirs = socket.socketpair()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
fcntl.fcntl(ours, 8, os.getpid())
fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
theirs.send(b"x")
print(signal.sigwait({signal.SIGIO}) == signal.SIGIO)
"""
SOCKETS = """
import errno, socket
INET, INET6, STREAM, DATAGRAM, RAW = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW
MPTCP, UDPLITE, SCTP = 262, 136, 132
for family in INET, INET6:
    for kind, protocol in (STREAM, MPTCP), (STREAM | socket.SOCK_CLOEXEC, MPTCP), (DATAGRAM, UDPLITE), (STREAM, SCTP):
        try:
            socket.socket(family, kind, protocol).close()
            print(family, kind, protocol, "made")
        except OSError as error:
            if error.errno not in (errno.EPROTONOSUPPORT, errno.EPERM):
                print(family, kind, protocol, error)
    for kind, protocol in (STREAM, 0), (STREAM, 6), (DATAGRAM, 0), (DATAGRAM, 17):
        socket.socket(family, kind, protocol).close()
"""
DEVICES = """
import os, pty
try:
    with open("/dev/file", "wb", 0) as file:
        for _ in range(4):
            file.write(bytes(1 << 20))
    print("written")
except OSError:
    pass
for name in "null", "zero", "full", "random", "urandom":
    os.close(os.open(f"/dev/{name}", os.O_RDWR))
os.close(os.open("/dev/null", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
with open("/dev/shm/file", "w") as file:
    file.write("x")
print(all(os.isatty(fd) for fd in pty.openpty()))
"""


@pytest.fixture(scope="module", params=["container", "gvisor", "microvm"])
async def cell(
    request: pytest.FixtureRequest, anyio_backend: str, vm_home: Path
) -> AsyncIterator[Cell]:
    """A cell of the tier, for the module: each test must leave it usable."""
    async with open_cell(policy_of(POLICY.format(tier=request.param)), home=vm_home) as opened:
        yield opened


async def said(cell: Cell, code: str) -> str:
    output = await cell.exec(["python3", "-I", "-c", code])
    assert output.success, output.stderr
    return output.stdout.decode()


@pytest.mark.promise("2.2")
async def test_process_1_is_sent_no_signal_through_a_descriptor(cell: Cell) -> None:
    """In whichever way it is made the owner; of one's own it works, as servers use it."""
    assert await said(cell, SIGNAL) == "high bits\n"  # its answer may be a success, or none
    assert (await cell.exec(["true"])).success
    assert await said(cell, OWN_SIGNAL) == "True\n"


@pytest.mark.promise("2.2")
async def test_rare_protocols_and_files_among_devices_are_refused(cell: Cell) -> None:
    """No MPTCP, UDP-Lite or SCTP socket of either family is made; TCP and UDP are."""
    assert await said(cell, SOCKETS) == ""
    assert await said(cell, DEVICES) == "True\n"
    await cell.exec(["rm", "-f", "/dev/file"])
