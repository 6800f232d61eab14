"""Bad input and faults: each ends in one clear message, the right exit code, nothing left on the
host, and a ledger that verifies."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import copy_store
from tests.integration.conftest import Belljar
from tests.integration.processes import heeds_signals, vmm_of, wait_for

pytestmark = pytest.mark.vm

Newest = Callable[[], Path]


def _policy(tmp_path: Path, text: str) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return str(path)


def _kinds(belljar: Belljar, run: Path) -> list[str]:
    return [str(event["kind"]) for event in belljar.events(run)]


def test_bad_policy_ends_with_4_and_names_the_place(belljar: Belljar, tmp_path: Path) -> None:
    """A policy with an unknown key is refused: file, line, column, field and the nearest name."""
    bad = _policy(tmp_path, "belljar: 1\nname: x\nrisk: high\nimgae: default\n")
    ran = belljar("exec", bad, "--", "true")
    message = ran.stderr.decode()
    assert ran.returncode == 4
    assert "policy.yaml:4:1" in message
    assert "image" in message
    assert belljar.leftovers() == []


@pytest.mark.promise("1.3")
def test_missing_image_ends_with_3_and_the_refusal_is_recorded(
    belljar: Belljar, tmp_path: Path, clean_after: Newest
) -> None:
    """A policy that names an image that is not there is refused with the hint, and the refusal is
    in the ledger."""
    policy = _policy(tmp_path, "belljar: 1\nname: x\nrisk: high\nimage: defualt\n")
    ran = belljar("exec", policy, "--", "true")
    assert ran.returncode == 3
    assert "default" in ran.stderr.decode()
    assert "policy.refused" in _kinds(belljar, clean_after())


def _with_qemu(belljar: Belljar, replacement: Path) -> subprocess.CompletedProcess[bytes]:
    """`belljar exec` in a mount namespace where every QEMU is that file."""
    paths = [
        path
        for name in ("qemu-system-x86_64", "qemu-system-x86_64-microvm")
        if (path := shutil.which(name))
    ]
    binds = " && ".join(f"mount --bind {replacement} {path}" for path in paths)
    argv = [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        f'{binds} && exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "belljar",
    ]
    return subprocess.run(
        [*argv, "exec", "--", "true"],
        env=belljar.environment(),
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_qemu_missing_ends_with_3_and_the_hint(belljar: Belljar, tmp_path: Path) -> None:
    """Without QEMU the plan refuses and says how to get it."""
    nothing = tmp_path / "nothing"
    nothing.touch(mode=0o644)
    ran = _with_qemu(belljar, nothing)
    assert ran.returncode == 3, ran.stderr
    assert "belljar setup" in ran.stderr.decode()


def test_qemu_too_old_ends_with_3_and_names_both_versions(belljar: Belljar, tmp_path: Path) -> None:
    """A QEMU older than 8.2 is refused: found and needed version are named."""
    old = tmp_path / "old-qemu"
    old.write_text("#!/bin/sh\necho 'QEMU emulator version 7.2.18 (Debian 1:7.2+dfsg-7)'\n")
    old.chmod(0o755)
    ran = _with_qemu(belljar, old)
    assert ran.returncode == 3, ran.stderr
    assert "7.2" in ran.stderr.decode()
    assert "8.2" in ran.stderr.decode()


@pytest.mark.promise("1.2")
def test_critical_without_hardware_is_refused(belljar: Belljar) -> None:
    """Risk critical runs under proven hardware virtualisation or not at all."""
    facts = json.loads(belljar("doctor", "--json").stdout)
    if facts["facts"]["kvm"]["state"] == "proven":
        pytest.skip("this host has hardware virtualisation")
    ran = belljar("exec", "critical", "--", "true")
    assert ran.returncode == 3
    assert b"KVM" in ran.stderr


@pytest.mark.root
def test_no_disk_space_for_a_template(prepared_home: Path, tmp_path: Path) -> None:
    """A store without room for the template: one clear message, exit 3, and no half-made
    template."""
    mount = tmp_path / "small"
    mount.mkdir()
    needed = sum(
        f.stat().st_size
        for name in ("images", "kernels")
        for f in (prepared_home / name).rglob("*")
        if f.is_file()
    )
    size = f"size={needed + (40 << 20)},mode=0711"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(mount)], check=True)
    try:
        small = Belljar(copy_store(prepared_home, mount / "store"))
        ran = small("exec", "--", "true")
        assert ran.returncode == 3, ran.stderr
        assert "space" in ran.stderr.decode()
        assert small.leftovers() == []
        templates = mount / "store" / "templates"
        assert not templates.exists() or not any(templates.glob("*/template.json"))
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.root
def test_no_disk_space_for_an_image(tmp_path: Path) -> None:
    """A store without room for an image: one clear message, exit 3, and nothing of the image."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0711", "tmpfs", str(mount)], check=True
    )
    try:
        small = Belljar(mount / "store")
        ran = small("image", "build", "default")
        assert ran.returncode == 3, ran.stderr
        assert "free" in ran.stderr.decode()
        assert not list((mount / "store").glob("images/*"))
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.promise("4.1")
def test_vmm_killed_mid_command(belljar: Belljar, clean_after: Newest) -> None:
    """The VMM dies while a command runs: exit 5, one message with the cause, the cell is cleaned up
    and the record verifies."""
    running = _started(belljar, "exec.started")
    os.kill(vmm_of(running.pid), signal.SIGKILL)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 5, stderr
    assert b"the cell died" in stderr
    assert "cell.failed" in _kinds(belljar, clean_after())


