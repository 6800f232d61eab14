"""The walls of the workload's container, tried from the inside: inside the microVM, and with
nothing of the VM's own walls counted.

Each attack works on an ordinary Linux machine for the same user. What needs no machine to itself
is played in turn by one program for each user, as each start of Python takes long in an emulated
machine.
"""

from __future__ import annotations

import json
import platform
from typing import Final, NamedTuple

import pytest
from tests.security.conftest import Attacker

pytestmark = [pytest.mark.anyio, pytest.mark.vm]

IS_X86: Final = platform.machine() == "x86_64"
EPERM, ENOSYS, NO_FAMILY = 1, 38, 97
# number on x86-64, number on arm64
REFUSED_CALLS: Final = {
    "add_key": (248, 217), "bpf": (321, 280), "clock_settime": (227, 112),
    "delete_module": (176, 106), "finit_module": (313, 273), "fsopen": (430, 430),
    "init_module": (175, 105), "io_uring_setup": (425, 425), "kexec_load": (246, 104),
    "keyctl": (250, 219), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "pivot_root": (155, 41), "reboot": (169, 142),
    "request_key": (249, 218), "setns": (308, 268), "swapon": (167, 224), "umount2": (166, 39),
    "unshare": (272, 97), "userfaultfd": (323, 282),
}  # fmt: skip
GETPID, CLONE3, CLONE, PERSONALITY = (39, 172), (435, 435), (56, 220), (135, 92)
NAMESPACE_FLAGS: Final = (1 << 17, 1 << 25, *(1 << bit for bit in range(26, 31)))


def number(numbers: tuple[int, int]) -> int:
    return numbers[0] if IS_X86 else numbers[1]


# Name, arguments, and the errno that it must have (0: it goes through).
CALLS: Final = [
    ("getpid", [number(GETPID)], 0),
    ("clone3, whose flags can't be filtered", [number(CLONE3), 0, 0], ENOSYS),
    *(
        (f"clone with {flag:#x}", [number(CLONE), flag | 17, 0, 0, 0, 0], EPERM)
        for flag in NAMESPACE_FLAGS
    ),
    ("a call of tomorrow", [500], ENOSYS),
    ("the x32 table", [0x40000000 | 39 if IS_X86 else 500], ENOSYS),
    ("the usual personality", [number(PERSONALITY), 0], 0),
    ("a personality that weakens", [number(PERSONALITY), 0x0400000], EPERM),
]
# With nonsense for arguments, the answer is the filter's: they are not looked at.
REFUSED: Final = [
    (name, [number(numbers), -1, -1, -1, -1, -1], EPERM) for name, numbers in REFUSED_CALLS.items()
]
CALL: Final = """
for name, call, errno in {calls!r}:
    found = ctypes.get_errno() if libc.syscall(*map(ctypes.c_long, call)) == -1 else 0
    if found != errno:
        print(name, found)
"""


def rights(capabilities: int) -> str:
    """What a process's status says: no more by exec, and the filter is on."""
    held = zip(("Inh", "Prm", "Eff", "Bnd", "Amb"), (0, *[capabilities] * 3, 0), strict=True)
    return "".join(f"Cap{name}:\t{mask:016x}\n" for name, mask in held) + (
        "NoNewPrivs:\t1\nSeccomp:\t2"
    )


RIGHTS: Final = "grep -E '^(Cap...|NoNewPrivs|Seccomp):' /proc/self/status"


class Attack(NamedTuple):
    """A program of the shell, or of Python if it says so, and what it must print."""

    code: str
    said: str = ""
    language: str = "sh"


def py(code: str, said: str = "") -> Attack:
    return Attack(code, said, "python")


