"""A cell's port on a range's network."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.fakes.pcapng import IN, packets
from tests.fakes.recorder import MemoryRecorder
from tests.integration.as_user import REPOSITORY, UsersBelljar, copy_distributions
from tests.integration.microvm_owner import parts
from tests.integration.processes import wait_for
from tests.integration.range_programs.scene import PLAIN, Scene
from tests.integration.remains import below
from tests.integration.test_microvm import cgroups_of, left_of

from belljar.cell.ranges import range_port
from belljar.image.kernel import Kernel
from belljar.image.store import Image
from belljar.isolation.microvm.template import ensure_template, find_job, open_vm
from belljar.isolation.microvm.vmm import Vmm
from belljar.isolation.reap import list_cells
from belljar.isolation.renewal import GivenPort
from belljar.network.owner.processes import PACKETS, started_fork_server
from belljar.network.owner.range import NetworkRange
from belljar.plan.model import MicrovmPlan
from belljar.process import ProcessId, identify, is_alive

pytestmark = [pytest.mark.vm, pytest.mark.root]
EPERM, EACCES, EROFS, EADDRNOTAVAIL = 1, 13, 30, 99
CELL = (
    "belljar: 1\nrisk: low\ntier: microvm\nuser: root\nresources: {cpus: 1, memory: 256MiB,"
    " disk: 64MiB, processes: 64, lifetime: 5m}\n"
)
SHOP = """\
network:
  stand_ins:
    shop:
      kind: http
      names: [shop.example]
      files: site
      routes: [{path: /, file: large}, {path: /, method: POST, body: "{{ body | length }}"}]
"""
SIZES = (60, 512, 1232, 1472)  # up to the MTU
IN_GUEST = r"""
import hashlib, http.client, json, os, socket, subprocess, sys
found = {}
def note(name, work):
    try:
        found[name] = work()
    except OSError as exc:
        found[name] = exc.errno
def asked(method, body=None):
    connection = http.client.HTTPConnection("shop.example", timeout=120)
    connection.request(method, "/", body)
    return connection.getresponse().read()
def datagram(size):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(60)
        s.sendto(b"\0\1\1\0\0\1\0\0\0\0\0\0\1a\0\0\1\0\1" + os.urandom(size - 19), (resolver, 53))
        return len(s.recv(4096)) >= 12
def made(*kind):
    socket.socket(*kind).close()
    return 0
def low_port():
    with socket.socket() as s:
        s.bind(("0.0.0.0", 80)); s.listen()
        socket.create_connection(("127.0.0.1", 80), timeout=60).close()
    return 0
def to(path):
    with open(path, "w") as file:
        file.write("1")
    return 0
def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True).returncode
def shown(*words):
    return json.loads(subprocess.run(["ip", "-j", *words], capture_output=True).stdout or "[]")
found["resolver"] = open("/etc/resolv.conf").read()
resolver = found["resolver"].split()[1]
note("down", lambda: hashlib.sha256(asked("GET")).hexdigest())
def upload():
    sent = os.urandom(3 << 18)
    assert int(asked("POST", sent)) > 0
    return hashlib.sha256(sent).hexdigest()
