"""Every limit, run into by a workload that means it: the host or the guest's kernel holds it, the
result and the ledger name it, the cell goes on.

One cell for each tier, small; each test leaves it usable, which the last line of each shows. Where
a tier can't outlive a limit (the whole of gVisor's kernel is one process), the cell's death names
it.
"""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.machine import PATIENCE_S

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.channel import ExecOutput
from belljar.errors import CellError
from belljar.policy.load import load_policy

pytestmark = pytest.mark.anyio
MIB = 1 << 20
POLICY = """\
belljar: 1
risk: low
tier: {tier}
user: {user}
workdir: /tmp
resources: {{cpus: 1, memory: 192MiB, disk: 48MiB, processes: 64, output: 64KiB, exec_timeout: 300s, lifetime: 20m}}
"""


@pytest.fixture(scope="module")
async def tight(
    tier: str, anyio_backend: str, vm_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cell]:
    """A small cell of the tier, whose workload is root: the worst case."""
    policy = tmp_path_factory.mktemp("limits") / "policy.yaml"
    policy.write_text(POLICY.format(tier=tier, user="root"))
    async with open_cell(load_policy(policy), home=vm_home) as cell:
        yield cell


@pytest.fixture
async def usable(tight: Cell) -> AsyncIterator[Cell]:
    """The small cell, which must be as usable afterwards as before."""
    yield tight
    with anyio.fail_after(PATIENCE_S):
        after = await sh(
            tight,
            "rm -rf /tmp/* /dev/shm/* 2>/dev/null; ps -eo pid=,comm= 2>/dev/null | wc -l; echo"
            " fine",
        )
    assert after.stdout.endswith(b"fine\n"), after
    assert int(after.stdout.split()[0]) < 12, "processes of the attack are left"


async def sh(cell: Cell, script: str, **options: Any) -> ExecOutput:  # noqa: ANN401 - as Cell.exec takes them
    return await cell.exec(["sh", "-c", script], **options)


def limits_on_record(home: Path, cell: Cell) -> list[str]:
    found = []
    for ledger in home.glob("runs/*/ledger.jsonl"):
        for line in ledger.read_bytes().splitlines():
            event = json.loads(line)
            if event["kind"] == "limit.hit" and event.get("cell") == cell.id:
                found.append(str(event["data"]["limit"]))
    return found


@pytest.mark.promise("8.1")
@pytest.mark.thorough_in("microvm")
async def test_fork_bomb(usable: Cell, tier: str, vm_home: Path) -> None:
    """Processes that make processes end at the limit and die with the command."""
    for timeout_s in (2 if tier == "gvisor" else 1, 5, 15, 60):  # longer on a slow machine
        result = await sh(
            usable, "bomb() { bomb | bomb & }; sleep 1000 & (bomb); wait", timeout_s=timeout_s
        )
        if "processes" in result.limits_hit:
            break
    assert "processes" in result.limits_hit, result
    assert "processes" in limits_on_record(vm_home, usable)


async def limits_or_death(cell: Cell, argv: list[str]) -> tuple[str, bool]:
    """What a command ran into, in words, and whether the cell died of it."""
    try:
        result = await cell.exec(argv)
    except CellError as died:
        return str(died), True
    return ", ".join((*result.limits_hit, result.stderr.decode())), False


HOGS = {
    "takes": "b=[]\nwhile True: b.append(bytearray(8<<20)); b[-1][::4096]=b'x'*len(b[-1][::4096])",
    # Much of its program is thrown away and read again: the kernel alone would let that go on for
    # minutes.
    "works": (
        "import"
        " json,re,decimal,ssl,asyncio,xml.dom.minidom"
        " as x\nb=[bytearray(128<<20)]; b[0][::4096]=b'x'*len(b[0][::4096])\n"
        "while True: b.append(bytearray(1<<18)); json.dumps([b[:0]and 1]);"
        " re.compile(str(len(b))); decimal.Decimal(2).sqrt(); x.parseString('<a>1</a>').toxml()"
    ),
}