OF_ROOT: Final = {
    # ---- devices and files of the machine
    "control: attacks can see": py("print(open('/proc/self/status').read().count('CapEff'))", "1"),
    "/dev holds only the harmless": Attack(
        r"cd /dev && find . -type b -o -type c | grep -v '^./pts/[0-9]*$' | sort | xargs",
        "./full ./null ./pts/ptmx ./random ./tty ./urandom ./zero",
    ),
    "device nodes can't be made": py(
        """
nodes = {"vda": (6, 254, 0), "vport": (2, 241, 1), "mem": (2, 1, 1), "kmsg": (2, 1, 11)}
found = []
for folder in "/tmp", "/dev", "/dev/shm":
    for name, (kind, *device) in nodes.items():
        path, mode = f"{folder}/{name}", kind << 12 | 0o600
        found.append(errno_of(os.mknod, path, mode, os.makedev(*device)))
print(found)
""",
        str([EPERM] * 12),
    ),
    "no node of the machine's is anywhere": Attack(
        r"find / -xdev \( -type b -o -type c \) ! -path '/proc/*' ! -path '/dev/*' 2>/dev/null"
    ),
    "the old root is gone": py(
        """
lines = open("/proc/self/mountinfo").read().splitlines()
types = {line.split(" - ")[1].split()[0] for line in lines}
old = "low", "rw", "ro", "cg", "new", "init", "m"
print(types - {"overlay", "tmpfs", "devpts", "mqueue", "proc", "sysfs"},
      [name for name in old if os.path.lexists("/" + name)])
""",
        "set() []",
    ),
    "chroot leads nowhere else": py(
        """
os.makedirs("/tmp/jail", exist_ok=True)
here = os.stat("/").st_ino, os.stat("/").st_dev
handle = os.open("/", os.O_RDONLY)
os.chroot("/tmp/jail")
os.fchdir(handle)
for _ in range(50):
    os.chdir("..")
os.chroot(".")
print((os.stat("/").st_ino, os.stat("/").st_dev) == here, sorted(os.listdir("/")) != [])
""",
        "True True",
    ),
    # ---- /proc and /sys
    "/proc is masked": Attack(
        "cd /proc; for n in kcore keys timer_list kmsg kallsyms slabinfo vmallocinfo; do test ! -e"
        " $n || head -c 100 $n || echo failed $n; done; echo end",
        "end",
    ),
    "/sys is masked": Attack(
        "cd /sys || echo no; for n in firmware kernel/debug module class/virtio-ports; do ls -A $n;"
        " done"
    ),
    "modules are off": Attack("cat /proc/sys/kernel/modules_disabled", "1"),
    # ---- system calls
    "calls": py(CALL.format(calls=CALLS)),
    "refused calls": py(CALL.format(calls=REFUSED)),
    "nobody types into a terminal": py(
        """
import pty
_, slave = pty.openpty()
print([errno_of(fcntl.ioctl, slave, request, b"x") for request in (0x5412, 0x541C)])
""",
        str([EPERM] * 2),
    ),
    "no sockets to the host, or of rare parts": py(
        "print([errno_of(socket.socket, *kind) for kind in ((40, 1), (38, 5), (29, 3), (21, 5))])",
        str([NO_FAMILY] * 4),
    ),
    "debuggers work": py(
        """
if (pid := os.fork()) == 0:
    os._exit(0 if libc.ptrace(0, 0, 0, 0) == 0 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
        "0",
    ),
    # ---- rights
    "capabilities of root": Attack(RIGHTS, rights(0xA80425FB)),
    "ids are shifted": py(
        """
for kind in "ug":
    first, outside, count = map(int, open(f"/proc/self/{kind}id_map").read().split())
    print(first, outside, 1 << 31 < count <= (1 << 32) - 1 - outside)
""",
        "0 100000 True\n0 100000 True",
    ),
    "a set-user-id program is made": Attack(
        "cp $(command -v id) /tmp/id && chmod 4755 /tmp/id && stat -c %a /tmp/id", "4755"
    ),
    "root writes its own files": Attack("echo x > /etc/new && cat /etc/new && rm /etc/new", "x"),
    # ---- process 1 and the agent
    "process 1 can't be signalled": Attack(
        "for s in 1 2 9 15 19; do kill -$s 1; grep -c '^State:.S' /proc/1/status; done | xargs",
        "1 1 1 1 1",
    ),
    "orphans are reaped": py(
        """
def zombie(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False
os.system("(sh -c 'exit 3' &) ; (true &) ; true")
deadline = time.monotonic() + 60
while left := [pid for pid in os.listdir("/proc") if pid.isdigit() and zombie(pid)]:
    if time.monotonic() > deadline:
        break
    time.sleep(0.01)
print(left)
""",
        "[]",
    ),
    "the score for memory can't be lowered": Attack(
        "echo -1 > /proc/self/oom_score_adj && echo lowered; cat /proc/self/oom_score_adj", "0"
    ),
    "no core file": Attack("cat /proc/sys/kernel/core_pattern; ulimit -c", "0"),
}  # fmt: skip
OF_OTHERS: Final = {
    "refused calls": OF_ROOT["refused calls"],
    "capabilities": Attack(RIGHTS, rights(0)),
    "a set-user-id program gives nothing": Attack("/tmp/id -u", "65534"),
}
RUNNER: Final = """
import ctypes, errno, fcntl, json, os, resource, socket, subprocess, sys, time, traceback
libc = ctypes.CDLL(None, use_errno=True)
def errno_of(act, *args):
    try:
        act(*args)
    except OSError as error:
        return error.errno
    return 0
def played(code, language):
    if language == "sh":
        none = subprocess.DEVNULL
        return subprocess.run(["sh", "-c", code], stdin=none, stdout=subprocess.PIPE).stdout
    with open("/tmp/said", "w+b") as said:
        if (pid := os.fork()) == 0:
            os.dup2(said.fileno(), 1)
            try:
                exec(code, globals())
            except BaseException:
                traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        said.seek(0)
        return said.read()
found = {}
for name, (code, _, language) in json.load(sys.stdin).items():
    found[name] = played(code, language).decode().strip()
os.remove("/tmp/said")
print(json.dumps(found))
"""


async def play(cell: Attacker, attacks: dict[str, Attack], user: str) -> dict[str, str]:
    given = json.dumps(attacks).encode()
    outcome = await cell.exec(["python3", "-c", RUNNER], user=user, input=given)
    assert outcome.returncode == 0, outcome.stderr
    return dict(json.loads(outcome.stdout))


@pytest.mark.promise("2.2")
async def test_attacks_on_the_walls(cell: Attacker) -> None:
    """Each attack, of root and of another user, ends as it must."""
    for user, attacks in (("0", OF_ROOT), ("65534", OF_OTHERS)):
        found = await play(cell, attacks, user)
        assert found == {name: attack.said for name, attack in attacks.items()}


async def shell(cell: Attacker, script: str, user: str = "0") -> bytes:
    return bytes((await cell.exec(["sh", "-c", script], user=user)).stdout)


@pytest.mark.promise("2.2")
async def test_a_command_is_alone_with_what_is_its_own(cell: Attacker) -> None:
    """Its descriptors, its own processes, process 1: no agent, no kernel thread."""
    script = (
        "import os; print(len(os.listdir('/proc/self/fd')), [p for p in os.listdir('/proc') if"
        " p.isdigit() and int(p) not in (1, os.getpid())])"
    )
    said = (await cell.exec(["python3", "-c", script])).stdout
    assert said == b"4 []\n"  # the fourth is the listing itself


@pytest.mark.promise("2.2")
async def test_killing_everything_leaves_the_cell(cell: Attacker) -> None:
    """Root may kill all it can see; the next command runs."""
    await shell(cell, "kill -9 -1")
    assert await shell(cell, "echo alive") == b"alive\n"
