"""A node whose network goes: two nodes as `belljar fleet node` makes them, one of them in a network
namespace of its own, behind a cable that the test cuts."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import copy_store
from tests.integration.fleets import Fleet, failures, lines_until, nothing_runs
from tests.integration.processes import wait_for
from tests.integration.ray_cluster import descendants

from belljar.events import Kind
from belljar.ledger.listing import read_events
from belljar.ledger.verification import Status, verify

pytest.importorskip("ray", reason="the extra `fleet` is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.thorough,
    pytest.mark.alone,  # a node that is slow for twelve seconds counts as dead
]
NAMESPACE, CABLE = "belljar-far", "bjfleet0"
NEAR_IP, FAR_IP = "10.213.77.1", "10.213.77.2"


def network(*commands: str) -> None:
    """Run these commands of `ip`."""
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True, timeout=30)


@contextmanager
def cable() -> Iterator[None]:
    """A network namespace, and a cable into it."""
    try:
        network(
            f"netns add {NAMESPACE}",
            f"link add {CABLE} type veth peer name far netns {NAMESPACE}",
            f"address add {NEAR_IP}/30 dev {CABLE}",
            f"link set {CABLE} up",
            f"-n {NAMESPACE} address add {FAR_IP}/30 dev far",
            f"-n {NAMESPACE} link set far up",
            f"-n {NAMESPACE} link set lo up",
        )
        yield
    finally:
        words = ["ip", "netns", "pids", NAMESPACE]
        left = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
        for pid in map(int, left.stdout.split()):  # agents of Ray that outlive their raylet
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for words in (["link", "del", CABLE], ["netns", "del", NAMESPACE]):
            subprocess.run(["ip", *words], check=False, timeout=30)


def is_started(process: subprocess.Popen[bytes], log: Path) -> bool | None:
    """Whether Ray has started; None while it may yet."""
    if process.poll() is not None:
        return False
    return "runtime started" in log.read_text() or None


@contextmanager
def started_node(
    words: Sequence[str], log: Path, environment: Mapping[str, str], *, inside: bool
) -> Iterator[None]:
    """Run `belljar fleet node`."""
    # Not `ip netns exec`, whose new /sys hides the control groups that a container needs.
    prefix = ["nsenter", f"--net=/run/netns/{NAMESPACE}"] if inside else []
    command = [*prefix, sys.executable, "-m", "belljar", "fleet", "node", "--cells=2", *words]
    for _ in range(5):  # on a busy machine Ray may not start within its own half a minute
        with log.open("w") as out:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        is_up = partial(is_started, process, log)
        wait_for(lambda is_up=is_up: is_up() is not None, "a node", within_s=300)  # type: ignore[misc]
        if is_up():
            break
    try:
        assert is_up(), log.read_text()[-2000:]
        yield
    finally:
        for pid in descendants([process.pid]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(timeout=60)


@pytest.fixture
def cluster(prepared_home: Path, tmp_path: Path) -> Iterator[Fleet]:
    """Two nodes with two cells each: `near` beside the head, `far` behind the cable."""
    near, far, head = (copy_store(prepared_home, tmp_path / name) for name in ("n", "f", "head"))
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"{NEAR_IP}:{probe.getsockname()[1]}"
    with ExitStack() as stack:
        # A short name: the paths of Ray's sockets below it have at most 107 bytes.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp"))
        environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_TMPDIR": folder,
            "RAY_agent_register_timeout_ms": "120000",
            "RAY_worker_register_timeout_seconds": "600",
        }
        stack.enter_context(cable())
        port = address.rpartition(":")[2]
        first = ["--head", f"--ip={NEAR_IP}", f"--port={port}", "--name=near"]
        second = [f"--address={address}", f"--ip={FAR_IP}", "--name=far"]
        for home, words in ((near, first), (far, second)):
            mine = {**environment, "BELLJAR_HOME": str(home)}
            log = tmp_path / f"{home.name}.log"
            stack.enter_context(started_node(words, log, mine, inside=home is far))
        yield Fleet(tmp_path, [near, far], head, environment, address=f"ray://{address}")


def test_a_node_that_is_cut_off_ends_its_cells_and_its_samples_run_elsewhere(
    cluster: Fleet,
) -> None:
    """It is seen within 15 s, and its samples run on the other node, with both attempts on record.
    Behind the cut the node ends its cells itself, and seals a record that verifies."""
    far = cluster.homes[1]
    process = cluster.start_run("-T", "seconds=900", "-T", "slow_node=far")
    with process:
        lines_until(process, "runs on far", 1)
        wait_for(lambda: cluster.belljar("ps", home=far) != "no cells\n", "its cells", within_s=180)
        network(f"link set {CABLE} down")
        began = time.monotonic()
        lines_until(process, "far is lost", 1)
        assert time.monotonic() - began < 15
        out, errors = process.communicate(timeout=1500)
    assert process.returncode == 0, errors
    said = json.loads(out)
    assert [each["verdict"] for each in said["samples"]] == ["contained"] * 4
    assert "infrastructure failures: 0" not in said["fleet"][0]
    assert failures(Path(said["run_dir"]), "far") == ["the node did not answer"]
    wait_for(lambda: nothing_runs(cluster), "the end of its cells", within_s=180)
    (left,) = (far / "runs").iterdir()
    assert verify(left).status is Status.VERIFIED
    *_, end = read_events(left)
    assert (end.kind, end.data["outcome"]) == (Kind.RUN_FINISHED, "interrupted")
