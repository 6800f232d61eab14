"""The range supervisor's filter in force."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
from tests.machine import PATIENCE_S

_SHUT_IN = """
import os, resource, subprocess, socket, sys
from belljar.network.supervisor import netlink
from belljar.network import syscalls
from belljar.network.syscalls import supervisor_filter
syscalls.limit_resources({resource.RLIMIT_AS: syscalls.mapped_bytes() + (64 << 20)})
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
        "syscalls.LIBC.setns(0, 0)",
        "os.setresuid(0, 0, 0)",
        "os.chroot('/')",
    ],
)
def test_a_forbidden_call_ends_it(call: str) -> None:
    """At once, by SIGSYS, whatever it would have come to."""
    done = shut_in(call + "\nprint('alive')")
    assert (done.returncode, done.stdout) == (-signal.SIGSYS, "in\n")


REFUSED = (
    "open('/tmp/x', 'w')", "os.open('/dev/null', os.O_RDWR)", "socket.socket(socket.AF_UNIX)",
    "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "os.kill(os.getpid(), 15)",
    "os.unlink('/nowhere')", "os.rename('/nowhere', '/elsewhere')",
)  # fmt: skip


@pytest.mark.promise("2.6")
def test_its_work_goes_on() -> None:
    """What it does not need is refused by EPERM."""
    nft = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin") or sys.executable
    tries = "".join(
        f"try:\n    {call}\nexcept PermissionError:\n    print(0)\n" for call in REFUSED
    )
    done = shut_in(
        tries + "netlink.list_links(netlink.open_socket())\n"
        "open('/proc/sys/net/ipv4/ip_forward').read()\n"
        f"subprocess.run([{nft!r}, '--version'], stdin=0, stdout=subprocess.PIPE, check=True)\n"
        "print('done', flush=True)\n"
        "bytearray(256 << 20)"
    )
    assert done.stdout.split() == ["in", *["0"] * len(REFUSED), "done"], done.stderr
    assert "MemoryError" in done.stderr
