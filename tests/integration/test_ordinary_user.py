"""Belljar run by an ordinary user, end to end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.as_user import UsersBelljar, own, started
from tests.integration.crashes import OWNER, choose, kill_at, owners_of, rehearse
from tests.integration.processes import capabilities, status_of, vmm_of
from tests.machine import PATIENCE_S

from belljar.plan.jail import INNER_ID
from belljar.process import NAMESPACES, namespaces_of

pytestmark = [pytest.mark.vm, pytest.mark.root]


@contextmanager
def running(user: UsersBelljar) -> Iterator[int]:
    """A cell in which a command has started: the pid of its VMM."""
    process = started(user)
    try:
        yield vmm_of(process.pid)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)


def limits_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): line[47:68].strip() for line in lines}


# In the VMM's user and mount namespaces, as its uid and without its filters: what a taken-over VMM
# could do if those had failed to hold.
IN_ITS_PLACE = """
import ctypes, json, os, sys
pid, uid, files = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
libc = ctypes.CDLL(None, use_errno=True)
def must(result):
    if result:
        raise OSError(ctypes.get_errno(), "not prepared")
os.setgroups([])
namespaces = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in ("user", "mnt")] if pid else []
for fd in namespaces:
    must(libc.setns(fd, 0))
os.chdir("/")
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
must(libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()))
def ends(attack, *words):
    try:
        attack(*words)
    except OSError as error:
        return error.errno
    return 0
def remount(path):
    if libc.mount(None, path.encode(), None, 0x1020, None):
        raise OSError(ctypes.get_errno(), "mount")
found = {}
for path in files:
    found[path] = {
        "read": ends(os.open, path, os.O_RDONLY),
        "chmod": ends(os.chmod, path, 0o600),
        "write": ends(os.open, path, os.O_RDWR),
        "truncate": ends(os.truncate, path, 0),
        "unlink": ends(os.unlink, path),
        "remount": ends(remount, path),
        "create": ends(os.open, path + ".new", os.O_CREAT | os.O_WRONLY),
    }
found["outside"] = ends(os.listdir, "/etc")
print(json.dumps(found))
"""


def attack(pid: int, uid: int, *files: str) -> dict[str, Any]:
    """Try to alter the files as that uid, in a process's place (0: here); errno by attack."""
    argv = [sys.executable, "-c", IN_ITS_PLACE, str(pid), str(uid), *files]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr.decode()
    return dict(json.loads(done.stdout))


@pytest.mark.promise("1.3", "8.4")
def test_what_a_vmm_of_the_users_may(user: UsersBelljar) -> None:
    """The plan's limits, no right; in its place nothing can be written, outside it can."""
    jail = user.planned("high")["jail"]
    with running(user) as vmm:
        limits, status, namespaces = limits_of(vmm), status_of(vmm), namespaces_of(vmm)
        lines = Path(f"/proc/{vmm}/mountinfo").read_text().splitlines()
        targets = {line.split(" ")[4]: set(line.split(" ")[5].split(",")) for line in lines}
        inside = attack(vmm, INNER_ID, *(target for target in targets if target != "/"))
    assert limits["Max address space"] == str(jail["address_space_bytes"])
    assert limits["Max processes"] == str(jail["processes"])
    of_files = ("Max core file size", "Max file size", "Max open files")
    assert [limits[name] for name in of_files] == ["1", "0", "256"]
    assert int(status["VmSize"].split()[0]) << 10 < jail["address_space_bytes"]
    assert int(status["Threads"]) <= jail["processes"]
    assert status["Uid"].split() == [str(user.uid)] * 4
    assert capabilities(status) == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert int(status["Seccomp_filters"]) >= 2
    assert set(namespaces) == set(NAMESPACES)
    assert not set(namespaces.values()) & set(namespaces_of(os.getpid()).values())
    assert len(targets) == 3, lines
    assert all({"ro", "nosuid", "nodev"} <= options for options in targets.values())
    assert inside.pop("outside") != 0
    for path, errnos in inside.items():
        assert errnos.pop("read") == 0, path
        assert 0 not in errnos.values(), (path, errnos)
    mine = user.home.parent / "mine" / "file"
    mine.parent.mkdir()
    mine.write_text("precious")
    mine.chmod(0o444)
    own(mine.parent, user.uid, user.gid)
    outside = attack(0, user.uid, str(mine))[str(mine)]
    shutil.rmtree(mine.parent)
    assert [name for name, errno in outside.items() if errno] == ["remount"]


SITES_OF_PHASE = {"create": 1, "destroy": 1}


@pytest.mark.promise("6.2")
@pytest.mark.slow
def test_killed_anywhere_nothing_of_the_users_is_left(user: UsersBelljar) -> None:
    """SIGKILL at two places: a reaping removes one cell's rest, and leaves the other alone."""
    program = str(shutil.copy(OWNER, user.home.parent.parent))
    with owners_of(
        user.home, "microvm", (user.python, program), user.environment(), ids=(user.uid, user.gid)
    ) as owners:
        sites = choose(rehearse(owners, lives=["destroy"], times=1), SITES_OF_PHASE)
        assert len(sites) == sum(SITES_OF_PHASE.values())
        _, faults = kill_at(owners, sites)
    assert faults == []
