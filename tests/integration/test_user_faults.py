"""Faults of the host as an ordinary user meets them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.integration.as_user import UsersBelljar, kinds
from tests.machine import PATIENCE_S

pytestmark = [pytest.mark.vm, pytest.mark.root]
EXEC = ("exec", "low", "--tier", "container", "--", "true")
# As a user's own program does it: in a user namespace in which nobody may make another.
NO_NAMESPACES = (
    *("unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c"),
    (
        "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --ambient-caps=-all"
        ' --inh-caps=-all "$@"'
    ),
    "sh",
)


def on_a_host(
    user: UsersBelljar, command: Sequence[str], *mounts: str
) -> subprocess.CompletedProcess[bytes]:
    """The user's program in a mount namespace that root has prepared by these commands."""
    become = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
    argv = (
        [*become, "--inh-caps=-all", *command]
        if user.groups is None
        else user.groups.enter(command, uid=user.uid, gid=user.gid)
    )
    words = ["unshare", "--mount", "sh", "-ec", "\n".join([*mounts, 'exec "$@"']), "sh", *argv]
    return subprocess.run(
        words, env=user.environment(), cwd="/", capture_output=True, timeout=PATIENCE_S, check=False
    )


def refused(
    user: UsersBelljar, *mounts: str, command: Sequence[str] = EXEC, prefix: Sequence[str] = ()
) -> str:
    """What he is told, on record; `user` looks whether anything of his is left."""
    ran = on_a_host(user, [*prefix, *user.argv(*command)], *mounts)
    said = ran.stderr.decode()
    assert (ran.returncode, ran.stdout) == (3, b""), said
    assert "\n  hint: " in said
    assert {"policy.refused", "cell.failed"} & set(kinds(user))
    return said


@pytest.mark.promise("1.3")
def test_without_subordinate_ids(grouped: UsersBelljar, tmp_path: Path) -> None:
    """A container by name: the command that gives them."""
    empty = tmp_path / "empty"
    empty.touch(mode=0o644)
    without_ids = [f"mount --bind {empty} {path}" for path in ("/etc/subuid", "/etc/subgid")]
    assert "usermod --add-subuids" in refused(grouped, *without_ids)
    shown = on_a_host(grouped, grouped.argv("plan", "low", "--json"), *without_ids)
    plan = json.loads(shown.stdout)
    assert plan["tier"] == "microvm"
    assert any("subordinate ids" in warning for warning in plan["warnings"])


@pytest.mark.promise("1.3")
def test_without_control_groups(user: UsersBelljar) -> None:
    """His cells could not be bounded."""
    facts = json.loads(user("doctor", "--json", "--no-prove").stdout)["facts"]
    if len(facts["cgroup"]["parents"]) == 3:
        pytest.skip("control groups are handed to every user here")
    plan = json.loads(user("plan", "low", "--json").stdout)
    assert plan["tier"] == "microvm"
    assert "not handed to this user" in " ".join(plan["warnings"])
    said = refused(user)
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
        ran = user.run(["sh", "-ec", command, "sh", *user.argv(*EXEC)])
        assert ran.returncode == 0, ran.stderr
    finally:
        for group in groups:
            group.rmdir()


@pytest.mark.promise("1.3")
def test_without_user_namespaces(user: UsersBelljar) -> None:
    """Doctor and each tier name the switch; nothing weaker is used instead."""
    shown = user.run([*NO_NAMESPACES, *user.argv("doctor", "--json")])
    found = json.loads(shown.stdout)
    assert (shown.returncode, found["ready"], found["facts"]["is_root"]) == (3, False, False)
    assert "user.max_user_namespaces" in found["facts"]["userns"]["reason"]
    for command in (("exec", "low", "--", "true"), EXEC):
        said = refused(user, command=command, prefix=NO_NAMESPACES)
        assert "as root: sysctl -w user.max_user_namespaces=" in said
        assert "cell.planned" not in kinds(user)