note("up", lambda: [upload() for _ in range(4)])
note("datagrams", lambda: [datagram(size) for size in json.loads(sys.argv[1])])
note("low_port", low_port)
note("raw", lambda: made(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
note("packet", lambda: made(socket.AF_PACKET, socket.SOCK_RAW, 0x0300))
note("ping", lambda: made(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP))
note("forwarding", lambda: to("/proc/sys/net/ipv4/ip_forward"))
note("ipv6_on", lambda: to("/proc/sys/net/ipv6/conf/all/disable_ipv6"))
note("ipv6", lambda: socket.create_connection(("::1", 80), timeout=1))
changes = ["link set eth0 down", "link set eth0 address 02:00:00:00:00:09", "link add x type veth",
           "address add 10.77.0.9/32 dev eth0", "route add 10.99.0.0/16 dev eth0",
           f"neigh replace {resolver} lladdr 02:00:00:00:00:09 dev eth0"]
found["changed"] = [words for words in changes if ip(*words.split()) == 0]
found["addresses"] = {l["ifname"]: [f'{a["local"]}/{a["prefixlen"]}' for a in l["addr_info"]]
                      for l in shown("address")}
found["links"] = {l["ifname"]: [l["address"], l["mtu"], "UP" in l["flags"]] for l in shown("link")}
found["routes"] = sorted(f'{r["dst"]} {r.get("gateway", "-")} {r["dev"]}' for r in shown("route"))
found["neighbours"] = [[n["dst"], n["state"]] for n in shown("neigh")]
note("edited", lambda: [to("/etc/resolv.conf"), os.rename("/etc/resolv.conf", "/etc/r")][0])
print(json.dumps(found))
"""


@pytest.fixture
def who(user: UsersBelljar) -> UsersBelljar:
    """An ordinary user with subordinate ids, and what stand-ins need."""
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    for name in ("network", "stand-ins"):
        copy_distributions(extras["optional-dependencies"][name], user.libraries)
    return user


def policy_of(who: UsersBelljar) -> tuple[str, bytes]:
    """A microVM with a shop, where its user can read it, and a file of the shop's."""
    folder = who.home.parent / "policy"
    (folder / "site").mkdir(parents=True, exist_ok=True)
    (folder / "site/large").write_bytes(large := os.urandom(3 << 20))
    (folder / "policy.yaml").write_text(CELL + SHOP)
    return str(folder / "policy.yaml"), large


def test_what_a_guest_can_do_with_its_port(who: UsersBelljar) -> None:
    """Transfers of 3 MiB both ways arrive whole, so do datagrams up to the MTU."""
    policy, large = policy_of(who)
    done = who("exec", policy, "--", "python3", "-c", IN_GUEST, json.dumps(SIZES))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    check_guest(found, large)
    run = who.runs()[-1]
    events = [line for line in who.events(run) if line["kind"].startswith("network.")]
    bodies = [body for line in events for body in line.get("bodies", ())]
    assert {*found["up"]} <= {body["sha256"] for body in bodies}
    assert set(SIZES) <= {body["total_bytes"] for body in bodies}
    (record,) = run.glob(f"ranges/*/{PACKETS}")
    assert senders(record) == {("0800", found["links"]["eth0"][0])}
    assert who.leftovers() == []


def senders(record: Path) -> set[tuple[str, str]]:
    """Kind and sender of each frame that came from a cell."""
    frames = [frame for _, frame, way in packets(record.read_bytes()) if way == IN]
    return {(frame[12:14].hex(), frame[6:12].hex(":")) for frame in frames}


def check_guest(found: dict[str, Any], large: bytes) -> None:
    gateway = found["resolver"].split()[1]
    assert found["resolver"] == f"nameserver {gateway}\n"
    assert found["down"] == hashlib.sha256(large).hexdigest()
    assert found["datagrams"] == [True] * len(SIZES)
    assert found["low_port"] == 0
    assert (found["raw"], found["packet"], found["ping"]) == (EPERM, EPERM, EACCES)
    assert (found["forwarding"], found["ipv6_on"], found["ipv6"]) == (EROFS, EROFS, EADDRNOTAVAIL)
    assert found["changed"] == []
    assert found["addresses"]["lo"] == ["127.0.0.1/8"]
    (address,) = found["addresses"]["eth0"]
    assert address.endswith("/32")
    assert found["links"].keys() == {"lo", "eth0"}
    assert found["links"]["eth0"][1:] == [1500, True]
    assert found["routes"] == sorted([f"{gateway} - eth0", f"default {gateway} eth0"])
    assert found["neighbours"] == [[gateway, ["PERMANENT"]]]
    assert found["edited"] == 0


def known(pid: int) -> ProcessId:
    found = identify(pid)
    assert found is not None
    return found


def test_an_owner_that_is_killed(who: UsersBelljar) -> None:
    """VMM, wire and all else below it end by themselves; what is in the journal is reaped."""
    policy, _ = policy_of(who)
    with who.start("exec", policy, "--", "sh", "-c", "echo up; exec sleep 600") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n", process.stderr and process.stderr.read()
        watched = [known(pid) for pid, _ in below(process.pid)]
        jails = {cell.kind for cell in list_cells(who.home) if cell.state == "alive"}
        assert {"cell", "wire"} <= jails
        process.kill()
    wait_for(lambda: not any(map(is_alive, watched)), "the end of all")
    reaped = who("reap")
    assert reaped.returncode == 0, reaped.stderr
    assert who.leftovers() == []


# ---- as root, in this process


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def ranges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store of ranges with one parent for their processes."""
    home = tmp_path_factory.mktemp("ranges")
    with started_fork_server(home, PLAIN):
        yield home


@pytest.fixture
async def network(ranges: Path) -> AsyncIterator[tuple[Scene, NetworkRange]]:
    """A range with a port that no other test has."""
    scene = Scene(ranges)
    async with scene.open() as made:
        yield scene, made


@pytest.fixture
def port(network: tuple[Scene, NetworkRange]) -> GivenPort:
    return range_port(network[1], "agent", is_machine=True)


Parts = tuple[MicrovmPlan, Image, Kernel]


@pytest.fixture(scope="module")
def made_of(vm_home: Path) -> Parts:
    plan, image, kernel = parts(vm_home)
    return replace(plan, vm=replace(plan.vm, nic=True)), image, kernel


@asynccontextmanager
async def machine(
    made: Parts, home: Path, port: GivenPort | None, recorder: MemoryRecorder | None = None
) -> AsyncIterator[Vmm]:
    """A virtual machine at this port; nothing of it is left."""
    recorder = recorder or MemoryRecorder()
    try:
        async with open_vm(*made, home=home, recorder=recorder, planned={}, port=port) as vm:
            yield vm
    finally:
        assert left_of(home) == []


def wire_of(vm: Vmm) -> int:
    assert vm.wire is not None
    assert vm.wire.host_pid is not None
    return vm.wire.host_pid


ENDS: dict[str, Callable[[Vmm], object]] = {
    "its wire ended: SIGKILL": lambda vm: os.kill(wire_of(vm), signal.SIGKILL),
    "the VMM was killed by signal SIGKILL": lambda vm: os.kill(vm.host_pid or -1, signal.SIGKILL),
}


@pytest.mark.anyio
@pytest.mark.parametrize("cause", ENDS)
async def test_the_wires_end_is_the_cells(
    vm_home: Path, made_of: Parts, port: GivenPort, cause: str
) -> None:
    """The VMM is dead before anyone asks, the cause names who ended first."""
    async with machine(made_of, vm_home, port) as vm:
        assert vm.host_pid is not None
        vmm = known(vm.host_pid)
        assert vm.cause_of_death() == ""
        ENDS[cause](vm)
        wait_for(lambda: not is_alive(vmm), "the VMM's end")
        assert await vm.wait_dead() == cause
        assert vm.death_limit() is None
        assert (await vm.destroy()).clean
        assert vm.cause_of_death() == cause


@pytest.mark.anyio
async def test_opened_and_cancelled(vm_home: Path, made_of: Parts, port: GivenPort) -> None:
    """A cancellation at any moment of opening leaves nothing."""
    await ensure_template(find_job(*made_of, vm_home), MemoryRecorder())
    attached_pids = list[int]()

    async def attach(pid: int) -> None:
        attached_pids.append(pid)
        await port.attach(pid)

    noting = replace(port, attach=attach)
    for timeout_ms in (20, 80, 140, 180, 220, 300):
        recorder = MemoryRecorder()
        with anyio.move_on_after(timeout_ms / 1000):
            async with machine(made_of, vm_home, noting, recorder):
                pass
        assert left_of(vm_home) == []
        assert cgroups_of(str(recorder.events[0].cell_id)) == []
        assert not any(map(identify, attached_pids))
