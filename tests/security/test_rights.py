"""Rights that a plan grants inside a cell."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio
import pytest
from tests.fakes.recorder import MemoryRecorder
from tests.machine import PATIENCE_S
from tests.security.conftest import policy_of
from tests.security.egress import forged

from belljar.cell.cell import Cell
from belljar.cell.open import open_range
from belljar.cell.parts import start_run
from belljar.cell.range import Range
from belljar.channel import Stream
from belljar.plan.rules import DropReason
from belljar.policy.limits import NOTHING_GRANTED, Tier
from belljar.probe.model import ProbeReport, Verdict
from belljar.probe.run import probe_cell

pytestmark = [pytest.mark.anyio, pytest.mark.vm, pytest.mark.root]

POLICY: Final = """\
belljar: 1
risk: {risk}
tier: {tier}
user: root
rights: {{privileged: true}}
resources: {{memory: 256MiB, disk: 128MiB, processes: 64, exec_timeout: 120s}}
network: {{default: deny}}
"""
_NET_ADMIN: Final = 1 << 12
_GRANTED: Final = 1 << 19 | 1 << 2 | _NET_ADMIN
"""CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH and CAP_NET_ADMIN."""
_USUAL: Final = 0xA80425FB
_TRACE: Final = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE = 0x4206
def seize(pid):
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.ptrace(PTRACE_SEIZE, pid, None, None) else 0
"""
"""Python's part of each attempt."""


@pytest.fixture(scope="module", params=["microvm", "gvisor"])
async def made(
    request: pytest.FixtureRequest, anyio_backend: str, vm_home: Path
) -> AsyncIterator[Range]:
    """A cell on a network, with all that its tier grants."""
    risk = "high" if request.param == "microvm" else "medium"
    policy = policy_of(POLICY.format(risk=risk, tier=request.param))
    with start_run("rights", "", [], home=vm_home) as run:
        async with open_range(policy, run=run, home=vm_home) as opened:
            yield opened


@pytest.fixture(scope="module")
def cell(made: Range) -> Cell:
    return made.cells["default"]


async def python(cell: Cell, script: str, *, user: str) -> str:
    """What a program in the cell prints; it must not fail."""
    found = await cell.exec(["python3", "-c", _TRACE + script], user=user)
    assert found.returncode == 0, found.stderr
    return found.stdout.decode().strip()


async def status(cell: Cell, user: str = "0") -> dict[str, str]:
    text = (await cell.exec(["cat", "/proc/self/status"], user=user)).stdout.decode()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


@pytest.mark.promise("2.4")
async def test_root_has_what_the_plan_grants_and_no_more(cell: Cell) -> None:
    """In all its sets, and another user nothing of it; filter and no-new-privileges stay."""
    found = await status(cell)
    held = int(found["CapEff"], 16)
    granted = cell.plan.rights.mask
    assert granted == (_GRANTED if cell.plan.tier is Tier.MICROVM else _NET_ADMIN)
    assert held & granted == granted
    assert held & ~(_USUAL | granted) == 0
    assert int(found["CapBnd"], 16) & ~(_USUAL | granted) == 0
    if cell.plan.tier is Tier.MICROVM:  # gVisor's kernel says neither
        assert (found["NoNewPrivs"].strip(), found["Seccomp"].strip()) == ("1", "2")
    others = await status(cell, user="65534")
    assert {others[name].strip() for name in others if name.startswith("Cap")} == {"0" * 16}


@pytest.mark.promise("2.4")
async def test_the_guest_agent_is_out_of_reach(cell: Cell) -> None:
    """Nobody traces, reads or takes a descriptor of process 1, nor of any process that is not the
    workload's.

    gVisor shows everybody the names of everybody's descriptors and mappings, with rights or
    without.
    """
    paths = ("mem", "environ", "maps", "fd") if cell.plan.tier is Tier.MICROVM else ("mem",)
    script = """
own = os.getpid()
for pid in [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]:
    traced = seize(pid)
    for path in PATHS:
        try:
            found = os.listdir(f"/proc/{pid}/fd") if path == "fd" else open(f"/proc/{pid}/{path}", "rb").read(1)
        except OSError:
            found = None
        if found:
            print(pid, path, found)
    if traced == 0:
        print("traced", pid, open(f"/proc/{pid}/comm").read())
    pidfd = libc.syscall(434, pid, 0)
    if pidfd >= 0 and libc.syscall(438, pidfd, 0, 0) >= 0:
        print("descriptor of", pid)
"""
    assert await python(cell, f"PATHS = {paths!r}\n" + script, user="0") == ""
    assert (await cell.exec(["true"])).success


