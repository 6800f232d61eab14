"""Runs a command in namespaces with nothing but loopback, and without sockets to a hypervisor.

    python -m tests.integration.gapped COMMAND...

The test's machine may itself be a virtual one with vsock, which no namespace hides: a filter does.
"""

from __future__ import annotations

import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Sequence

from belljar.network.syscalls import install_filter

_SOCKET = {"x86_64": 41, "aarch64": 198}
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000


def without_vsock() -> bytes:
    """A filter under which no socket of the family can be made."""
    steps = (
        (_LOAD, 0, 0, 0),
        (_EQUAL, 0, 3, _SOCKET[platform.machine()]),
        (_LOAD, 0, 0, 16),
        (_EQUAL, 0, 1, socket.AF_VSOCK),
        (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    )
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def gapped(*command: str) -> list[str]:
    """The command line that runs a command so; `ip` brings loopback up first."""
    apart = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
    up = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    return [*apart, *up, sys.executable, "-m", "tests.integration.gapped", *command]


def main(command: Sequence[str]) -> None:
    """Never returns."""
    install_filter(without_vsock())
    os.execvp(command[0], list(command))  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
