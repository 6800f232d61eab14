"""The air gap, in network namespaces of the tests' own: what the check sees, that it sends nothing,
and what a policy that requires one does."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.integration.gapped import gapped, whole_machine

from belljar.events import Kind
from belljar.ledger.listing import read_events
from belljar.ledger.verification import verify
from belljar.libc import enter_namespace
from belljar.network.syscalls import CLONE_NEWNET

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces"),
]
ROOT = Path(__file__).parents[2]
POLICY = "belljar: 1\nrisk: low\nhost:\n  air_gap: required\n"
ALL_PACKETS = 0x0003
# ICMPv6 that the kernel sends of itself when an interface comes up: router solicitation, MLD.
OWN = {133, 143}

TASK = """
import subprocess
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import sandbox

@solver
def work(*commands: str) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox().exec(["true"])
        for command in commands:
            subprocess.run(command.split(), check=True)
        return state
    return solve

@task
def stays() -> Task:
    return Task(dataset=[Sample(id="s", input="x")], solver=work(), sandbox=("belljar", "policy.yaml"))

@task
def leaves() -> Task:
    return Task(dataset=[Sample(id="s", input="x")], solver=work("touch left"), sandbox=("belljar", "policy.yaml"))

@task
def opens() -> Task:
    up = ("ip link add x0 type veth peer name x1", "ip link set x0 up", "ip link del x0")
    return Task(dataset=[Sample(id="s", input="x")], solver=work(*up), sandbox=("belljar", "policy.yaml"))
"""


def ip(*words: str) -> None:
    inside = ["nsenter", f"--net={words[1]}", "--"] if words[0] == "-n" else []
    rest = words[2:] if inside else words
    subprocess.run([*inside, "ip", *rest], check=True, capture_output=True)


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Makes network namespaces, each mounted on a file; removed afterwards."""
    made: list[Path] = []

    def make() -> str:
        made.append(tmp_path / f"net-{len(made)}")
        made[-1].touch()
        subprocess.run(["unshare", f"--net={made[-1]}", "true"], check=True)
        return str(made[-1])

    yield make
    for place in made:
        subprocess.run(["umount", place], check=True)


def run(
    *command: str, home: Path, inside: str = "", timeout_s: float = 300, **more: str
) -> subprocess.CompletedProcess[str]:
    """A command with this store, in the namespace of this file or as it stands."""
    place = ["nsenter", f"--net={inside}", "--"] if inside else []
    # What lies in the usual place is swept by others: their process numbers are not of here.
    env = {**os.environ, "BELLJAR_HOME": str(home), "TMPDIR": str(home), "NO_COLOR": "1", **more}
    return subprocess.run(
        [*place, *command],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def belljar(*words: str) -> list[str]:
    return [sys.executable, "-m", "belljar", *words]


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    assert done.returncode in (0, 3), done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)["findings"]}


@pytest.mark.promise("1.10")
def test_a_pid_namespace_of_its_own_hides_networks(tmp_path: Path) -> None:
    """Processes outside it may have networks, so that the check can't tell; on a whole machine with
    loopback alone, every way is absent, and the exit code says so."""
    whole = run(*gapped(*whole_machine("airgap", "check", "--json")), home=tmp_path)
    assert {each["state"] for each in findings(whole).values()} == {"absent"}
    assert whole.returncode == 0
    found = findings(run(*gapped(*belljar("airgap", "check", "--json")), home=tmp_path))
    assert found.pop("namespaces")["state"] == "can't tell"
    assert {each["state"] for each in found.values()} == {"absent"}


