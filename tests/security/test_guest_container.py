"""The walls of the workload's container, tried from the inside: inside the microVM, and with
nothing of the VM's own walls counted.

Each test is an attack that works on an ordinary Linux machine for the same user. They need a
fixture `cell` with `await cell.exec([...])`, which runs as root of the container unless a `user` is
given.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Protocol

import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.vm]

_CAPABILITIES_OF_ROOT = 0xA80425FB
_EPERM, _ENOSYS, _EACCES = 1, 38, 13
_IS_X86 = platform.machine() == "x86_64"

# number on x86-64, number on arm64
_REFUSED_CALLS = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "swapon": (167, 224),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_CLONE3, _CLONE, _PERSONALITY = (435, 435), (56, 220), (135, 92)


class Outcome(Protocol):
    """What a command in a cell gives back."""

    returncode: int
    stdout: bytes
    stderr: bytes


class Cell(Protocol):
    """The part of a cell that these tests need."""

    async def exec(self, argv: Sequence[str], **rest: str) -> Outcome:
        """Run a command."""
        ...


def _number(numbers: tuple[int, int]) -> int:
    return numbers[0] if _IS_X86 else numbers[1]


async def shell(cell: Cell, script: str, **rest: str) -> Outcome:
    """A shell script in the cell."""
    return await cell.exec(["sh", "-c", script], **rest)


async def python(cell: Cell, script: str, **rest: str) -> str:
    """What a Python program in the cell prints; it must not fail."""
    outcome = await cell.exec(["python3", "-c", script], **rest)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout.decode().strip()


async def errnos_of(cell: Cell, *calls: Sequence[int], **rest: str) -> list[int]:
    """The errno of each raw system call (number and arguments), 0 if it went through."""
    script = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for call in {[list(call) for call in calls]}:
    print(ctypes.get_errno() if libc.syscall(*map(ctypes.c_long, call)) == -1 else 0, flush=True)
"""
    return [int(line) for line in (await python(cell, script, **rest)).split()]


async def errno_of(cell: Cell, *call: int) -> int:
    """That of one call."""
    (errno,) = await errnos_of(cell, call)
    return errno


# ---- devices and files of the machine


async def test_the_attacks_can_see(cell: Cell) -> None:
    """The control: the shell, Python and /proc work, so an attack that fails fails for its own
    reason."""
    assert await python(cell, "print(open('/proc/self/status').read().count('CapEff'))") == "1"
    assert await errno_of(cell, 39 if _IS_X86 else 172) == 0


@pytest.mark.promise("2.2")
async def test_dev_holds_only_the_harmless(cell: Cell) -> None:
    """No block device, channel device, memory device, loop or fuse: the list is complete."""
    listing = (
        (await shell(cell, "cd /dev && find . -type b -o -type c | sort")).stdout.decode().split()
    )
    terminals = {name for name in listing if name.startswith("./pts/") and name[6:].isdigit()}
    harmless = {"./full", "./null", "./pts/ptmx", "./random", "./tty", "./urandom", "./zero"}
    assert set(listing) - terminals == harmless


@pytest.mark.parametrize("folder", ["/tmp", "/dev", "/dev/shm"])
async def test_device_nodes_can_not_be_made(cell: Cell, folder: str) -> None:
    """Root of the container can't make itself a device."""
    devices = ("vda b 254 0", "vport c 241 1", "mem c 1 1", "kmsg c 1 11")
    tries = [f"mknod {folder}/{device} 2>&1 && echo made {device}" for device in devices]
    said = (await shell(cell, "; ".join(tries))).stdout.lower().splitlines()
    assert len(said) == len(devices), said
    assert all(b"not permitted" in line for line in said), said


async def test_device_numbers_of_the_machine_are_unreachable(cell: Cell) -> None:
    """Every block device and port that sysfs names has no node anywhere in the tree."""
    script = (
        "find / -xdev \\( -type b -o -type c \\) ! -path '/proc/*' ! -path '/dev/*' 2>/dev/null"
    )
    assert (await shell(cell, script)).stdout == b""


async def test_the_old_root_is_gone(cell: Cell) -> None:
    """No mount of the machine (initramfs, image, writable layer, cgroup tree, run directory) is in
    the container's mount namespace."""
    mounts = (await shell(cell, "cat /proc/self/mountinfo")).stdout.decode().splitlines()
    types = {line.split(" - ")[1].split()[0] for line in mounts}
    assert types <= {"overlay", "tmpfs", "devpts", "mqueue", "proc", "sysfs"}
    assert (await shell(cell, "ls -d /low /rw /ro /cg /new /init /m")).stdout == b""


