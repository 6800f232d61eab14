"""Runs a command in namespaces with nothing but loopback, and without sockets to a hypervisor.

    python -m tests.integration.gapped without-vsock COMMAND...

The test's machine may itself be a virtual one with vsock, which no namespace hides: a filter does.
It refuses such sockets, as a kernel without them.

    python -m tests.integration.gapped belljar WORDS... [then WORDS...]...

Runs Belljar as on a machine whose first PID namespace is this one: its own processes are all there are.
Of several commands each one's exit code is a line of standard error; those of `ip` are others' tool.
"""

from __future__ import annotations

import errno
import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from belljar import airgap
from belljar.cli.main import run as belljar
from belljar.network.syscalls import install_filter

_SOCKET = {"x86_64": 41, "aarch64": 198}
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000


def gapped(*command: str) -> list[str]:
    """The command line that runs a command so; `ip` brings loopback up first."""
    apart = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
    up = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    without = [sys.executable, "-m", "tests.integration.gapped", "without-vsock"]
    return [*apart, *up, *without, *command]


def whole_machine(*words: str) -> list[str]:
    """The command line of Belljar that takes its PID namespace for the machine's first."""
    return [sys.executable, "-m", "tests.integration.gapped", "belljar", *words]


def all_of(words: Sequence[str]) -> int:
    """Run one command after the other; the last one's exit code."""
    code = 0
    for _, command in groupby(words, lambda word: word != "then"):
        match [*command]:
            case ["then", *_]:
                print(f"exit code {code}", file=sys.stderr)
            case ["ip", *rest]:
                subprocess.run(["ip", *rest], check=True)
            case own:
                code = belljar(own)
    return code


def main(how: str, *command: str) -> None:
    if how == "belljar":
        airgap.FIRST_PID_NAMESPACE = Path("/proc/self/ns/pid").stat().st_ino  # type: ignore[misc]
        sys.exit(all_of(command))
    steps = (
        (_LOAD, 0, 0, 0),
        (_EQUAL, 0, 3, _SOCKET[platform.machine()]),
        (_LOAD, 0, 0, 16),
        (_EQUAL, 0, 1, socket.AF_VSOCK),
        (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    )
    install_filter(b"".join(struct.pack("=HBBI", *step) for step in steps))
    os.execvp(command[0], list(command))  # noqa: S606


if __name__ == "__main__":
    main(*sys.argv[1:])
