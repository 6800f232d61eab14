"""Belljar run by an ordinary user, end to end: the same cells, the same record, the same clean end,
and no word about what only root could enforce."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.as_user import (
    UsersBelljar,
    another_store,
    kinds,
    leaves_nothing,
    own,
    started,
)
from tests.integration.crashes import OWNER, choose, kill_at, owners_of, rehearse
from tests.integration.processes import capabilities, read_until, status_of, vmm_of
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
    """A process's hard limits, by name."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): line[47:68].strip() for line in lines}


def test_doctor_says_what_this_user_can_do(user: UsersBelljar) -> None:
    """Ready, not as root; groups that are not handed to this user are a note with a hint."""
    shown = user("doctor", "--json")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    found = json.loads(shown.stdout)
    facts, checks = found["facts"], {check["what"]: check for check in found["checks"]}
    assert found["ready"]
    assert (facts["is_root"], facts["uid"], facts["home"]) == (False, user.uid, str(user.home))
    assert facts["userns"]["available"]
    assert checks["store"]["state"] == "ok"
    assert bool(facts["cgroup"]["reason"]) == (len(facts["cgroup"]["parents"]) < 3)
    assert (checks["control groups"]["state"] == "note") == bool(facts["cgroup"]["reason"])
    assert bool(checks["control groups"]["hint"]) == bool(facts["cgroup"]["reason"])
    assert facts["kvm"]["state"] == "proven" or facts["kvm"]["reason"]
    said = user.run([user.python, "-c", "import belljar; print(belljar.__file__)"]).stdout.decode()
    assert Path(said.strip()).is_relative_to(user.libraries), "these tests are of the user's copy"


def test_the_plan_says_what_holds_instead_of_control_groups(user: UsersBelljar) -> None:
    """Each bound names what enforces it here; without control groups that is the address space,
    never silence; the jail's uid is not claimed to be nobody's."""
    if json.loads(user("doctor", "--json", "--no-prove").stdout)["facts"]["cgroup"]["parents"]:
        pytest.skip("control groups are delegated to ordinary users here")
    plan = user.planned("high")
    bounds = dict(each.split(": ", 1) for each in plan["blast_radius"]["consume"])
    assert plan["memory_by_rlimit"] is True
    assert plan["jail"]["cpu_quota_percent"] is None
    assert "RLIMIT_AS" in bounds["memory"]
    assert "if the VMM itself is compromised" in bounds["memory"]
    assert bounds["threads on this host"].endswith("RLIMIT_NPROC, no control group")
    assert "no control group" in bounds["processors"]
    assert any("control groups can be used" in warning for warning in plan["warnings"])
    jail = next(layer for layer in plan["layers"] if layer["name"] == "jail")
    assert "this user's own uid" in jail["what"]
    assert b"no control group" in user("plan", "high").stdout


@pytest.mark.promise("8.4")
def test_a_template_in_a_store_of_his_own(user: UsersBelljar) -> None:
    """It is made, by him; of it a clone, a command, a clean end."""
    with another_store(user) as store, leaves_nothing(replace(user, home=store)):
        owner = replace(user, home=store)
        found = json.loads(owner("exec", "--json", "--", "id", "-un").stdout)
        assert (found["returncode"], found["stdout"], found["destroyed"]) == (0, "user\n", True)
        assert found["layers"] == ["jail", "microvm", "container"]
        (template,) = (store / "templates").glob("*/template.json")
        assert template.stat().st_uid == user.uid
        wanted = {"template.built", "cell.cloned", "cell.renewed", "cell.destroyed"}
        assert wanted <= set(kinds(owner))


def test_a_cell_is_probed(user: UsersBelljar) -> None:
    """Every probe, with all of the host's witnesses looked at: contained."""
    assert sum(finding["seen_by"] == "host" for finding in user.probed()) >= 18


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
    """Without control groups its address space, threads, files and locked memory have the plan's
    limits; no capability, no new privilege, the jail's filter and QEMU's. Image and template belong
    to the very uid that it has; still, in its place nothing can be written. Outside, the same
    attack succeeds."""
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


FORKS = """
import anyio, json
from belljar import open_cell

async def main():
    async with open_cell({"belljar": 1, "risk": "high", "snapshots": True}) as cell:
        await cell.write_file("/tmp/note", "then")
        snapshot = await cell.snapshot()
        await cell.write_file("/tmp/note", "later")
        async with snapshot.fork() as fork:
            note = await fork.read_file("/tmp/note")
        mode = snapshot.saved.directory.stat().st_mode
    print(json.dumps([note.decode(), mode & 0o77, cell.destruction.clean]))

anyio.run(main)
"""


def test_a_fork_of_a_cell(user: UsersBelljar) -> None:
    """A machine is saved and forked with the user's rights; nobody else may read what is saved."""
    done = user.run([user.python, "-c", FORKS])
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == ["then", 0, True]


def test_a_shell_on_a_terminal_without_a_size(user: UsersBelljar) -> None:
    """`belljar shell` on a terminal that says 0 × 0, as a fresh one does: a login of the image's
    user; its exit code is the shell's. Meanwhile its cell can be attached to, and a command there
    that ends while it is still sent input is heard to its end."""
    ours, theirs = os.openpty()
    process = user.start_on(user.argv("shell"), theirs)
    os.close(theirs)
    try:
        # Before its prompt, the terminal's change to raw mode would throw away what is typed.
        begun = read_until(ours, b"$ ")
        (cell,) = re.findall(rb"cell (c-[0-9a-f]+) ", begun)
        attached = user("attach", cell.decode(), "--", "sh", "-c", "id -un; exit 5")
        assert (attached.returncode, attached.stdout.split()) == (5, [b"user"]), attached
        counts = ("attach", cell.decode(), "--", "sh", "-c", "seq 20000; exit 5")
        flooded = user(*counts, input=b"y\n" * 500_000)
        assert (flooded.returncode, b"\n20000\r" in flooded.stdout) == (5, True), flooded.stderr
        os.write(ours, b"stty size; id -un; exit 3\n")
        seen = read_until(ours, b"recorded in")
        assert process.wait(timeout=PATIENCE_S) == 3, seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"24 80" in seen
    assert b"user\r\n" in seen


SITES_OF_PHASE = {"create": 2, "revert": 1, "fork": 1, "end": 1}


@pytest.mark.promise("6.2")
@pytest.mark.slow
def test_killed_anywhere_nothing_of_the_users_is_left(user: UsersBelljar) -> None:
    """SIGKILL at five places: a reaping removes one cell's rest, and leaves the other alone."""
    program = str(shutil.copy(OWNER, user.home.parent.parent))
    with owners_of(
        user.home, "microvm", (user.python, program), user.environment(), ids=(user.uid, user.gid)
    ) as owners:
        sites = choose(rehearse(owners, lives=["end"], times=1), SITES_OF_PHASE)
        assert len(sites) == sum(SITES_OF_PHASE.values())
        _, faults = kill_at(owners, sites)
    assert faults == []