async def test_chroot_leads_nowhere_else(cell: Cell) -> None:
    """The classic way out of a chroot ends in the same root."""
    script = """
import os
os.makedirs("/tmp/jail", exist_ok=True)
here = os.stat("/").st_ino, os.stat("/").st_dev
handle = os.open("/", os.O_RDONLY)
os.chroot("/tmp/jail")
os.fchdir(handle)
for _ in range(50):
    os.chdir("..")
os.chroot(".")
print((os.stat("/").st_ino, os.stat("/").st_dev) == here, sorted(os.listdir("/")) != [])
"""
    assert await python(cell, script) == "True True"


async def test_no_descriptor_is_inherited(cell: Cell) -> None:
    """A command has its three descriptors and nothing of the agent's."""
    names = await python(
        cell, "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:4])"
    )
    assert names == "[0, 1, 2, 3]"  # 3 is the listing itself
    more = await python(cell, "import os; print(len(os.listdir('/proc/self/fd')))")
    assert more == "4"


# ---- /proc and /sys


@pytest.mark.promise("2.2")
async def test_kernel_settings_are_read_only(cell: Cell) -> None:
    """Settings of the machine's kernel can't be opened for writing by root of the container."""
    paths = ("sys/kernel/core_pattern", "sys/vm/drop_caches", "sys/kernel/modprobe", "sysrq-trigger",
             "irq/default_smp_affinity", "bus/input/devices")  # fmt: skip
    script = f"""
import os
for path in {paths}:
    try:
        os.open("/proc/" + path, os.O_WRONLY); print(path, "open")
    except OSError as e:
        print(path, e.errno)
"""
    said = [line.split() for line in (await python(cell, script)).splitlines()]
    assert [path for path, _ in said] == list(paths)
    assert {errno for _, errno in said} <= {"30", str(_EACCES), "2"}, said


async def test_proc_is_masked(cell: Cell) -> None:
    """What tells of the kernel's memory is empty."""
    names = "kcore keys timer_list kmsg kallsyms slabinfo vmallocinfo"
    script = (
        f"cd /proc; for n in {names}; do test ! -e $n || head -c 100 $n || echo failed $n; done"
    )
    outcome = await shell(cell, script)
    assert (outcome.returncode, outcome.stdout) == (0, b"")


async def test_sys_is_masked(cell: Cell) -> None:
    """Firmware, debugging and the channel's port are not there to see."""
    folders = ("firmware", "kernel/debug", "module", "class/virtio-ports")
    script = "cd /sys || echo no; " + "; ".join(f"ls -A {folder}" for folder in folders)
    assert (await shell(cell, script)).stdout == b""


async def test_sys_is_read_only(cell: Cell) -> None:
    """Nothing under /sys can be written."""
    outcome = await shell(
        cell,
        "echo 1 > /sys/kernel/mm/transparent_hugepage/enabled || echo 1 > /sys/kernel/profiling",
    )
    assert outcome.returncode != 0
    assert b"Read-only" in outcome.stderr


@pytest.mark.promise("2.2")
async def test_modules_are_off(cell: Cell) -> None:
    """The machine itself loads no module any more, whoever asks."""
    assert (await shell(cell, "cat /proc/sys/kernel/modules_disabled")).stdout.strip() == b"1"


# ---- system calls


@pytest.mark.promise("2.2")
@pytest.mark.parametrize("user", ["", "65534"])
async def test_refused_calls(cell: Cell, user: str) -> None:
    """Each is refused before its arguments are looked at: with nonsense for arguments, the answer
    is the filter's."""
    rest = {"user": user} if user else {}
    calls = [(_number(numbers), -1, -1, -1, -1, -1) for numbers in _REFUSED_CALLS.values()]
    answers = zip(_REFUSED_CALLS, await errnos_of(cell, *calls, **rest), strict=True)
    assert dict(answers) == dict.fromkeys(_REFUSED_CALLS, _EPERM)


async def test_clone3_does_not_exist(cell: Cell) -> None:
    """Its flags can't be filtered, so it isn't there; libc falls back."""
    assert await errno_of(cell, _number(_CLONE3), 0, 0) == _ENOSYS


async def test_clone_makes_no_namespace(cell: Cell) -> None:
    """clone with any one namespace flag is refused."""
    flags = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
    calls = [(_number(_CLONE), flag | 17, 0, 0, 0, 0) for flag in flags]
    answers = zip(flags, await errnos_of(cell, *calls), strict=True)
    assert dict(answers) == dict.fromkeys(flags, _EPERM)


