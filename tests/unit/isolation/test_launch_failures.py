"""What a person is told when a jail does not come up."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import Mock

import pytest

from belljar.errors import CellError, HostError
from belljar.isolation import jail as jails
from belljar.isolation.jail import Jail, start_error
from belljar.process import ProcessId, close_all


@pytest.mark.parametrize(
    ("step", "number", "is_hosts"),
    [
        ("3 namespaces", 1, True),
        ("10 files", 2, False),
        ("22 mounts", 95, True),
        ("22 mounts", 2, False),
    ],
)
def test_a_step_that_failed(step: str, number: int, is_hosts: bool) -> None:
    """What the host forbids or lacks is a `HostError`, all else the cell's."""
    line = f"failed step {step} errno {number}: it failed: /a\x1b[2J"
    error = start_error("c-0123456789ab", f"child 7\n{line}\n", "")
    assert type(error) is (HostError if is_hosts else CellError)
    assert error.hint
    assert f"step {step.replace(' ', ', ', 1)}, failed: it failed: /a" in error.what
    assert "\x1b" not in error.what


@contextmanager
def jailed(first_fd: int = 3) -> Iterator[tuple[Jail, int]]:
    """The jail of a program that has ended, and the pipe on which its supervisor reports."""
    status, told = os.pipe()
    high = fcntl.fcntl(status, fcntl.F_DUPFD_CLOEXEC, first_fd)
    os.close(status)
    fds = [high, os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)]
    with subprocess.Popen(["true"]) as supervisor:
        jail = Jail("c-0123456789ab", supervisor, fds[1], fds[0], fds[2])
        yield jail, told
    close_all((jail._status, jail._diagnosis, fds[1], told))


def test_an_end_is_read_from_any_descriptor() -> None:
    """Also where `select` takes none: a fleet's owner has thousands."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        with jailed(1500) as (jail, told):
            threading.Timer(0.05, os.write, (told, b"ended signal 9 cause itself\n")).start()
            end = jail.final_status(60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert end is not None
    assert (end.signal, end.cause) == (9, "itself")


@pytest.mark.anyio
async def test_an_end_that_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a descriptor left the jail is closed all the same."""
    none_left = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    with jailed() as (jail, _told):
        jail.child, jail._lifeline = ProcessId(pid=1 << 22, start_ticks=1), None
        monkeypatch.setattr(os, "pidfd_open", none_left)
        monkeypatch.setattr(jails, "is_alive", none_left)
        await jail.end()
        assert (jail._status, jail._diagnosis) == (None, None)
