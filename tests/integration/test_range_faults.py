"""Faults of a range as a user meets them: what, where and what to do; the documented exit code;
nothing is left; what is on record verifies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.integration import faults
from tests.integration.faults import FETCH, PATIENCE_S, Host, hide, mounted
from tests.integration.remains import below

pytestmark = [pytest.mark.vm, pytest.mark.root]
host, policy = faults.host, faults.policy
_HALF = (
    "import socket, time\n"
    "half = socket.create_connection(('shop.example', 80))\n"
    "half.sendall(b'GET / HTTP/1.1\\r\\nHost: shop')\n"
    "print('half', flush=True)\n"
    "time.sleep(600)\n"
)
"""A guest that has sent half a request, says so, and waits."""


def ran_by(host: Host, *argv: str) -> subprocess.CompletedProcess[str]:
    """A program of this interpreter's on the host's store."""
    return subprocess.run(
        argv,
        env=host.belljar.environment(TMPDIR=str(host.scratch)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


# ---- what the host lacks


@pytest.mark.promise("1.3")
def test_no_nft(host: Host, policy: Callable[..., str]) -> None:
    """Named, with the package; before anything is made."""
    assert "install nftables" in host.refusal(policy(), mounts=hide("nft"), command=FETCH)


@pytest.mark.promise("1.3")
def test_what_a_range_does_not_need(host: Host, policy: Callable[..., str]) -> None:
    """Links are made without the program `ip` or a tun device, and a range listens in a namespace of
    its own: on port 80 and 53 whoever has them here."""
    with contextlib.ExitStack() as stack:
        for port in (80, 53):
            taken = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # taken already: as good
                taken.bind(("0.0.0.0", port))  # noqa: S104 - so that a range would meet it
                taken.listen()
        hidden = [*hide("ip"), "mount -t tmpfs none /dev/net"]
        ran = host.run("exec", policy(), "--", *FETCH, mounts=hidden)
    assert (ran.returncode, ran.stdout) == (0, b"hello"), ran.stderr
    host.check(host.belljar.runs()[-1])


@pytest.mark.promise("1.3")
def test_few_open_files(host: Host, policy: Callable[..., str]) -> None:
    """A soft limit stands in no range's way, whose gateway may have ten thousand connections; a hard
    one that is too low is the host's fault, and nothing is left of what had begun."""

    def limited(limit: str) -> subprocess.CompletedProcess[str]:
        shell = ["/bin/sh", "-c", f'ulimit {limit}; exec "$@"', "sh", sys.executable]
        return ran_by(host, *shell, "-m", "belljar", "exec", policy(), "--", *FETCH)

    assert limited("-Sn 16").stdout == "hello"
    told = limited("-n 300")
    assert told.returncode == 3, told.stderr
    assert "Traceback" not in told.stderr
    assert host.belljar("reap").returncode == 0
    assert host.belljar.leftovers() == []


def test_a_target_that_does_not_get_healthy(host: Host, policy: Callable[..., str]) -> None:
    """How often it was tried, what it said last, and where to fix it."""
    target = (
        "    shop: {kind: cell, names: [a.example], ports: [80], user: root, command: [sh, -c, 'echo"
        " words of its own; exit 3'], health: {command: ['false'], retries: 2, interval: 100ms}}\n"
    )
    before = host.belljar.runs()
    found = host.refusal(policy(target), code=5, command=FETCH)
    assert host.kinds(before).count("cell.planned") == 1  # nothing ran in the sample's cell
    assert "network.stand_ins.shop (cell c-" in found
    ends = ("did not become healthy in 2 tries", "its program ended with status 3")
    assert any(end in found for end in ends)
    assert "its output ends with: words of its own" in found


# ---- what dies


def test_a_part_is_killed(host: Host, policy: Callable[..., str]) -> None:
    """SIGKILL to its gateway while a request is half sent: which one died is said, exit 5."""
    before = host.belljar.runs()
    process = host.start("exec", policy(), "--", "python3", "-c", _HALF)
    assert process.stdout is not None
    assert process.stdout.readline() == b"half\n"
    (entry,) = (host.belljar.home / "journal").glob("r-*.json")
    _supervisor, gateway = json.loads(entry.read_text())["processes"]
    os.kill(gateway["pid"], signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE_S)
    said = err.decode()
    assert process.returncode == 5, said
    assert "the range's gateway ended (SIGKILL)" in said
    assert "belljar-sandbox[network,stand-ins]" not in said
    host.told_and_gone(said, before)


# ---- whose disk is full


def test_a_disk_that_is_full_at_the_start(host: Host, policy: Callable[..., str]) -> None:
    """Whatever file of the run the disk has no room for, it is said which, and what helps."""
    for inodes in (5, 11):  # before the range, and in it
        with mounted(host.belljar.home / "runs", f"mode=755,size=4m,nr_inodes={inodes}"):
            ran = host.run("exec", policy(), "--", *FETCH)
            said = ran.stderr.decode()
            assert ran.returncode in (3, 5), said
            assert "Traceback" not in said
            assert "No space left on device" in said
            assert "\n  hint: " in said
            assert (host.belljar.leftovers(), list(below(os.getpid()))) == ([], [])
            verified = host.belljar("ledger", "verify", str(host.belljar.runs()[-1]))
            assert verified.returncode == 0, verified.stdout + verified.stderr