@pytest.mark.promise("2.4")
async def test_what_else_a_privileged_container_has_stays_closed(cell: Cell) -> None:
    """Mounts, namespaces, devices, modules, keys: each call is refused as without any right."""
    numbers = {"mount": 165, "unshare": 272, "setns": 308, "init_module": 175, "bpf": 321}
    numbers |= {"add_key": 248, "open_by_handle_at": 304, "io_uring_setup": 425}
    numbers |= {"perf_event_open": 298}
    script = f"""
for name, number in {numbers!r}.items():
    ctypes.set_errno(0)
    if libc.syscall(number, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() not in (1, 38):
        print(name, ctypes.get_errno())
import stat
try:
    os.mknod("/tmp/mem", stat.S_IFCHR | 0o600, os.makedev(1, 1))
    print("made a device")
except OSError:
    pass
"""
    assert await python(cell, script, user="0") == ""


async def probed(made: Range, cell: Cell, *which: str, phase: str = "") -> ProbeReport:
    router = made.routers[cell.id]
    return await probe_cell(
        cell, which=which, recorder=MemoryRecorder(), user="0", phase=phase, router=router
    )


@pytest.mark.promise("2.4")
async def test_the_probes_know_what_the_plan_grants(
    made: Range, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it the cell is contained; by a plan that grants nothing the same cell is breached."""
    which = ("namespaces", "channel", "processes", "kernel.other_processes")
    report = await probed(made, cell, *which)
    assert report.verdict is Verdict.CONTAINED, report.of(Verdict.BREACHED)
    if cell.plan.tier is not Tier.MICROVM:
        return  # gVisor's kernel has none of the calls, so that nothing is beyond a plan without them
    monkeypatch.setattr(cell, "plan", replace(cell.plan, rights=NOTHING_GRANTED))
    assert (await probed(made, cell, *which)).verdict is Verdict.BREACHED


_BY_FRAME: Final = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
for frame in sys.stdin:
    s.send(bytes.fromhex(frame))
    print("sent", flush=True)
"""
_BY_ADDRESS: Final = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
for frame in sys.stdin:
    s.sendto(bytes.fromhex(frame)[14:], ("203.0.113.90", 0))
    print("sent", flush=True)
"""
_CHANGED: Final = """
ip link set eth0 down && ip link set eth0 address 02:aa:bb:cc:dd:ee && ip link set eth0 up
ip addr add 192.0.2.1/24 dev eth0
ip route add default dev eth0
ip addr
"""
_OF_GVISOR: Final = ("another cell's address", "the gateway's address", "GRE", "echo")


@pytest.mark.promise("2.4")
@pytest.mark.thorough_in("gvisor")
async def test_who_administers_a_cells_network_reaches_nothing_more(
    made: Range, cell: Cell
) -> None:
    """Root of the cell changes links, addresses and routes, and puts any frame on its port."""
    network = made.network
    assert network is not None
    is_gvisor = cell.plan.tier is not Tier.MICROVM  # whose packet sockets only listen
    frames = forged.frames(network.layout.cell("default"), network.layout.resolver)
    names = [name for name in frames if not is_gvisor or name in _OF_GVISOR]
    script, moved, before = _BY_ADDRESS if is_gvisor else _BY_FRAME, {}, network.counters()
    # One program for all: each start of Python takes seconds in an emulated machine.
    async with cell.open_exec(["python3", "-c", script]) as sender:
        for name in names:
            await sender.send_stdin(f"{frames[name].hex()}\n".encode())
            assert await anext(sender) == (Stream.STDOUT, b"sent\n"), name
            counted: dict[DropReason, int] = {}
            with anyio.fail_after(PATIENCE_S):
                while not counted:  # the relay may carry it a moment later
                    await network.check()
                    after = network.counters()
                    counted = {word: after[word] - before[word] for word in DropReason}
                    counted = {word: count for word, count in counted.items() if count}
            moved[name] = counted
            before = after
        await sender.close_stdin()
    assert moved == {name: {forged.EXPECTED[name]: 1} for name in names}
    changed = await cell.exec(["sh", "-c", _CHANGED])
    assert b"192.0.2.1" in changed.stdout, changed.stderr
    which = ("network.frames", "network.tcp4", "network.udp4", "namespaces")
    report = await probed(made, cell, *which, phase="end")
    assert report.verdict is Verdict.CONTAINED, report.of(Verdict.BREACHED)
