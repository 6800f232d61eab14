"""Faults of a range as a user meets them."""

from __future__ import annotations

import json
import os
import signal
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


# ---- what the host lacks


@pytest.mark.promise("1.3")
def test_no_nft(host: Host, policy: Callable[..., str]) -> None:
    """Named, with the package; before anything is made."""
    assert "install nftables" in host.refusal(policy(), mounts=hide("nft"), command=FETCH)


def test_a_target_that_does_not_get_healthy(host: Host, policy: Callable[..., str]) -> None:
    """How often it was tried, what it said last, and where to fix it."""
    target = (
        "    shop: {kind: cell, names: [a.example], ports: [80], user: root, command: [sh, -c, 'echo"
        " words of its own; exit 3'], health: {command: ['false'], retries: 2, interval: 100ms}}\n"
    )
    before = host.belljar.runs()
    found = host.refusal(policy(target), code=5, command=FETCH)
    assert host.kinds(before).count("cell.planned") == 1  # nothing ran in the sample's cell
    assert "the target cell shop is not ready" in found
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
