"""The agent as process 1 of somebody else's container (`--contained`)."""

from __future__ import annotations

import contextlib
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.guest import CONFIG, CONFIGURED, EXITED, READY, SIGNAL, SIGNALED, STARTED, text
from tests.fakes.raw_host import EXEC, MIB, Ended, Wire, exec_body
from tests.machine import public_folder

import belljar

pytestmark = pytest.mark.root
BIN = Path(belljar.__file__).parent / "_bin"
BOX = Path(__file__).with_name("contained_box.py")
PROCESSES, PROBE = 60, 4
TIMED_OUT = 1
PROCESSES_FULL = 16
# With CAP_NET_ADMIN, which this runtime (root itself) gives
CAP_SYS_ADMIN, ROOT_CAPABILITIES = 1 << 21, 0xA00435FB


class Box:
    """A container with an agent that is ready for operations."""

    def __init__(self, sock: socket.socket) -> None:
        self.wire = Wire(sock)
        self.wire.expect(READY)
        limits = struct.pack("<QQQIQI", MIB, MIB, 100, PROCESSES, 0, 0)
        self.wire.send(CONFIG, 0, limits + text("m") + struct.pack("<I", 0))
        self.configured = struct.unpack_from("<I", self.wire.expect(CONFIGURED))[0]
        self.renewed = struct.unpack_from("<I", self.wire.renew())[0]

    def exec(self, *argv: str, user: str = "", timeout_ms: int = 20_000, flags: int = 0) -> Ended:
        body = exec_body(list(argv), user=user, timeout_ms=timeout_ms, flags=flags)
        return self.wire.finish(self.wire.start(EXEC, body))

    def sh(self, script: str, user: str = "", timeout_ms: int = 20_000) -> str:
        return self.exec("sh", "-c", script, user=user, timeout_ms=timeout_ms).output[1].decode()

    def others(self) -> list[str]:
        """Every process but the agent, its leaders, and those that look."""
        look = 'for d in /proc/[0-9]*; do read -r line <$d/stat && echo "$line"; done; echo "me $$"'
        listing = self.sh(look)
        lines = [line.rpartition(")") for line in listing.splitlines()]
        me = listing.split()[-1]
        return [
            head for head, _, tail in lines[:-1]
            if not (head.endswith("(init") and tail.split()[1] in "01") and head.split()[0] != me
        ]  # fmt: skip

    def until_alone(self) -> None:
        deadline = time.monotonic() + 60
        while self.others() and time.monotonic() < deadline:
            pass
        assert self.others() == []

    def end_all(self) -> None:
        self.sh("kill -KILL -1")
        self.until_alone()

    def started(self, *argv: str, until: bytes) -> tuple[int, Ended]:
        op, ended = self.wire.start(EXEC, exec_body(list(argv))), Ended()
        while until not in ended.output[1]:
            self.wire.absorb(ended, *self.wire.frame()[::2])
        return op, ended


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """One for the module: each test must leave it usable, which is a property of its own."""
    with box_in(BIN / f"probe-{platform.machine()}") as made:
        yield made


@contextlib.contextmanager
def box_in(probe: Path) -> Iterator[Box]:
    """A container with a root of its own, whose agent runs `probe` when it is asked to probe."""
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryDirectory(prefix="box-", dir=public_folder()) as folder:
        root = Path(folder) / "root"
        root.mkdir()
        root.parent.chmod(0o755)
        programs = [
            shutil.copy(source, root.parent / name)
            for name, source in (("a", BIN / f"agent-{platform.machine()}"), ("p", probe))
        ]
        process = subprocess.Popen(
            [sys.executable, str(BOX), str(root), *map(str, programs)], stdin=theirs.fileno()
        )
        theirs.close()
        try:
            yield Box(ours)
        finally:
            ours.close()
            process.wait(timeout=60)


# ---- what it hides


@pytest.mark.promise("2.2")
def test_it_has_no_name_and_no_file(box: Box) -> None:
    """Neither its arguments, its environment nor a mount tell where it came from."""
    assert box.configured == 0
    assert box.sh("cat /proc/1/cmdline /proc/1/comm").replace("\0", "") == "initinit\n"
    named = "cat /proc/1/mountinfo /proc/1/environ | grep -e agent -e probe -e SECRET"
    assert box.sh(f"cd /; ls -d .a .p; {named}") == ""
    for user in ("", "nobody"):
        ended = box.exec("/no/such/program", "--no-such-probe", user=user, flags=PROBE)
        assert (ended.types[0], ended.outcome) == (STARTED, EXITED)
    assert box.sh("ls /proc/self/fd").split() == ["0", "1", "2", "3"]


