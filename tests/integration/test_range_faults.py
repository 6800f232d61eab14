"""Faults of a range as a user meets them: what, where and what to do; the documented exit code;
nothing is left; what is on record verifies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration import faults
from tests.integration.faults import FETCH, PATIENCE_S, Host, hide, mounted
from tests.integration.remains import below

pytestmark = [pytest.mark.vm, pytest.mark.root]
host, policy = faults.host, faults.policy
_HALF = (
    "import socket, time\n"
    "half = socket.create_connection(('shop.example', 80))\n"
    "half.sendall(b'GET / HTTP/1.1\\r\\nHost: shop')\n"
    "print('half', flush=True)\n"
    "time.sleep(600)\n"
)
"""A guest that has sent half a request, says so, and waits."""


def ran_by(host: Host, *argv: str) -> subprocess.CompletedProcess[str]:
    """A program of this interpreter's on the host's store."""
    return subprocess.run(
        argv,
        env=host.belljar.environment(TMPDIR=str(host.scratch)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


# ---- what the host lacks


@pytest.mark.promise("1.3")
def test_no_nft(host: Host, policy: Callable[..., str]) -> None:
    """Named, with the package; before anything is made."""
    assert "install nftables" in host.refusal(policy(), mounts=hide("nft"), command=FETCH)


@pytest.mark.promise("1.3")
@pytest.mark.parametrize("tier", ["container", "microvm"])
@pytest.mark.thorough_in("container")
def test_what_a_range_does_not_need(tier: str, host: Host, policy: Callable[..., str]) -> None:
    """Links are made without the program `ip`, a virtual machine's frames go through a socket pair,
    and a range listens in a namespace of its own: on port 80 and 53 whoever has them here."""
    with contextlib.ExitStack() as stack:
        for port in (80, 53):
            taken = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # taken already: as good
                taken.bind(("0.0.0.0", port))  # noqa: S104 - so that a range would meet it
                taken.listen()
        hidden = [*hide("ip"), "mount -t tmpfs none /dev/net"]
        ran = host.run("exec", policy(), "--tier", tier, "--", *FETCH, mounts=hidden)
    assert (ran.returncode, ran.stdout) == (0, b"hello"), ran.stderr
    host.check(host.belljar.runs()[-1])


# Root of a user namespace that has every id; no network namespace may be made in it.
_LIMITED = """\
import ctypes, os, subprocess, sys
argv = sys.argv[1:]
parent_read, child_write = os.pipe()
child_read, parent_write = os.pipe()
pid = os.fork()
if pid:
    os.read(parent_read, 1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write("0 0 4294967295\\n")
    os.write(parent_write, b"g")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000):
    raise OSError(ctypes.get_errno(), "unshare")
os.write(child_write, b"r")
os.read(child_read, 1)
if libc.unshare(0x00020000 | 0x40000000):
    raise OSError(ctypes.get_errno(), "unshare")
with open("/proc/sys/user/max_net_namespaces", "w") as file:
    file.write("0")
sys.exit(subprocess.run(argv).returncode)
"""


@pytest.mark.promise("1.3")
def test_network_namespaces_are_forbidden(host: Host, policy: Callable[..., str]) -> None:
    """The switch, and the command that puts it; before anything is made."""
    before = host.belljar.runs()
    command = [sys.executable, "-m", "belljar", "exec", policy(), "--", *FETCH]
    ran = ran_by(host, sys.executable, "-c", _LIMITED, *command)
    assert ran.returncode == 3, ran.stderr
    assert "as root: sysctl -w user.max_net_namespaces=" in ran.stderr
    host.told_and_gone(ran.stderr, before)


_HIDING = """\
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ("uvicorn", "wsproto") else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""


@pytest.mark.promise("1.3")
def test_the_extra_is_not_installed(host: Host, policy: Callable[..., str], tmp_path: Path) -> None:
    """The modules by name, and what installs them; `doctor` has a line for it."""
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks/sitecustomize.py").write_text(_HIDING)
    path = f"{tmp_path / 'hooks'}:{os.environ.get('PYTHONPATH', '')}"
    said = host.refusal(policy(), command=FETCH, env={"PYTHONPATH": path})
    assert "pip install 'belljar-sandbox[network,stand-ins]'" in said
    doctor = host.run("doctor", "--no-prove", PYTHONPATH=path).stdout.decode()
    assert "the Python modules uvicorn, wsproto" in doctor


_MANY = """
import anyio, sys
from contextlib import AsyncExitStack
from belljar.cell.open import open_range
async def main():
    async with AsyncExitStack() as stack:
        for _ in range(int(sys.argv[2])):
            await stack.enter_async_context(open_range(sys.argv[1]))
        print("all stand", flush=True)
anyio.run(main)
"""


