"""The range supervisor's filter in force: what it does goes on, and a call that only a compromised
process makes ends it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
from tests.machine import PATIENCE_S

_SHUT_IN = """
import os, subprocess, socket, sys
from belljar.network.supervisor import netlink
from belljar.network import syscalls
from belljar.network.confine import limit_address_space
from belljar.network.seccomp import supervisor_filter
limit_address_space(64 << 20)
syscalls.no_new_privileges()
syscalls.install_filter(supervisor_filter(may_enter=False))
print("in", flush=True)
"""


def shut_in(code: str) -> subprocess.CompletedProcess[str]:
    """What becomes of a process that runs this within the filter."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", _SHUT_IN + code]
    return subprocess.run(
        words, capture_output=True, text=True, env=env, timeout=PATIENCE_S, check=False
    )


@pytest.mark.promise("2.6")
@pytest.mark.parametrize(
    "call",
    [
        "syscalls.unshare(syscalls.CLONE_NEWNS)",
        "syscalls.mount('none', '/tmp', 'tmpfs', 0)",
        "syscalls.enter(0, 0)",
        "os.setresuid(0, 0, 0)",
        "os.chroot('/')",
    ],
)
def test_a_forbidden_call_ends_it(call: str) -> None:
    """At once, by SIGSYS, whatever it would have come to."""
    done = shut_in(call + "\nprint('alive')")
    assert (done.returncode, done.stdout) == (-signal.SIGSYS, "in\n")


@pytest.mark.promise("2.6")
@pytest.mark.parametrize(
    "call",
    [
        "open('/tmp/x', 'w')",
        "os.open('/dev/null', os.O_RDWR)",
        "socket.socket(socket.AF_UNIX)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "os.kill(os.getpid(), 15)",
        "os.unlink('/nowhere')",
        "os.rename('/nowhere', '/elsewhere')",
    ],
)
def test_what_it_does_not_need_is_refused(call: str) -> None:
    """By EPERM: it, and a library that merely asks, goes on."""
    done = shut_in(f"try:\n    {call}\nexcept PermissionError:\n    print('refused')")
    assert done.stdout == "in\nrefused\n", done.stderr


@pytest.mark.promise("2.6")
def test_its_work_goes_on() -> None:
    """Asking the kernel by netlink, reading settings, and running nft."""
    nft = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin") or sys.executable
    done = shut_in(
        "netlink.list_links(netlink.open_socket())\n"
        "open('/proc/sys/net/ipv4/ip_forward').read()\n"
        f"subprocess.run([{nft!r}, '--version'], stdin=0, stdout=subprocess.PIPE, check=True)\n"
        "print('done')"
    )
    assert done.stdout == "in\ndone\n", done.stderr


@pytest.mark.promise("2.6")
def test_its_memory_is_bounded() -> None:
    """Beyond its limit there is none: it ends."""
    done = shut_in("bytearray(256 << 20)")
    assert done.stdout == "in\n"
    assert "MemoryError" in done.stderr