@pytest.mark.promise("1.10")
def test_an_interface_without_any_route_is_a_way(
    namespace: Callable[[], str], tmp_path: Path
) -> None:
    """Without a route or any address, packets leave by a socket bound to the interface."""
    inside = namespace()
    ip("-n", inside, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
    for device in ("lo", "v0", "v1"):
        ip("-n", inside, "link", "set", device, "up")
    found = findings(run(*belljar("airgap", "check", "--json"), home=tmp_path, inside=inside))
    assert found["IPv4 TCP"]["state"] == "present"
    assert found["IPv4 UDP"]["state"] == "present"
    assert found["interface v0"]["state"] == "present"


@pytest.mark.promise("1.10")
def test_a_device_in_another_namespace_is_a_way(
    namespace: Callable[[], str], tmp_path: Path
) -> None:
    """A pair to a further namespace is none."""
    other = namespace()
    ip("-n", other, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
    ip("-n", other, "link", "set", "v0", "up")
    os.mkfifo(ready := tmp_path / "ready")
    inside = f"nsenter --net={other} sh -c 'echo > {ready}; exec sleep 300' & read _ < {ready}; "
    check = gapped(
        "sh", "-c", f'{inside}exec "$@"', "sh", *whole_machine("airgap", "check", "--json")
    )
    assert findings(run(*check, home=tmp_path))["namespaces"]["state"] == "absent"
    ip("-n", other, "tuntap", "add", "t0", "mode", "tap")
    ip("-n", other, "link", "set", "t0", "up")
    assert findings(run(*check, home=tmp_path))["namespaces"]["state"] == "present"


@pytest.mark.promise("1.10")
@pytest.mark.parametrize(
    ("covered", "state"),
    [("exec 7<in/net; umount -l in/net", "present"), ("mount --bind ready in/net", "can't tell")],
)
def test_a_namespace_without_a_process_is_found(tmp_path: Path, covered: str, state: str) -> None:
    """A process holds it open, or sees it mounted below a FIFO, which whoever looks must not open:
    then it can't be told."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/net").touch()
    os.mkfifo(tmp_path / "ready")
    tap = 'unshare --net=in/net sh -c "ip tuntap add t0 mode tap; ip link set t0 up"'
    hold = f"{tap}; {covered}; echo > ready; exec sleep 300"
    hold = f"(cd {tmp_path}; exec unshare --mount sh -c '{hold}') & "
    hold += f'read _ < {tmp_path}/ready; exec "$@"'
    check = gapped("sh", "-c", hold, "sh", *whole_machine("airgap", "check", "--json"))
    assert findings(run(*check, home=tmp_path))["namespaces"]["state"] == state


def packets_of(outside: str) -> socket.socket:
    """Every packet that arrives in a namespace, from now on."""

    def listen() -> socket.socket:
        with Path(outside).open("rb") as place:
            enter_namespace(place.fileno(), CLONE_NEWNET)
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PACKETS))
        sock.setblocking(False)
        return sock

    with ThreadPoolExecutor(1) as thread:  # it ends in that namespace
        return thread.submit(listen).result()


def received(sock: socket.socket) -> list[bytes]:
    """The packets so far that no kernel sends of itself."""
    frames: list[bytes] = []
    while True:
        try:
            frame, where = sock.recvfrom(65536)
        except BlockingIOError:
            return frames
        is_icmp6 = frame[12:14] == b"\x86\xdd" and (frame[20] == 58 or frame[20] == 0)
        kind = frame[62] if is_icmp6 and frame[20] == 0 else frame[54] if is_icmp6 else 0
        if where[2] != socket.PACKET_OUTGOING and kind not in OWN:
            frames.append(frame)


@pytest.mark.promise("1.10")
def test_the_check_sends_nothing(namespace: Callable[[], str], tmp_path: Path) -> None:
    """With an interface, routes, resolvers and a proxy that all could be reached, no packet of the check arrives outside.
    A datagram does, so the count can fail."""
    inside, outside = namespace(), namespace()
    ip("-n", inside, "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", outside)
    mac = "02:00:00:00:00:01"
    ip("-n", outside, "link", "set", "v1", "addrgenmode", "none")
    ip("-n", outside, "link", "set", "v1", "address", mac, "up")
    ip("-n", outside, "addr", "add", "192.0.2.1/24", "dev", "v1")
    ip("-n", inside, "link", "set", "v0", "addrgenmode", "none")
    for device in ("lo", "v0"):
        ip("-n", inside, "link", "set", device, "up")
    for address, peer in (("192.0.2.9/24", "192.0.2.1"), ("2001:db8::9/64", "2001:db8::1")):
        ip("-n", inside, "addr", "add", address, "dev", "v0", *(["nodad"] if ":" in peer else []))
        ip("-n", inside, "neigh", "add", peer, "lladdr", mac, "dev", "v0")
        ip("-n", inside, "route", "add", "default", "via", peer)
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 192.0.2.1\nnameserver 2001:db8::1\n")
    bind = f'mount --bind {resolver} /etc/resolv.conf && exec "$@"'
    check = ["unshare", "--mount", "sh", "-c", bind, "sh", *belljar("airgap", "check", "--json")]
    proxy: dict[str, Any] = {"https_proxy": "http://someone:secret@192.0.2.1:3128"}
    with packets_of(outside) as sock:
        received(sock)
        done = run(*check, home=tmp_path, inside=inside, **proxy)
        assert received(sock) == []
        found = findings(done)
        ways = ("IPv4 TCP", "IPv4 UDP", "IPv6 TCP", "IPv6 UDP", "DNS", "proxies", "interface v0")
        assert {found[name]["state"] for name in ways} == {"present"}
        assert "secret" not in done.stdout
        run("bash", "-c", "echo > /dev/udp/192.0.2.1/9", home=tmp_path, inside=inside)
        assert received(sock)


@pytest.mark.promise("1.10")
@pytest.mark.slow
def test_a_policy_that_requires_an_air_gap_has_one(home: Path, tmp_path: Path) -> None:
    """With an interface nothing runs, neither in a cell nor beside it, and the exit code is the
    host's. Without, the facts are on record at the start and at the end; an interface that came up
    in between and is gone again makes every sample void. Each record verifies."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "task.py").write_text(TASK.replace("left", f"{tmp_path}/left"))
    tasks = {name: f"run {tmp_path}/task.py@{name} --model mockllm/model" for name in RAN}
    refused = f"exec {tmp_path}/policy.yaml -- true then {tasks['leaves']}"
    words = f"{refused} then ip link del x0 then {tasks['stays']} then {tasks['opens']}"
    up = 'ip link add x0 type veth peer name x1; ip link set x0 up; exec "$@"'
    before = {*home.glob("runs/*")}
    done = run(*gapped("sh", "-c", up, "sh", *whole_machine(*words.split())), home=home)
    codes = [int(code) for code in re.findall("^exit code (.*)$", done.stderr, re.MULTILINE)]
    assert [*codes, done.returncode] == [3, 3, 3, 0, 2], done.stderr
    assert not (tmp_path / "left").exists()
    execed, left, *ended = sorted({*home.glob("runs/*")} - before)
    assert all(verify(path).problem is None for path in (execed, left, *ended))
    for path in (execed, left):
        lines = list(read_events(path))
        kinds = {line.kind for line in lines}
        assert Kind.POLICY_REFUSED in kinds
        assert not {Kind.EXEC_STARTED, Kind.CELL_PLANNED, Kind.RUN_EVALUATED} & kinds
        (checked,) = [line.data for line in lines if line.kind is Kind.AIR_GAP_CHECKED]
        assert checked["air_gapped"] is False
        present = {each["name"] for each in checked["findings"] if each["state"] != "absent"}
        assert {"interface x0", "IPv4 UDP"} <= present
    for path, (verdict, reasons) in zip(ended, (RAN["stays"], RAN["opens"]), strict=True):
        found = json.loads((path / "findings.json").read_bytes())
        of_samples = [each for sample in found["samples"] for each in sample["reasons"]]
        assert (found["verdict"], {each["code"] for each in of_samples}) == (verdict, reasons)
        checks = [line.data for line in read_events(path) if line.kind is Kind.AIR_GAP_CHECKED]
        assert [each["phase"] for each in checks] == ["start", "end"]


RAN: dict[str, tuple[str, set[str]]] = {
    "leaves": ("void", set()),
    "stays": ("contained", set()),
    "opens": ("void", {"air_gap_broken"}),
}