@pytest.mark.promise("1.3")
def test_few_open_files(host: Host, policy: Callable[..., str]) -> None:
    """A soft limit stands in nobody's way, neither a cell's nor a range's, whose gateway may have
    ten thousand connections; a hard one that is too low is the host's fault, on the command line
    and in the library, and nothing is left of what had begun."""
    path = policy()

    def limited(limit: str, *argv: str) -> subprocess.CompletedProcess[str]:
        shell = ["/bin/sh", "-c", f'ulimit {limit}; exec "$@"', "sh", sys.executable]
        return ran_by(host, *shell, *argv)

    command = ("-m", "belljar", "exec")
    assert limited("-Sn 16", *command, "low", "--", "echo", "hello").stdout == "hello\n"
    asked = limited("-Sn 16", *command, path, "--", *FETCH)
    assert (asked.stdout, asked.stderr) == ("hello", "")
    for limit, refused in (("-n 16", "low"), ("-n 300", path)):
        told = limited(limit, *command, refused, "--", "true")
        assert told.returncode == 3, told.stderr
        assert "Traceback" not in told.stderr
    many = limited("-n 600; ulimit -Sn 96", "-c", _MANY, path, "6")
    assert many.returncode == 1
    assert "belljar.errors.HostError: this process has no open files left" in many.stderr
    assert host.belljar("reap").returncode == 0
    assert host.belljar.leftovers() == []


# ---- what the author got wrong


@pytest.mark.parametrize(
    ("recording", "said"),
    [("own/a.har", "own/a.har: Expecting value: line 2"), ("../a.har", "without `..`")],
)
def test_files_that_will_not_do(
    recording: str, said: str, host: Host, policy: Callable[..., str]
) -> None:
    """Refused with the policy's line and the file's, before anything is made."""
    stand_in = f"    site: {{kind: har, names: [a.example], recording: {recording}}}\n"
    path, before = policy(stand_in, a_har='{"log":\n  ]'), host.belljar.runs()
    ran = host.run("exec", path, "--", *FETCH)
    assert not {"range.opening", "cell.planned"} & {*host.kinds(before)}
    assert ran.returncode == 4, ran.stderr
    assert "p.yaml:6:" in ran.stderr.decode()
    assert said in ran.stderr.decode()


def test_a_target_that_does_not_get_healthy(host: Host, policy: Callable[..., str]) -> None:
    """How often it was tried, what it said last, and where to fix it."""
    target = (
        "    shop: {kind: cell, names: [a.example], ports: [80], user: root, command: [sh, -c, 'echo"
        " words of its own; exit 3'], health: {command: ['false'], retries: 2, interval: 100ms}}\n"
    )
    before = host.belljar.runs()
    found = host.refusal(policy(target), code=5, command=FETCH)
    assert host.kinds(before).count("cell.planned") == 1  # nothing ran in the sample's cell
    assert "network.stand_ins.shop (cell c-" in found
    ends = ("did not become healthy in 2 tries", "its program ended with status 3")
    assert any(end in found for end in ends)
    assert "its output ends with: words of its own" in found


# ---- what dies


def test_a_part_is_killed(host: Host, policy: Callable[..., str]) -> None:
    """SIGKILL to its gateway while a request is half sent: which one died is said, exit 5."""
    before = host.belljar.runs()
    process = host.start("exec", policy(), "--", "python3", "-c", _HALF)
    assert process.stdout is not None
    assert process.stdout.readline() == b"half\n"
    (entry,) = (host.belljar.home / "journal").glob("r-*.json")
    _supervisor, gateway = json.loads(entry.read_text())["processes"]
    os.kill(gateway["pid"], signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE_S)
    said = err.decode()
    assert process.returncode == 5, said
    assert "the range's gateway ended (SIGKILL)" in said
    assert "belljar-sandbox[network,stand-ins]" not in said
    host.told_and_gone(said, before)


# ---- whose disk is full


def test_a_disk_that_is_full_at_the_start(host: Host, policy: Callable[..., str]) -> None:
    """Whatever file of the run the disk has no room for, it is said which, and what helps."""
    for inodes in (5, 11):  # before the range, and in it
        with mounted(host.belljar.home / "runs", f"mode=755,size=4m,nr_inodes={inodes}"):
            ran = host.run("exec", policy(), "--", *FETCH)
            said = ran.stderr.decode()
            assert ran.returncode in (3, 5), said
            assert "Traceback" not in said
            assert "No space left on device" in said
            assert "\n  hint: " in said
            assert (host.belljar.leftovers(), list(below(os.getpid()))) == ([], [])
            verified = host.belljar("ledger", "verify", str(host.belljar.runs()[-1]))
            assert verified.returncode == 0, verified.stdout + verified.stderr
