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
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import images
from tests.integration.as_user import (
    UsersBelljar,
    another_store,
    copy_inspect,
    kinds,
    leaves_nothing,
    own,
    program,
    started,
)
from tests.integration.crashes import OWNER, choose, kill_at, owners_of, rehearse
from tests.integration.processes import read_until, vmm_of, wait_for

import belljar as package
from belljar.isolation.jail import launcher_path
from belljar.plan.jail import INNER_ID
from belljar.process import NAMESPACES, namespaces_of

pytestmark = [pytest.mark.vm, pytest.mark.root]


def running(user: UsersBelljar, *args: str) -> tuple[subprocess.Popen[bytes], int]:
    """A cell in which a command has started, and the pid of its VMM."""
    process = started(user, *args)
    return process, vmm_of(process.pid)


def policy(user: UsersBelljar, text: str) -> str:
    """A policy file that the user can read."""
    path = user.home.parent / "policy.yaml"
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


def limits_of(pid: int) -> dict[str, str]:
    """A process's hard limits, by name."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): line[47:68].strip() for line in lines}


def status_of(pid: int) -> dict[str, str]:
    """/proc/PID/status."""
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: value.strip() for name, _, value in lines}


def planned(user: UsersBelljar) -> dict[str, Any]:
    """`belljar plan high --json`."""
    shown = user("plan", "high", "--json")
    assert shown.returncode == 0, shown.stderr
    return dict(json.loads(shown.stdout))


def test_doctor_says_what_this_user_can_do(user: UsersBelljar) -> None:
    """Ready, not as root; what is not handed to this user (control groups) is a note with its
    hint."""
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


def test_the_plan_says_what_holds_instead_of_control_groups(user: UsersBelljar) -> None:
    """Each bound names what enforces it here; without control groups that is the address space,
    never silence; the jail's uid is not claimed to be nobody's."""
    if json.loads(user("doctor", "--json", "--no-prove").stdout)["facts"]["cgroup"]["parents"]:
        pytest.skip("control groups are delegated to ordinary users here")
    plan = planned(user)
    bounds = {bound["what"]: bound for bound in plan["bounds"]}
    assert plan["memory_by_rlimit"] is True
    assert plan["jail"]["cpu_quota_percent"] is None
    assert "RLIMIT_AS" in bounds["memory"]["enforced_by"]
    assert "if the VMM itself is compromised" in bounds["memory"]["most"]
    threads = bounds["threads on this host"]["enforced_by"]
    assert threads == ["RLIMIT_NPROC", "no control group"]
    assert "no control group" in bounds["processors"]["enforced_by"]
    assert any("control groups can be used" in warning for warning in plan["warnings"])
    jail = next(layer for layer in plan["layers"] if layer["name"] == "jail")
    assert "this user's own uid" in jail["what"]
    assert b"no control group" in user("plan", "high").stdout


@pytest.mark.promise("8.4")
def test_exec_and_its_record(user: UsersBelljar) -> None:
    """A template in the user's own store, a clone, a command, a clean end; the second time without
    the template's making."""
    with another_store(user) as store, leaves_nothing(replace(user, home=store)):
        check_exec_and_its_record(replace(user, home=store))


def check_exec_and_its_record(user: UsersBelljar) -> None:
    """On a store without a template."""
    first, second = (json.loads(user("exec", "--json", "--", "id", "-un").stdout) for _ in range(2))
    for found in (first, second):
        assert (found["returncode"], found["stdout"], found["destroyed"]) == (0, "user\n", True)
        assert found["layers"] == ["jail", "microvm", "container"]
    (template,) = (user.home / "templates").glob("*/template.json")
    assert template.stat().st_uid == user.uid
    assert "template.built" not in kinds(user)
    assert {"cell.planned", "cell.cloned", "cell.renewed", "exec.started", "cell.destroyed"} <= set(
        kinds(user)
    )
    shown = user("runs", "--json")
    assert len(json.loads(shown.stdout)) >= 2


def test_a_cell_is_probed(user: UsersBelljar) -> None:
    """Every probe, as the workload's user and as root of the cell: contained, with all of the
    host's witnesses looked at."""
    said = json.loads(user("probe", "--all", "--json").stdout)
    findings = [finding for report in said["reports"] for finding in report["findings"]]
    assert [finding for finding in findings if finding["verdict"] != "contained"] == []
    assert (said["verdict"], len(said["reports"])) == ("contained", 2)
    assert sum(finding["seen_by"] == "host" for finding in findings) >= 18