@pytest.mark.promise("8.1")
@pytest.mark.parametrize(
    "hog",
    [
        pytest.param(HOGS["takes"], id="takes"),
        pytest.param(HOGS["works"], marks=pytest.mark.thorough_in("gvisor", "microvm"), id="works"),
    ],
)
async def test_memory_hog(tier: str, vm_home: Path, tmp_path: Path, hog: str) -> None:
    """A process that takes more memory than there is is killed, or its cell is."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(tier=tier, user="nobody"))
    async with open_cell(load_policy(policy), home=vm_home) as cell:
        limits, died = await limits_or_death(cell, ["python3", "-c", hog])
        assert "memory" in limits
        assert not died or tier == "gvisor"
        assert died or (await cell.exec(["echo", "fine"])).stdout == b"fine\n"
    assert "memory" in limits_on_record(vm_home, cell)


@pytest.mark.promise("8.1")
@pytest.mark.thorough_in("gvisor", "microvm")
async def test_who_holds_much_memory_is_not_ended_for_what_others_read(usable: Cell) -> None:
    """Beside who has most of the memory a reader of many files is no shortage."""
    hold = (
        "x=bytearray(205<<20); x[::4096]=b'x'*len(x[::4096]); print('held', flush=True); import"
        " sys; sys.stdin.read(); print(len(x))"
    )
    read = (
        "f=$(find /usr/lib /usr/bin -type f -size +900k -size -2500k | head -25); for n in 1 2;"
        " do cat $f >/dev/null; done; echo read"
    )
    async with usable.open_exec(["python3", "-c", hold]) as holding:
        assert await first_line(holding) == b"held\n"
        # A second or two, unless the host's disk is as busy as its memory is short
        reading = await sh(usable, read)
        assert reading.stdout == b"read\n", reading
        await holding.close_stdin()
        assert await first_line(holding) == b"214958080\n"


STAYS_S = (0.6, 5, 30)
"""A limit that is noticed by looking is noticed while it is met; on a slow machine that takes
longer."""


@pytest.mark.promise("8.1")
@pytest.mark.parametrize(
    "where",
    [
        "/tmp/fill",
        # In a microVM all of it is the machine's memory
        pytest.param("/dev/shm/fill", marks=pytest.mark.thorough_in("microvm")),
        # Of one file system with /tmp, but in gVisor
        pytest.param("/usr/share/fill", marks=pytest.mark.thorough_in("container", "microvm")),
    ],
)
async def test_filling_the_disk(usable: Cell, vm_home: Path, where: str) -> None:
    """Writing without end meets the limit as "no space left", on disk and shared memory."""
    for stay_s in STAYS_S:
        fill = (
            f"head -c 400000000 /dev/zero >{where}; wc -c <{where}; sleep {stay_s}; rm -f {where}"
        )
        result = await sh(usable, fill)
        if "disk" in result.limits_hit:
            break
    assert b"No space left" in result.stderr, result
    assert int(result.stdout.split()[-1]) <= (192 + 48) * MIB // 2
    assert "disk" in result.limits_hit, result
    assert "disk" in limits_on_record(vm_home, usable)


@pytest.mark.thorough_in("microvm")  # 60 MiB by an emulated device, whose disk the next test fills
async def test_a_file_that_does_not_fit(usable: Cell, vm_home: Path) -> None:
    """Where the host writes it, the error says that there is no room, and so does the ledger."""
    before = limits_on_record(vm_home, usable).count("disk")
    with pytest.raises(OSError) as refused:  # noqa: PT011 - its errno is looked at
        await usable.write_file("/srv/large", b"x" * (60 * MIB))
    assert refused.value.errno == errno.ENOSPC
    assert limits_on_record(vm_home, usable).count("disk") == before + 1
    assert (await sh(usable, "ls -A /srv")).stdout == b""


# What a process makes of the kernel's memory without having any itself: it is the cell's all the
# same.
KERNEL_MEMORY = """\
import ctypes, mmap, os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1:] * 2)
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
def sockets():
    a, b = socket.socketpair()
    a.setblocking(False)
    try:
        while True: a.send(b"x" * 65536)
    except BlockingIOError: return a, b
def memory_files():
    fd = os.memfd_create("m")
    os.write(fd, bytes(8 << 20))
    return fd