@pytest.mark.promise("4.6")
def test_who_probes_is_whom_the_account_files_named_at_first(tmp_path: Path) -> None:
    """Commands follow rewritten account files; the probe program runs as whom they named first."""
    with box_in(Path("/usr/bin/id")) as box:
        before = box.exec("id", user="nobody", flags=PROBE).output[1]
        box.sh(
            "sed -i 's/^nobody:x:65534:65534/nobody:x:4321:4321/' /etc/passwd; echo 'g:x:77:nobody'"
            " >>/etc/group"
        )
        assert box.sh("id -u; id -G", user="nobody").split() == ["4321", "4321", "77"]
        after = box.exec("id", user="nobody", flags=PROBE).output[1]
    assert b"uid=65534" in before
    assert after.split()[0].startswith(b"uid=65534")
    assert b"4321" not in after
    assert b"77" not in after


# ---- trees

SCRIPTS = {
    "daemon": (
        "(setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000 & wait' </dev/null >/dev/null 2>&1 &);"
        " sleep 1000"
    ),
    "stopped": "sleep 1000 & kill -STOP $!; kill -STOP $$",
    "closed": "exec 0<&- 1>&- 2>&-; (sleep 1000 &); sleep 1000",
}
RENAMED = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("/proc/self/comm", "w").write("x) Z 1 1 (")
        time.sleep(1000)
    os._exit(0)
time.sleep(1000)
"""
HEADLESS = """
import ctypes, os, threading, time
if os.fork() == 0:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
time.sleep(1000)
"""
BOMB = """
import os
first = os.getpid()
while True:
    try:
        if os.fork() == 0 and os.getpid() % 3 == 0:
            os.setsid()
    except OSError:
        pass
"""


@pytest.mark.promise("4.2")
@pytest.mark.parametrize("user", ["", "nobody"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_timeout_ends_everything(box: Box, script: str, user: str) -> None:
    """Daemons, the stopped and the deaf are gone when the result comes, not just going."""
    ended = box.exec("sh", "-c", script, user=user, timeout_ms=200)
    assert (ended.outcome, ended.code, ended.flags) == (SIGNALED, 9, TIMED_OUT)
    assert box.others() == []


@pytest.mark.promise("4.2")
@pytest.mark.parametrize("program", [RENAMED, BOMB], ids=["renamed", "bomb"])
def test_a_timeout_ends_who_would_run_away(box: Box, program: str) -> None:
    """Neither a name that imitates the kernel's format nor fast forking hides anybody."""
    ended = box.exec("python3", "-c", program, user="nobody", timeout_ms=500)
    perhaps = PROCESSES_FULL if program is BOMB else 0  # where he got that far in his time
    assert (ended.outcome, ended.flags | perhaps) == (SIGNALED, TIMED_OUT | perhaps)
    assert box.others() == []
    assert box.sh("echo on", user="nobody") == "on\n"


def test_a_zombie_with_living_threads_is_ended_with_its_tree_alone(box: Box) -> None:
    """The kernel calls a process whose first thread has ended a zombie."""
    neighbour = box.wire.start(EXEC, exec_body(["sleep", "2"], timeout_ms=20_000))
    box.wire.expect(STARTED)
    ended = box.exec("python3", "-c", HEADLESS, timeout_ms=1000)
    assert (ended.outcome, ended.flags) == (SIGNALED, TIMED_OUT)
    assert box.wire.finish(neighbour).outcome == EXITED
    assert box.others() == []


def test_a_signal_takes_a_whole_tree(box: Box) -> None:
    """All that the operation started, daemons too; after a kill RESULT comes last."""
    op, _ = box.started("sh", "-c", "(setsid sleep 1000 &); echo up; sleep 1000", until=b"up")
    box.wire.send(SIGNAL, op, bytes([signal.SIGKILL, 1]))
    assert box.wire.finish(op).outcome == SIGNALED
    assert box.others() == []
    daemon = "trap 'echo got; : >/tmp/got; exit' USR1; echo up; while :; do sleep 0.02; done"
    waits = "until rm /tmp/got; do sleep 0.02; done; exit 5"
    op, _ = box.started(
        "sh", "-c", f'trap : USR1; (setsid sh -c "{daemon}" &); {waits}', until=b"up"
    )
    box.wire.send(SIGNAL, op, bytes([signal.SIGUSR1, 1]))
    ended = box.wire.finish(op)
    assert (bytes(ended.output[1]), ended.code) == (b"got\n", 5)


