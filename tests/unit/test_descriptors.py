"""The limit of open files: raised, and its exhaustion told from every other error."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from belljar.descriptors import exhaustion, exhaustion_as_host_error
from belljar.errors import CellError, HostError
from belljar.isolation.cgroup import processes_in
from belljar.process import identify, identify_group


@pytest.mark.promise("1.3")
def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    """Whatever a shell has set."""
    program = (
        "import resource; from belljar.descriptors import raise_soft_limit;"
        " raise_soft_limit();print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = subprocess.run(
        ["/bin/sh", "-c", f'ulimit -Sn 100; exec "{sys.executable}" -c "{program}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"({hard}, {hard})"


def test_only_a_lack_of_descriptors_is_the_hosts_fault() -> None:
    """Also when it is the cause of another error; nothing else is."""
    for number in (errno.EMFILE, errno.ENFILE):
        lack = OSError(number, os.strerror(number))
        caused = CellError("it could not be made")
        caused.__cause__ = lack
        assert isinstance(exhaustion(lack), HostError)
        assert isinstance(exhaustion(caused), HostError)
    for other in (OSError(errno.EACCES, "no"), CellError("no"), ValueError()):
        assert exhaustion(other) is None
    with pytest.raises(FileNotFoundError), exhaustion_as_host_error():
        raise FileNotFoundError(errno.ENOENT, "no")
    with pytest.raises(HostError), exhaustion_as_host_error():
        raise OSError(errno.EMFILE, "many")


@pytest.mark.promise("6.1")
def test_without_descriptors_no_process_counts_as_gone(tmp_path: Path) -> None:
    """A proof of destruction, and a look whether an owner lives, must fail then."""
    (tmp_path / "cgroup.procs").write_text("1\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(64, soft), hard))
        with contextlib.suppress(OSError):
            held.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(64))
        for look in (identify, identify_group):
            with pytest.raises(OSError, match="Too many open files"):
                look(os.getpid())
        with pytest.raises(OSError, match="Too many open files"):
            processes_in(tmp_path)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert identify(os.getpid()) is not None
