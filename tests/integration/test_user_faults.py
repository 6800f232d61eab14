"""Faults of the host as an ordinary user meets them in the container and gVisor tiers: what he
lacks, named with the commands that give it; nothing of his is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.as_user import UsersBelljar, installed_for
from tests.integration.handed_groups import handed_groups
from tests.integration.processes import wait_for
from tests.machine import Templates

pytestmark = [pytest.mark.vm, pytest.mark.root]


@pytest.fixture(scope="module")
def user(
    prepared_home: Path, ordinary_user: tuple[int, int], templates: Templates
) -> Iterator[UsersBelljar]:
    """An ordinary user with a store of his own, and no control group."""
    with (
        installed_for(prepared_home, *ordinary_user) as installed,
        templates.serving(installed.home, ordinary_user),
    ):
        yield installed


_EXEC = ("exec", "low", "--tier", "container", "--", "true")


def user_refused(
    user: UsersBelljar,
    *mounts: str,
    prefix: Sequence[str] = (),
    command: Sequence[str] = _EXEC,
    argv: Sequence[str] | None = None,
) -> str:
    """What an ordinary user is told by `exec`, in a mount namespace prepared by root (or by `argv`,
    which becomes the user); nothing of his is left."""
    become = [
        "setpriv",
        f"--reuid={user.uid}",
        f"--regid={user.gid}",
        "--clear-groups",
        "--inh-caps=-all",
    ]
    argv = argv or [*become, *prefix, *user.argv(*command)]
    words = ["unshare", "--mount", "sh", "-ec", "\n".join([*mounts, 'exec "$@"']), "sh", *argv]
    ran = subprocess.run(
        words, env=user.environment(), cwd="/", capture_output=True, timeout=120, check=False
    )
    said = ran.stderr.decode()
    assert ran.returncode == 3, said
    assert "\n  hint: " in said
    assert {"policy.refused", "cell.failed"} & {
        event["kind"] for event in user.events(user.runs()[-1])
    }
    wait_for(lambda: not user.processes(), f"the end of {user.processes()}")
    assert user.left() == []
    return said


def test_a_user_without_subordinate_ids(user: UsersBelljar, tmp_path: Path) -> None:
    """Neither in /etc/subuid nor /etc/subgid: the command that gives them."""
    empty = tmp_path / "empty"
    empty.touch(mode=0o644)
    said = user_refused(
        user, f"mount --bind {empty} /etc/subuid", f"mount --bind {empty} /etc/subgid"
    )
    assert "no 65,536 subordinate ids in /etc/subuid or /etc/subgid" in said
    assert "usermod --add-subuids" in said


def test_a_user_without_the_mappers(user: UsersBelljar, tmp_path: Path) -> None:
    """newuidmap is missing: the package to install."""
    empty = tmp_path / "empty"
    empty.touch(mode=0o644)
    said = user_refused(
        user, *(f"mount --bind {empty} {shutil.which(name)}" for name in ("newuidmap", "newgidmap"))
    )
    assert "newuidmap and newgidmap can't be found" in said
    assert "install the package uidmap" in said


def test_a_user_without_control_groups(user: UsersBelljar) -> None:
    """His cells could not be bounded: refused, with the commands for the version of control groups
    that this host has; the microVM tier is left to him."""
    facts = json.loads(user("doctor", "--json", "--no-prove").stdout)["facts"]
    if len(facts["cgroup"]["parents"]) == 3:
        pytest.skip("control groups are handed to every user here")
    said = user_refused(user)
    assert "limits need the control groups cpu, memory, pids" in said
    if facts["cgroup"]["version"] == "v2":
        assert "systemd-run --user --scope -p Delegate=yes" in said
    else:
        as_told(user, said)


def as_told(user: UsersBelljar, said: str) -> None:
    """What is said fixes it: done by root and by the user word for word, a cell runs."""
    by_root, _, by_user = said.partition("as root: ")[2].partition("\n  hint: then in your shell: ")
    groups = [Path("/sys/fs/cgroup", name, str(user.uid)) for name in ("cpu", "memory", "pids")]
    try:
        subprocess.run(["sh", "-ec", by_root], check=True)
        command = f'{by_user.partition(chr(10))[0]}; exec "$@"'
        ran = user.run(
            [
                "sh",
                "-ec",
                command,
                "sh",
                *user.argv("exec", "low", "--tier", "container", "--", "echo", "fine"),
            ]
        )
        assert (ran.returncode, ran.stdout) == (0, b"fine\n"), ran.stderr
    finally:
        for group in groups:
            group.rmdir()
    assert user.left() == []


# A user namespace in which nobody may make another; the user is in it as himself.
NO_NAMESPACES = """\
import ctypes, os, sys
uid, gid, *argv = sys.argv[1:]
parent_read, child_write = os.pipe()
child_read, parent_write = os.pipe()
pid = os.fork()
if pid:
    os.read(parent_read, 1)
    for name, own in (("uid_map", uid), ("gid_map", gid)):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(f"0 0 1\\n{own} {own} 1\\n")
    os.write(parent_write, b"g")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
    raise OSError(ctypes.get_errno(), "unshare")
os.write(child_write, b"r")
os.read(child_read, 1)
with open("/proc/sys/user/max_user_namespaces", "w") as file:
    file.write("0")
os.setgroups([])
os.setgid(int(gid))
os.setuid(int(uid))
os.execv(argv[0], argv)
"""


def test_a_user_who_may_make_no_user_namespace(user: UsersBelljar) -> None:
    """The switch that forbids it, and the command that puts it."""
    argv = user.argv("exec", "low", "--tier", "container", "--", "true")
    ran = subprocess.run(
        [user.python, "-c", NO_NAMESPACES, str(user.uid), str(user.gid), *argv],
        env=user.environment(),
        cwd="/",
        capture_output=True,
        timeout=60,
        check=False,
    )
    said = ran.stderr.decode()
    assert ran.returncode == 3, said
    assert "user.max_user_namespaces is 0" in said
    assert "as root: sysctl -w user.max_user_namespaces=" in said
    assert user.left() == []


def test_a_user_whose_mappers_may_do_nothing(prepared_home: Path, user: UsersBelljar) -> None:
    """newuidmap is there and the ids are his, but where nothing gains rights by a program's file it
    is refused: said as such."""
    with handed_groups(f"f{user.uid}-{os.getpid()}", user.uid, user.gid) as groups:
        given = replace(user, groups=groups)
        argv = [
            "setpriv",
            "--no-new-privs",
            *user.argv("exec", "low", "--tier", "container", "--", "true"),
        ]
        ran = given.run(argv, timeout_s=60)
        said = ran.stderr.decode()
        assert ran.returncode == 3, said
        assert "the host gives this user no ids for a jail" in said
        assert "no-new-privileges" in said
        assert given.left() == []