@pytest.mark.thorough
def test_exec_passes_streams_and_codes(user: UsersBelljar) -> None:
    """Standard input through, the command's exit code out; 124 when it timed out; 4 for a wrong
    policy."""
    through = user("exec", "--", "sh", "-c", "cat; exit 9", input=b"through\n")
    assert (through.returncode, through.stdout) == (9, b"through\n")
    assert user("exec", "--timeout", "1s", "--", "sleep", "60").returncode == 124
    assert (
        user("exec", policy(user, "belljar: 1\nname: x\nrisk: hihg\n"), "--", "true").returncode
        == 4
    )


@pytest.mark.promise("8.4")
def test_the_vmm_is_bounded_without_control_groups(user: UsersBelljar) -> None:
    """Address space, threads, files and locked memory have the plan's limits; no capability, no new
    privilege, the jail's filter and QEMU's."""
    plan = planned(user)
    process, vmm = running(user)
    try:
        limits, status = limits_of(vmm), status_of(vmm)
        namespaces = namespaces_of(vmm)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    assert limits["Max address space"] == str(plan["jail"]["address_space_bytes"])
    assert limits["Max processes"] == str(plan["jail"]["processes"])
    assert (limits["Max core file size"], limits["Max file size"], limits["Max open files"]) == (
        "1",
        "0",
        "256",
    )
    assert int(status["VmSize"].split()[0]) << 10 < plan["jail"]["address_space_bytes"]
    assert int(status["Threads"]) <= plan["jail"]["processes"]
    assert status["Uid"].split() == [str(user.uid)] * 4
    assert {
        int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    } == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert int(status["Seccomp_filters"]) >= 2
    assert set(namespaces) == set(NAMESPACES)
    assert not set(namespaces.values()) & set(namespaces_of(os.getpid()).values())


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
    """Try to alter the files as that uid, in a process's place (0: where the tests are); errno by
    attack."""
    argv = [sys.executable, "-c", IN_ITS_PLACE, str(pid), str(uid), *files]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return dict(json.loads(done.stdout))


@pytest.mark.promise("1.3")
def test_the_vmm_can_not_alter_what_its_own_user_owns(user: UsersBelljar) -> None:
    """Image and template belong to the very uid the VMM has; still, in its place nothing can be
    written. Outside, the same attack succeeds."""
    process, vmm = running(user)
    try:
        mounts = [
            line.split(" ") for line in Path(f"/proc/{vmm}/mountinfo").read_text().splitlines()
        ]
        targets = {fields[4]: fields[5].split(",") for fields in mounts}
        inside = attack(vmm, INNER_ID, *(target for target in targets if target != "/"))
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    assert len(targets) == 3, mounts
    assert all({"ro", "nosuid", "nodev"} <= set(options) for options in targets.values())
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