def test_workload_can_not_kill_what_holds_it(belljar: Belljar, clean_after: Newest) -> None:
    """A workload that kills everything it can see, as root, ends itself, not the cell."""
    script = (
        "kill -9 -1; kill -9 1; for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done; echo still"
        " here"
    )
    ran = belljar(
        "exec", "--user", "root", "--", "setsid", "sh", "-c", f"({script})& wait; echo end"
    )
    assert ran.returncode in {0, 137}, ran.stderr
    assert _kinds(belljar, clean_after())[-2:] == ["cell.destroyed", "run.finished"]


@pytest.mark.promise("4.3")
def test_output_flood_is_cut_and_counted(
    belljar: Belljar, tmp_path: Path, clean_after: Newest
) -> None:
    """Endless output: kept up to the policy's bound, the rest counted, the limit named in the
    ledger."""
    policy = _policy(tmp_path, "belljar: 1\nname: flood\nrisk: high\nresources:\n  output: 64KiB\n")
    ran = belljar("exec", policy, "--json", "--timeout", "3s", "--", "yes")
    found = json.loads(ran.stdout)
    assert ran.returncode == 124
    assert len(found["stdout"]) == 64 << 10
    assert found["stdout_dropped_bytes"] > 0
    limits = {e["data"]["limit"] for e in belljar.events(clean_after()) if e["kind"] == "limit.hit"}
    assert limits == {"output", "exec_timeout"}


@pytest.mark.promise("6.2")
def test_lifetime_ends_the_cell(belljar: Belljar, tmp_path: Path, clean_after: Newest) -> None:
    """At its lifetime's end a cell is gone, whatever it does, and the message says why."""
    policy = _policy(
        tmp_path,
        "belljar: 1\nname: short\nrisk: high\nresources:\n  lifetime: 10s\n  exec_timeout: 10s\n",
    )
    ran = belljar("exec", policy, "--timeout", "1h", "--", "sleep", "3600")
    assert ran.returncode == 5, ran.stderr
    assert b"lifetime" in ran.stderr
    assert "cell.destroyed" in _kinds(belljar, clean_after())


# Some 0.2, 0.35, 0.95 and 1.45 s after the beginning; the others lie between.
@pytest.mark.promise("6.2")
@pytest.mark.parametrize(
    "round_number",
    [1, 2, 4, 5, *(pytest.param(n, marks=pytest.mark.thorough) for n in (0, 3, 6, 7))],
)
def test_interrupt_at_any_moment(belljar: Belljar, clean_after: Newest, round_number: int) -> None:
    """Ctrl-C at an arbitrary moment of planning, cloning, running or destroying: exit 130, a
    message, nothing left, a ledger that verifies."""
    delay_s = random.Random(round_number).uniform(0, 1.5)  # noqa: S311 - a test's dice
    running = belljar.start("exec", "--", "sleep", "600")
    wait_for(lambda: heeds_signals(running.pid), "its beginning")
    time.sleep(delay_s)
    os.killpg(running.pid, signal.SIGINT)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode in {130, -signal.SIGINT}, (delay_s, stderr)
    assert b"Traceback" not in stderr