async def test_calls_of_tomorrow_do_not_exist(cell: Cell) -> None:
    """A call newer than the table is not there, and neither is the x32 table."""
    assert await errno_of(cell, 500) == _ENOSYS
    if _IS_X86:
        assert await errno_of(cell, 0x40000000 | 39) == _ENOSYS


async def test_personality(cell: Cell) -> None:
    """The usual personality may be set, one that weakens the process may not."""
    assert await errno_of(cell, _number(_PERSONALITY), 0) == 0
    assert await errno_of(cell, _number(_PERSONALITY), 0x0400000) == _EPERM


@pytest.mark.parametrize("request_code", [0x5412, 0x541C])
async def test_terminal_injection(cell: Cell, request_code: int) -> None:
    """Nobody can type into a terminal that isn't his keyboard."""
    script = f"""
import os, pty, fcntl
master, slave = pty.openpty()
try:
    fcntl.ioctl(slave, {request_code}, b"x"); print("went through")
except OSError as e:
    print(e.errno)
"""
    assert await python(cell, script) == str(_EPERM)


async def test_socket_families(cell: Cell) -> None:
    """Sockets to the host (vsock) and of rarely used kernel parts are not there."""
    script = """
import socket
for family, kind in ((40, 1), (38, 5), (29, 3), (21, 5)):
    try:
        socket.socket(family, kind); print(0)
    except OSError as e:
        print(e.errno)
"""
    assert (await python(cell, script)).split() == ["97"] * 4


async def test_debuggers_work(cell: Cell) -> None:
    """ptrace of one's own child is an ordinary thing and allowed."""
    script = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
