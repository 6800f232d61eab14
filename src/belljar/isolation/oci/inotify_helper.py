"""A program of its own: sets inotify marks from within a cell's user namespace, and passes the
queue back. An ordinary user can't mark a file of his cell that its root alone may read.

Only this process enters the namespace, and no other one: nobody in the cell can see it.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from belljar.isolation.oci.marks import Marked, mark_files

_CLONE_NEWUSER: Final = 0x1000_0000
_MAX_ANSWER: Final = 1 << 20
_TIMEOUT_S: Final = 20.0
_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from belljar.isolation.oci.inotify_helper import main; main()"
)


def mark_from_within(agent: int, paths: Sequence[str]) -> Marked:
    """Mark files of the container of that process, as its root may. Blocking. Raises `OSError`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.settimeout(_TIMEOUT_S)
        argv = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            _BOOT,
            json.dumps(sys.path),
            str(theirs.fileno()),
            str(agent),
        ]
        with subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={},
        ) as helper:
            theirs.close()
            try:
                helper.communicate(json.dumps(list(paths)).encode(), timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                helper.kill()
                raise OSError(None, "its helper did not end in time") from None
        message, fds, _, _ = socket.recv_fds(ours, _MAX_ANSWER, 1, socket.MSG_CMSG_CLOEXEC)
    answer: dict[str, Any] = json.loads(message or b'{"error": "its helper gave no answer"}')
    if "error" in answer or not fds:
        for fd in fds:
            os.close(fd)
        raise OSError(answer.get("errno"), str(answer.get("error", "no queue came")))
    files = {(int(watch), 0): path for watch, path in answer["files"]}
    return Marked(mechanism="inotify", fd=fds[0], files=files, missing=answer["missing"])


def main() -> None:
    """In the helper: descriptor and pid are its arguments, the paths its input."""
    channel = socket.socket(fileno=int(sys.argv[2]))
    paths = json.load(sys.stdin)
    try:
        agent = int(sys.argv[3])
        with Path(f"/proc/{agent}/ns/user").open("rb") as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace.fileno(), _CLONE_NEWUSER) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        root = os.open(f"/proc/{agent}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        marked = mark_files("inotify", root, paths)
    except OSError as error:
        answer = {"errno": error.errno, "error": error.strerror or str(error)}
        channel.send(json.dumps(answer).encode())
        return
    files = [[watch, path] for (watch, _), path in marked.files.items()]
    found = json.dumps({"files": files, "missing": dict(marked.missing)}).encode()
    socket.send_fds(channel, [found], [marked.fd])