def page_tables():
    m = mmap.mmap(-1, 1 << 37, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    for at in range(0, 1 << 37, 1 << 21): m[at]
    return m
def segments():
    at = libc.shmat(libc.shmget(0, 8 << 20, 0o1600), None, 0)
    if at in (None, ctypes.c_void_p(-1).value): sys.exit("no more segments")
    ctypes.memset(at, 1, 8 << 20)
held = [globals()[sys.argv[1]]() for _ in range(100000)]
"""
KERNEL_MEMORY_IN = {
    "container": ("sockets", "memory_files", "page_tables", "segments"),
    "gvisor": ("sockets",),
    "microvm": ("segments",),
}


@pytest.mark.promise("8.2")
@pytest.mark.thorough_in("gvisor", "microvm")
async def test_the_kernels_memory_is_the_cells(tier: str, vm_home: Path, tmp_path: Path) -> None:
    """Socket buffers, page tables, nameless files and shared segments count."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(tier=tier, user="nobody"))
    async with open_cell(load_policy(policy), home=vm_home) as cell:
        for kind in KERNEL_MEMORY_IN[tier]:
            limits, died = await limits_or_death(cell, ["python3", "-c", KERNEL_MEMORY, kind])
            assert "memory" in limits or (tier == "microvm" and "no more segments" in limits), kind
            assert not died or tier == "gvisor"
            assert died or (await cell.exec(["echo", kind])).stdout == f"{kind}\n".encode()
    assert tier == "microvm" or "memory" in limits_on_record(vm_home, cell)


async def test_open_files(usable: Cell) -> None:
    """A process begins with 1,024, as on any machine, and may raise that as far as services do."""
    script = "import resource as r; print(*r.getrlimit(r.RLIMIT_NOFILE))"
    result = await usable.exec(["python3", "-c", script])
    soft, hard = map(int, result.stdout.split())
    assert soft == 1024 < hard <= 1 << 19  # or what this host itself may have


@pytest.mark.promise("8.1")
async def test_output_flood(usable: Cell, vm_home: Path) -> None:
    """Output beyond the cap is dropped, counted and named; the command isn't stopped by it."""
    result = await sh(usable, "head -c 30000000 /dev/zero; echo end >&2")
    assert (len(result.stdout), result.stdout_dropped_bytes) == (65536, 30_000_000 - 65536)
    assert (result.stderr, result.returncode) == (b"end\n", 0)
    assert "output" in result.limits_hit
    assert "output" in limits_on_record(vm_home, usable)


FORKS_FOR_EVER = """\
import os
while True:
 try:
  if os.fork(): continue
  os.setsid(); os.execvp("sleep", ["sleep", "0.01"])
 except OSError: pass
"""
FORKS = "forks for ever"
STUBBORN = {
    "ignores signals": "trap '' TERM INT HUP QUIT USR1; while :; do sleep 1000; done",
    "stops itself": "kill -STOP $$",
    "daemonises": (
        "setsid sh -c 'setsid sleep 1000 & sleep 1000' </dev/null >/dev/null 2>&1 & sleep 1000"
    ),
    "closes its streams": "exec <&- >&- 2>&-; sleep 1000 & sleep 1000",
    FORKS: f"exec python3 -c '{FORKS_FOR_EVER}'",
}


@pytest.mark.promise("8.1")
@pytest.mark.thorough_in("gvisor")
async def test_the_time_of_a_command(usable: Cell, vm_home: Path) -> None:
    """Whatever a command does to outlive its time, it and all it started are gone soon after."""
    results: dict[str, ExecOutput] = {}

    async def run(what: str) -> None:
        results[what] = await sh(usable, STUBBORN[what], timeout_s=1)

    before = limits_on_record(vm_home, usable).count("exec_timeout")
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for what in STUBBORN.keys() - {FORKS}:
                tasks.start_soon(run, what)
        await run(FORKS)  # it leaves no room for others
    for what, result in results.items():
        assert result.timed_out, what
        assert "exec_timeout" in result.limits_hit, what
    hits = limits_on_record(vm_home, usable).count("exec_timeout") - before
    assert hits == len(results) == len(STUBBORN)
    left = await sh(usable, "ps -eo args= | grep -c '[s]leep 1000\\|[s]leep 0.01'")
    assert left.stdout.strip() == b"0"


async def first_line(running: Any) -> bytes:  # noqa: ANN401 - a RunningCommand
    seen = b""
    with anyio.fail_after(PATIENCE_S):
        async for _, chunk in running:
            seen += chunk
            if b"\n" in seen:
                break
    return seen