pid = os.fork()
if pid == 0:
    os._exit(0 if libc.ptrace(0, 0, 0, 0) == 0 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert await python(cell, script) == "0"


# ---- rights


async def _status(cell: Cell, **rest: str) -> dict[str, str]:
    text = (await shell(cell, "cat /proc/self/status", **rest)).stdout.decode()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


async def test_capabilities_of_root(cell: Cell) -> None:
    """Root has an ordinary container's capabilities, all four sets say so, no new ones come by
    exec, and the filter is on."""
    status = await _status(cell, user="0")
    assert int(status["CapBnd"], 16) == _CAPABILITIES_OF_ROOT
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == _CAPABILITIES_OF_ROOT
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")


async def test_capabilities_of_others(cell: Cell) -> None:
    """Another user has none, and can't get any."""
    status = await _status(cell, user="65534")
    assert [
        int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    ] == [0] * 5
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")


@pytest.mark.promise("2.2")
async def test_ids_are_shifted(cell: Cell) -> None:
    """Root inside is nobody in particular outside, and nobody inside is root outside."""
    for kind in ("uid", "gid"):
        (line,) = (await shell(cell, f"cat /proc/self/{kind}_map")).stdout.splitlines()
        first, outside, count = map(int, line.split())
        assert (first, outside) == (0, 100_000)
        assert 1 << 31 < count <= (1 << 32) - 1 - outside


async def test_set_user_id_programs_give_nothing(cell: Cell) -> None:
    """A set-user-id program that root made runs with the caller's rights."""
    made = await shell(
        cell, "cp $(command -v id) /tmp/id && chmod 4755 /tmp/id && stat -c %a /tmp/id", user="0"
    )
    assert made.stdout.strip() == b"4755"
    assert (await shell(cell, "/tmp/id -u", user="65534")).stdout.strip() == b"65534"


async def test_root_is_not_bound_by_modes_but_by_the_tree(cell: Cell) -> None:
    """Root can write the container's own files: the layer is writable, and only inside."""
    assert (
        await shell(cell, "echo x > /etc/new && cat /etc/new && rm /etc/new", user="0")
    ).stdout == b"x\n"


# ---- process 1 and the agent


@pytest.mark.parametrize("signal", [1, 2, 9, 15, 19])
async def test_process_1_can_not_be_signalled(cell: Cell, signal: int) -> None:
    """After the signal the container still stands and takes in orphans."""
    await shell(cell, f"kill -{signal} 1", user="0")
    assert (await shell(cell, "grep -c '^State:.S' /proc/1/status")).stdout.strip() == b"1"


@pytest.mark.promise("2.2")
async def test_process_1_can_not_be_touched(cell: Cell) -> None:
    """Neither ptrace, nor its limits, nor its memory, environment, root or descriptors."""
    script = """
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
got = ["ptrace"] if libc.ptrace(16, 1, 0, 0) == 0 else []
try:
    resource.prlimit(1, resource.RLIMIT_CPU, (1, 1)); got.append("prlimit")
except OSError:
    pass
for name, use in [("mem", open), ("environ", open), ("maps", open), ("root", os.readlink), ("exe", os.readlink), ("fd", os.listdir)]:
    try:
        use(f"/proc/1/{name}"); got.append(name)
    except OSError:
        pass
print(got)
"""
    assert await python(cell, script, user="0") == "[]"


async def test_the_agent_is_not_there(cell: Cell) -> None:
    """The container's process 1 and one's own processes are all there is: no agent, no kernel
    thread."""
    script = (
        "import os; print([p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1,"
        " os.getpid())])"
    )
    assert await python(cell, script) == "[]"


async def test_orphans_are_reaped(cell: Cell) -> None:
    """A background child's end leaves no zombie behind."""
    await shell(cell, "(sh -c 'exit 3' &) ; (true &) ; true")
    script = """
import pathlib, time
def zombies():
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            found += [status] if status.read_text().rpartition(")")[2].split()[0] == "Z" else []
        except OSError:
            pass
    return found
deadline = time.monotonic() + 60
while zombies() and time.monotonic() < deadline:
    time.sleep(0.01)
print(len(zombies()))
"""
    assert await python(cell, script) == "0"


@pytest.mark.promise("2.2")
async def test_killing_everything_leaves_the_cell(cell: Cell) -> None:
    """Root may kill all it can see; the next command runs."""
    await shell(cell, "kill -9 -1", user="0")
    assert (await shell(cell, "echo alive")).stdout == b"alive\n"


async def test_oom_score_can_not_be_lowered(cell: Cell) -> None:
    """No process of the workload can hide from the out-of-memory killer."""
    assert (await shell(cell, "echo -1 > /proc/self/oom_score_adj", user="0")).returncode != 0
    assert (await shell(cell, "cat /proc/self/oom_score_adj")).stdout.strip() == b"0"


# ---- limits


@pytest.mark.promise("2.2")
async def test_memory_is_bounded(cell: Cell) -> None:
    """A memory hog is killed, is told to have run out of memory, and the cell goes on."""
    outcome = await cell.exec(["python3", "-c", "x = []\nwhile True: x.append(bytearray(1 << 20))"])
    assert outcome.returncode in (137, 1)
    assert (await shell(cell, "echo alive")).stdout == b"alive\n"


@pytest.mark.promise("2.2")
async def test_processes_are_bounded(cell: Cell) -> None:
    """A fork bomb comes to its end, and the next command runs all the same."""
    script = """
import os, time
pids = []
try:
    while len(pids) < 100000:
        pid = os.fork()
        if pid == 0:
            time.sleep(1000)
        pids.append(pid)
    print("no limit")
except BlockingIOError:
    print("limit")
for pid in pids:
    os.kill(pid, 9)
"""
    assert await python(cell, script) == "limit"
    assert (await shell(cell, "echo alive")).stdout == b"alive\n"


async def test_disk_is_bounded(cell: Cell) -> None:
    """Filling the disk is told as such, and what was filled can be freed."""
    script = (
        "dd if=/dev/zero of=/tmp/filler bs=1M count=1000000 2>&1 | tail -4; rm /tmp/filler; echo x"
        " > /tmp/after && cat /tmp/after"
    )
    outcome = await shell(cell, script)
    assert b"No space left" in outcome.stdout or outcome.returncode == 137
    assert (
        await shell(cell, "rm -f /tmp/filler; echo x > /tmp/after && cat /tmp/after")
    ).stdout == b"x\n"


async def test_no_core_file(cell: Cell) -> None:
    """A crash leaves no core, and calls no program on the machine."""
    assert (await shell(cell, "cat /proc/sys/kernel/core_pattern; ulimit -c")).stdout.split() == [
        b"0"
    ]


# ---- neutrality


@pytest.mark.promise("2.2")
async def test_nothing_says_what_this_is(cell: Cell) -> None:
    """No name that the container shows (environment, processes, mounts, hostname, kernel command
    line) is one of ours."""
    script = (
        "env; cat /proc/*/cmdline /proc/*/comm /proc/mounts /proc/cmdline /proc/self/cgroup;"
        " hostname; ls -A / /dev /run /tmp"
    )
    text = (await shell(cell, script)).stdout.lower()
    assert not [
        word
        for word in (b"belljar", b"sandbox", b"inspect", b"eval", b"harness", b"agent")
        if word in text
    ]