def test_vmm_killed_mid_command(user: UsersBelljar) -> None:
    """Exit 5, one message with the cause, cleaned up and on record."""
    process, vmm = running(user)
    os.kill(vmm, signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 5, stderr
    assert b"the cell died" in stderr
    assert "cell.failed" in kinds(user)


@pytest.mark.thorough  # by default as part of the contract
def test_lifetime_ends_the_cell(user: UsersBelljar) -> None:
    """The supervisor, which is this user's too, holds the deadline."""
    short = policy(
        user, "belljar: 1\nname: short\nrisk: high\nresources: {lifetime: 10s, exec_timeout: 10s}\n"
    )
    ran = user("exec", short, "--timeout", "1h", "--", "sleep", "3600")
    assert ran.returncode == 5, ran.stderr
    assert b"lifetime" in ran.stderr


def test_owner_killed_leaves_nothing_after_reap(user: UsersBelljar) -> None:
    """SIGKILL of the owner: the VMM dies with it, `ps` shows the orphan beside a living cell,
    `reap` takes the one and leaves the other."""
    living, kept = running(user)
    dying, vmm = running(user)
    dying.kill()
    dying.communicate(timeout=60)
    wait_for(lambda: vmm not in user.processes(), "the VMM's death")
    listed = json.loads(user("ps", "--json").stdout)
    assert sorted(cell["state"] for cell in listed) == ["alive", "orphaned"]
    reaped = user("reap", "--json")
    assert reaped.returncode == 0, reaped.stderr
    assert [one["remaining"] for one in json.loads(reaped.stdout)] == [[]]
    assert kept in user.processes()
    os.killpg(living.pid, signal.SIGINT)
    _, stderr = living.communicate(timeout=60)
    assert living.returncode == 130, stderr


def test_two_at_once(user: UsersBelljar) -> None:
    """Two cells of one user see nothing of each other."""
    script = "echo {} > /tmp/mark; sleep 1; cat /tmp/mark; ls /tmp"
    both = [user.start("exec", "--", "sh", "-c", script.format(number)) for number in (1, 2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [out for out, _ in outputs] == [b"1\nmark\n", b"2\nmark\n"], outputs


@pytest.mark.thorough
def test_an_imported_image_runs(user: UsersBelljar) -> None:
    """An archive becomes an image of the user's, and its program runs in a cell as the user that
    the image names."""
    program = images.entry("bin/clock", launcher_path().read_bytes(), mode=0o755)
    accounts = images.entry("etc/passwd", b"root:x:0:0::/:/bin/x\nworker:x:1234:1234::/:/bin/x\n")
    archive = images.oci_archive(
        user.home.parent / "small.tar",
        [images.layer(images.directory("bin"), images.directory("etc"), program, accounts)],
        {"User": "worker", "Env": ["A=b"], "WorkingDir": "/bin"},
    )
    archive.chmod(0o644)
    made = user("image", "import", f"oci-archive:{archive}", "--name", "small", "--json")
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    assert (found["user"], found["workdir"], found["env"]["A"]) == ("worker", "/bin", "b")
    assert Path(found["rootfs"]).stat().st_uid == user.uid
    small = policy(user, "belljar: 1\nname: small\nrisk: high\nimage: small\n")
    ran = user("exec", small, "--", "/bin/clock", "--measure-clock")
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 0
    assert user("image", "rm", "small").returncode == 0


def test_a_hostile_archive_is_refused(user: UsersBelljar) -> None:
    """A path out of the image: exit 4 or 3, one message, nothing outside and nothing left."""
    hostile = images.layer(images.entry("../../../../home/escaped-file", b"x"))
    archive = images.oci_archive(user.home.parent / "hostile.tar", [hostile])
    archive.chmod(0o644)
    refused = user("image", "import", f"oci-archive:{archive}", "--name", "hostile")
    assert refused.returncode in {3, 4}
    assert b"Traceback" not in refused.stderr
    assert not list(user.home.parent.rglob("escaped-file"))
    assert b"hostile" not in user("image", "ls").stdout


def without_namespaces(user: UsersBelljar, *args: str) -> subprocess.CompletedProcess[bytes]:
    """`belljar` where user namespaces are forbidden: in one whose own limit for further ones is
    0."""
    forbid = (
        "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --ambient-caps=-all"
        ' --inh-caps=-all "$@"'
    )
    shell = ["sh", "-c", forbid, "sh"]
    return user.run(
        ["unshare", "--user", "--map-current-user", "--keep-caps", *shell, *user.argv(*args)]
    )


@pytest.mark.promise("1.3")
def test_without_user_namespaces_it_is_refused_with_the_hint(user: UsersBelljar) -> None:
    """Doctor says no and which switch; `exec` and `plan` are refused with 3; nothing weaker is used
    instead; the refusal is on record."""
    shown = without_namespaces(user, "doctor", "--json")
    assert shown.returncode == 3, shown.stderr
    found = json.loads(shown.stdout)
    assert not found["ready"]
    assert not found["facts"]["is_root"]
    assert "user.max_user_namespaces" in found["facts"]["userns"]["reason"]
    for args in (("plan", "low"), ("exec", "low", "--", "true")):
        refused = without_namespaces(user, *args)
        assert refused.returncode == 3, refused.stderr
        assert b"user.max_user_namespaces" in refused.stderr
        assert b"hint: as root: sysctl -w user.max_user_namespaces=15000" in refused.stderr
    assert "policy.refused" in kinds(user)
    assert "cell.planned" not in kinds(user)


@pytest.mark.parametrize(
    "args",
    [
        ("exec", "--", "true"),
        ("image", "import", "oci:/nowhere"),
        ("reap",),
        ("ps",),
        ("runs",),
        ("setup", "--yes"),
    ],
)
def test_a_store_of_another_user_is_one_clear_message(
    user: UsersBelljar, args: tuple[str, ...]
) -> None:
    """Root's store, or one that can't be made: exit 3, the place, and `BELLJAR_HOME`; never a
    traceback, never an empty list that looks like an answer."""
    foreign = user.home.parent.parent / "foreign"
    for name in ("", "journal", "runs", "locks", "images"):
        (foreign / name).mkdir(mode=0o700 if name else 0o711, exist_ok=True)
    refused = user(*args, BELLJAR_HOME=str(foreign))
    shutil.rmtree(foreign)
    assert refused.returncode == 3, refused.stderr
    assert str(foreign).encode() in refused.stderr
    assert b"BELLJAR_HOME" in refused.stderr
    assert b"Traceback" not in refused.stderr


def test_doctor_says_that_the_store_is_another_users(user: UsersBelljar) -> None:
    """Before anything fails for it."""
    shown = user("doctor", "--json", "--no-prove", BELLJAR_HOME="/nonexistent/store")
    store = next(check for check in json.loads(shown.stdout)["checks"] if check["what"] == "store")
    assert (shown.returncode, store["state"]) == (3, "no")
    assert "BELLJAR_HOME" in store["hint"]


def test_files_of_a_cell(user: UsersBelljar) -> None:
    """In and out unchanged, with mode and owner; what the guest's user may not read is refused."""
    found = program(user, "files")
    assert (found["same"], found["stat"], found["refused"]) == (True, "640 user\n", True)
    assert (found["destroyed"], found["uid"]) == (True, user.uid)


def test_streams_of_a_cell(user: UsersBelljar) -> None:
    """50 MiB of standard input arrive; 8 MiB of output come back; both streams, the code and the
    timeout are what they are for root."""
    found = program(user, "streams")
    assert found["stdin_arrived"]
    assert (found["out_bytes"], found["err"], found["code"]) == (8 << 20, "problem\n", 7)
    assert found["timed_out"]
    assert found["destroyed"]


def test_a_terminal_in_a_cell(user: UsersBelljar) -> None:
    """A real terminal, resized."""
    found = program(user, "terminal")
    assert "/dev/pts/" in found["seen"]
    assert "31 97" in found["seen"]
    assert "40 120" in found["seen"]
    assert "got word" in found["seen"]
    assert (found["code"], found["destroyed"]) == (0, True)


def test_a_fork_of_a_cell(user: UsersBelljar) -> None:
    """A machine is saved and forked with the user's rights; nobody else may read what is saved."""
    found = program(user, "forks")
    assert (found["note"], found["is_private"], found["destroyed"]) == ("then", True, True)


def test_a_shell_on_a_terminal_without_a_size(user: UsersBelljar) -> None:
    """`belljar shell` on a terminal that says 0 × 0, as a fresh one does: a login of the image's
    user; its exit code is the shell's. Meanwhile its cell can be attached to, and a command there
    that ends while it is still sent input is heard to its end."""
    ours, theirs = os.openpty()
    process = user.start_on(user.argv("shell"), theirs)
    os.close(theirs)
    try:
        begun = read_until(
            ours, b"$ "
        )  # before its prompt, the terminal's change to raw mode would throw away what is typed
        (cell,) = re.findall(rb"cell (c-[0-9a-f]+) ", begun)
        attached = user("attach", cell.decode(), "--", "sh", "-c", "id -un; exit 5")
        assert (attached.returncode, attached.stdout.split()) == (5, [b"user"]), attached
        counts = ("attach", cell.decode(), "--", "sh", "-c", "seq 20000; exit 5")
        flooded = user(*counts, input=b"y\n" * 500_000)
        assert (flooded.returncode, b"\n20000\r" in flooded.stdout) == (5, True), flooded.stderr
        os.write(ours, b"stty size; id -un; exit 3\n")
        seen = read_until(ours, b"recorded in")
        assert process.wait(timeout=60) == 3, seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"24 80" in seen
    assert b"user\r\n" in seen


@pytest.mark.slow
@pytest.mark.thorough
def test_inspects_own_checks(user: UsersBelljar) -> None:
    """Inspect's conformance checks for sandboxes pass when Inspect is run by an ordinary user: all,
    none known to fail."""
    copy_inspect(user.libraries)
    found = program(user, "checks", "microvm")
    assert found["failed"] == {}
    assert found["checks"] >= 44


def test_the_package_is_a_copy(user: UsersBelljar) -> None:
    """The tests above ran the copy that the user can read, not the checkout."""
    said = user.run([user.python, "-c", "import belljar; print(belljar.__file__)"])
    assert Path(said.stdout.decode().strip()).is_relative_to(user.libraries)
    assert not Path(package.__file__).is_relative_to(user.libraries)


SITES_OF_PHASE = {"create": 2, "revert": 1, "fork": 1, "destroy": 2}


@pytest.mark.promise("6.2")
@pytest.mark.slow
def test_killed_anywhere_nothing_of_the_users_is_left(user: UsersBelljar) -> None:
    """SIGKILL at six places of a cell's life: with one uid for all his cells, a reaping removes
    what is left of one and leaves the other alone."""
    program = str(shutil.copy(OWNER, user.home.parent.parent))
    with owners_of(
        user.home, "microvm", (user.python, program), user.environment(), ids=(user.uid, user.gid)
    ) as owners:
        sites = choose(rehearse(owners), SITES_OF_PHASE)
        assert len(sites) == 6
        _, faults = kill_at(owners, sites)
    assert faults == []