def test_processes_are_bounded_for_each_user(box: Box) -> None:
    """CONFIG's number is the most; the next command has room beside what was left running."""
    box.end_all()
    script = (
        "import os, time\nn = 0\ntry:\n while os.fork():\n  n += 1\n time.sleep(1000)\nexcept"
        " OSError: print(n, flush=True)"
    )
    op = box.wire.start(EXEC, exec_body(["python3", "-c", script], user="nobody"))
    ended = box.wire.finish(op)
    assert PROCESSES - 5 <= int(ended.output[1]) < PROCESSES
    assert len(box.others()) == int(ended.output[1])
    assert box.sh("sleep 0 & wait; echo room", user="nobody") == "room\n"
    box.end_all()


def test_whoever_kills_all_takes_no_later_command_along(box: Box) -> None:
    """Leaders that waited for work are hit too, and may still end when the next command comes."""
    for _ in range(8):
        together = {box.wire.start(EXEC, exec_body(["sh", "-c", "sleep 0.1"])) for _ in range(3)}
        box.wire.finish_all({op: Ended() for op in together})
        box.sh("kill -KILL -1")
        assert box.sh("echo next") == "next\n"


def test_a_stopped_leader_goes_on(box: Box) -> None:
    """Root may stop all it sees: ends are told, a timeout ends the tree, the next runs."""
    stop = "for d in /proc/[0-9]*; do read -r a b c p x <$d/stat; [ $p = 1 ] && kill -STOP $a; done"
    assert box.exec("sh", "-c", f"{stop}; exit 6", timeout_ms=0).code == 6
    ended = box.exec("sh", "-c", f"(setsid sleep 1000 &); {stop}; sleep 1000", timeout_ms=300)
    assert (ended.outcome, ended.flags) == (SIGNALED, TIMED_OUT)
    assert box.others() == []


# ---- its own root against it


@pytest.mark.promise("4.2")
def test_root_has_no_right_over_process_1(box: Box) -> None:
    """No signal, no ptrace, no limit, no memory, no descriptor: of the agent and of its leaders."""
    script = """
import ctypes, os, resource
libc, got = ctypes.CDLL(None, use_errno=True), []
def attempt(what, action):
    try:
        got.append(what) if action() is not False else None
    except OSError:
        pass
for pid in [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]:
    attempt(f"{pid} ptrace", lambda: libc.ptrace(16, pid, 0, 0) == 0)
    attempt(f"{pid} prlimit", lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1)))
    for name in ("mem", "environ", "maps", "auxv", "syscall", "stack"):
        attempt(f"{pid} {name}", lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
    for name in ("root", "cwd", "exe"):
        attempt(f"{pid} {name}", lambda: os.readlink(f"/proc/{pid}/{name}"))
    for fd in os.listdir(f"/proc/{pid}/fd"):
        attempt(f"{pid} fd {fd}", lambda: os.open(f"/proc/{pid}/fd/{fd}", os.O_PATH))
for signal in (1, 2, 9, 15, 19, 31):
    os.kill(1, signal)
print(got)
"""
    ended = box.exec("python3", "-c", script)
    assert (bytes(ended.output[1]), bytes(ended.output[2])) == (b"[]\n", b"")
    assert box.sh("grep State /proc/1/status").split()[1] in {"R", "S"}  # neither stopped nor ended


def test_capabilities_and_filter(box: Box) -> None:
    """Root has a container's usual ones without device nodes, others none."""

    def sets(pid: str, user: str) -> dict[str, int]:
        lines = box.sh(f"grep ^Cap /proc/{pid}/status", user=user).splitlines()
        return {line[3:6]: int(line.split()[1], 16) for line in lines}

    held = dict.fromkeys(("Prm", "Eff", "Bnd"), ROOT_CAPABILITIES)
    assert sets("self", "") == {**held, "Inh": 0, "Amb": 0}
    assert set(sets("self", "nobody").values()) == {0}
    assert sets("1", "")["Prm"] & CAP_SYS_ADMIN != 0
    leader = sets("$PPID", "")["Prm"]
    assert leader & CAP_SYS_ADMIN == 0
    assert leader & ~ROOT_CAPABILITIES != 0
    status = box.sh("grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status").split()
    assert status == ["NoNewPrivs:", "1", "Seccomp:", "2"]
    gain = "unshare -U true 2>&1; hostname other 2>&1; mount -t tmpfs x /tmp 2>&1"
    assert "not permitted" in box.sh(gain)