@pytest.mark.parametrize("moment", ["run.started", "exec.started"])
def test_a_storm_of_signals_is_one_interrupt(
    belljar: Belljar, clean_after: Newest, moment: str
) -> None:
    """SIGTERM, SIGHUP and several SIGINTs with no gap between them end the command once: exit 130,
    nothing left, a sealed ledger."""
    running = _started(belljar, moment)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGINT, signal.SIGINT):
        os.killpg(running.pid, number)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    assert b"Traceback" not in stderr
    assert _kinds(belljar, clean_after())[-1] == "run.finished"


@pytest.mark.promise("6.2")
def test_owner_killed_leaves_nothing_after_reap(belljar: Belljar) -> None:
    """SIGKILL of the owner: its VMM dies with it, `ps` shows the orphan at most, `reap` leaves
    nothing, and the ledger verifies up to its last complete event."""
    running = _started(belljar, "exec.started")
    vmm = vmm_of(running.pid)
    running.kill()
    running.communicate(timeout=60)
    wait_for(lambda: not Path(f"/proc/{vmm}").exists(), "the VMM's death")
    reaped = belljar("reap", "--json")
    assert reaped.returncode == 0, reaped.stderr
    assert belljar.leftovers() == []
    verified = belljar("ledger", "verify", str(belljar.runs()[-1]))
    assert verified.returncode == 0, verified.stderr
    assert b"unfinished" in verified.stdout + verified.stderr


def test_two_runs_at_once(belljar: Belljar) -> None:
    """Two commands at the same time get two cells and two records that verify, and see nothing of
    each other."""
    both = [
        belljar.start("exec", "--", "sh", "-c", f"echo {n} > /tmp/mark; sleep 1; cat /tmp/mark")
        for n in (1, 2)
    ]
    outputs = [running.communicate(timeout=300) for running in both]
    assert [out for out, _ in outputs] == [b"1\n", b"2\n"], outputs
    for run in belljar.runs()[-2:]:
        assert belljar("ledger", "verify", str(run)).returncode == 0
    assert belljar.leftovers() == []


@pytest.mark.promise("3.1")
def test_damaged_template_is_rebuilt(belljar: Belljar, clean_after: Newest) -> None:
    """A template that was altered is noticed, rebuilt and said so; the cell never starts from
    it."""
    assert belljar("exec", "--", "true").returncode == 0
    states = {path: path.read_bytes() for path in belljar.home.glob("templates/*/state")}
    for path, content in states.items():
        path.chmod(0o600)
        path.write_bytes(altered(content))
    ran = belljar("exec", "--", "echo", "fine")
    for path, content in states.items():  # those of other policies are whole for other tests
        if path.exists() and path.read_bytes() == altered(content):
            path.write_bytes(content)
    assert (ran.returncode, ran.stdout) == (0, b"fine\n"), ran.stderr
    assert "template.rejected" in _kinds(belljar, clean_after())


def altered(content: bytes) -> bytes:
    """With another byte in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def _started(belljar: Belljar, moment: str) -> subprocess.Popen[bytes]:
    """A command that goes on, when its own run's record has come so far."""
    before = len(belljar.runs())
    running = belljar.start("exec", "--", "sleep", "600")

    def reached() -> bool:
        with contextlib.suppress(OSError, ValueError):
            return any(moment in _kinds(belljar, run) for run in belljar.runs()[before:])
        return False

    wait_for(reached, moment, within_s=120)
    return running


def test_store_is_shared_by_hard_links_only(home: Path, prepared_home: Path) -> None:
    """The session's store holds no link that a test could write the prepared store through: files
    are read-only."""
    assert all(not f.stat().st_mode & 0o222 for f in (home / "images").rglob("rootfs.sqfs"))
    assert shutil.disk_usage(home).free > 0
