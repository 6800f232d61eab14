"""A cell's port on a range's network, for root and for an ordinary user: what a microVM's guest can do
with it, what it can't (`tests/security/test_egress` shows it of the other tiers), and how all parts
end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.fakes.recorder import MemoryRecorder
from tests.integration.conftest import Belljar
from tests.integration.processes import wait_for
from tests.integration.test_microvm import cgroups_of, left_of
from tests.integration.vm_port import StandInPort, StandInRange, stand_in_range
from tests.integration.vm_port_owner import container_parts, parts_with_nic

from belljar.channel import ExecRequest
from belljar.errors import CellError, HostError
from belljar.events import Kind
from belljar.image.kernel import Kernel
from belljar.image.store import Image
from belljar.isolation.microvm.clone import open_vm
from belljar.isolation.microvm.template import ensure_template
from belljar.isolation.microvm.vmm import Vmm
from belljar.isolation.oci.open import open_container
from belljar.isolation.reap import list_cells, reap
from belljar.plan.model import MicrovmPlan
from belljar.process import ProcessId, identify, is_alive, kill, namespaces_of

pytestmark = [pytest.mark.vm, pytest.mark.root]
Parts = tuple[MicrovmPlan, Image, Kernel]
HERE = Path(__file__).parent
SCRIPTS = ("microvm_owner.py", "vm_port.py", "vm_port_owner.py", "vm_range.py")
EPERM, EACCES, EROFS, EADDRNOTAVAIL = 1, 13, 30, 99
SIZE = 3 << 20
one_backend = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@dataclass(frozen=True)
class Owner:
    """Runs `vm_port_owner.py` as root or as an ordinary user."""

    start: Callable[[str], subprocess.Popen[bytes]]
    belljar: Belljar

    def run(self, mode: str) -> dict[str, Any]:
        """All that it says, to its end."""
        with self.start(mode) as process:
            said, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
        return {
            name: value for line in said.splitlines() for name, value in json.loads(line).items()
        }


@pytest.fixture(params=["root", "user", "grouped"])
def owner(request: pytest.FixtureRequest) -> Iterator[Owner]:
    """Once for root, twice for an ordinary user with subordinate ids: without control groups, and
    in his own."""
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "cwd": "/",
    }
    if request.param == "root":
        belljar = Belljar(request.getfixturevalue("vm_home"))
        path = os.pathsep.join(filter(None, (str(HERE.parents[1]), os.environ.get("PYTHONPATH"))))
        argv = [sys.executable, str(HERE / "vm_port_owner.py")]
        yield Owner(
            lambda mode: subprocess.Popen(
                [*argv, mode], env=belljar.environment(PYTHONPATH=path), **pipes
            ),
            belljar,
        )
        assert belljar.leftovers() == []
        return
    user = request.getfixturevalue(request.param)
    folder = user.libraries.parent / "tests" / "integration"
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        shutil.copy(HERE / name, folder)
    fakes = folder.with_name("fakes")
    fakes.mkdir(exist_ok=True)
    shutil.copy(HERE.parent / "fakes" / "recorder.py", fakes)
    path = os.pathsep.join((str(user.libraries), str(folder.parents[1])))
    argv = [user.python, str(folder / "vm_port_owner.py")]
    ids: dict[str, Any] = {"user": user.uid, "group": user.gid, "extra_groups": []}

    def start(mode: str) -> subprocess.Popen[bytes]:
        given = [*argv, mode]
        if user.groups is not None:
            given = user.groups.enter(given, uid=user.uid, gid=user.gid)
        return subprocess.Popen(
            given,
            env=user.environment(PYTHONPATH=path),
            **pipes,
            **({} if user.groups is not None else ids),
        )

    yield Owner(start, user)


def check_guest(found: dict[str, Any], number: int) -> None:
    """What every guest must have found."""
    address, mac = f"10.77.0.{10 + number}", f"02:00:00:00:00:{10 + number:02x}"
    assert found["up"] == [address, True, 0, True]
    assert found["down"] == [address, True, SIZE, True]
    assert found["both"] == [address, True, 1 << 20, True]
    assert found["datagrams"] == [True] * 5
    assert found["low_port"] == 0
    assert (found["raw"], found["packet"], found["ping"]) == (EPERM, EPERM, EACCES)
    assert (found["forwarding"], found["ipv6_on"], found["ipv6"]) == (EROFS, EROFS, EADDRNOTAVAIL)
    assert found["changed"] == []
    assert found["addresses"] == {"lo": ["127.0.0.1/8"], "eth0": [f"{address}/32"]}
    assert found["links"]["eth0"] == [mac, 1500, True]
    assert found["routes"] == ["10.77.0.1 - eth0", "default 10.77.0.1 eth0"]
    assert found["neighbours"] == [["10.77.0.1", "02:00:00:00:01:01", ["PERMANENT"]]]
    assert found["resolver"] == "nameserver 10.77.0.53\n"
    assert found["edited"] is None


@pytest.mark.thorough_in("grouped", "user")
def test_what_a_guest_can_do_with_its_port(owner: Owner) -> None:
    """Two clones of one template have each the address that they were given: transfers of 3 MiB
    both ways arrive whole, so do datagrams up to the MTU; the workload's root changes no link,
    forges no packet, has no IPv6. On the link are IPv4 packets from the renewed MAC alone. The
    journal knew both jails; nothing is left."""
    said = owner.run("use")
    there = said["there"]
    for number in (1, 2):
        assert said[f"errors{number}"] == ""
        check_guest(said[f"found{number}"], number)
        assert said[f"kinds{number}"] == ["cell", "wire"]
        assert (said[f"cause{number}"], said[f"clean{number}"]) == ("", True)
    assert set(there["frames"]) == {f"{n} 0800 02:00:00:00:00:{10 + n:02x}" for n in (1, 2)}
    assert there["peers"] == {"10.77.0.11": 3, "10.77.0.12": 3}
    assert there["datagrams"] == {"10.77.0.11": 5, "10.77.0.12": 5}
    assert said["entries"] == 0
    assert said["events"].count("cell.destroyed") == 2


def known(pid: int) -> ProcessId:
    """It lives."""
    found = identify(pid)
    assert found is not None
    return found


def test_an_owner_that_is_killed(owner: Owner) -> None:
    """VMM and wire end by themselves; both are in the journal for whoever reaps."""
    with owner.start("hold") as process:
        line = (process.stdout or pytest.fail("no pipe")).readline()
        assert line, (process.stderr or pytest.fail("no pipe")).read().decode()
        told = json.loads(line)
        watched = [known(told["vmm"]), known(told["wire"])]
        helper = known(told["helper"])
        process.kill()
        wait_for(lambda: not any(map(is_alive, watched)), "the end of both")
        kill(helper)
    reaped = owner.belljar("reap")
    assert reaped.returncode == 0, reaped.stderr
    assert owner.belljar.leftovers() == []


def supervisor_of(stage: ProcessId) -> ProcessId:
    """A stage's parent."""
    stat = Path(f"/proc/{stage.pid}/stat").read_text()
    return known(int(stat.rpartition(")")[2].split()[1]))


def is_in_use(namespace: int) -> bool:
    """Whether any process is in this network namespace."""
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if str(link.readlink()) == f"net:[{namespace}]":
                return True
        except OSError:
            continue
    return False


@pytest.mark.thorough_in("user")
def test_an_owner_that_is_killed_while_a_containers_stage_waits(owner: Owner) -> None:
    """Stage and supervisor end by themselves, the network namespace with them; what the journal
    still knows is reaped."""
    with owner.start("wait") as process:
        line = (process.stdout or pytest.fail("no pipe")).readline()
        assert line, (process.stderr or pytest.fail("no pipe")).read().decode()
        stage = known(json.loads(line)["stage"])
        watched = [stage, supervisor_of(stage)]
        namespace = namespaces_of(stage.pid)["net"]
        process.kill()
        wait_for(lambda: not any(map(is_alive, watched)), "the end of the jail")
    wait_for(lambda: not is_in_use(namespace), "the end of the namespace")
    reaped = owner.belljar("reap")
    assert reaped.returncode == 0, reaped.stderr


# ---- as root, in this process


@pytest.fixture(scope="module")
def its_range() -> Iterator[StandInRange]:
    """One range for these; each test takes a port of its own."""
    with stand_in_range() as made:
        yield made


@pytest.fixture
def port(its_range: StandInRange, request: pytest.FixtureRequest) -> StandInPort:
    """A port that no other test has."""
    taken = request.config.stash.setdefault(PORTS_TAKEN, [0])
    taken[0] += 1
    return its_range.port(taken[0])


PORTS_TAKEN = pytest.StashKey[list[int]]()


@pytest.fixture(scope="module")
def made_of(vm_home: Path) -> Parts:
    """Of a machine with a network device."""
    return parts_with_nic(vm_home)


def wire_of(vm: Vmm) -> int:
    """Its pid on this host."""
    assert vm.wire is not None
    assert vm.wire.host_pid is not None
    return vm.wire.host_pid


async def shell(vm: Vmm, script: str) -> str:
    """What a script says."""
    outcome = await vm.client.exec(ExecRequest(argv=("/bin/sh", "-c", script), timeout_s=60))
    return outcome.stdout.decode()


PING = (
    "import socket; s=socket.create_connection(('10.77.0.1', 80), timeout=30);"
    " s.sendall(bytes(16)); print(len(s.makefile('rb').read(64)))"
)


@pytest.mark.anyio
@one_backend
@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (lambda vm: os.kill(wire_of(vm), signal.SIGKILL), "its wire was killed by signal SIGKILL"),
        (
            lambda vm: subprocess.run(
                [
                    "/usr/bin/nsenter",
                    "--net",
                    "--target",
                    str(wire_of(vm)),
                    "ip",
                    "link",
                    "delete",
                    "eth0",
                ],
                check=True,
            ),
            "its wire ended: its link was taken away",
        ),
    ],
    ids=["killed", "unplugged"],
)
async def test_the_wires_end_is_the_cells(
    vm_home: Path, made_of: Parts, port: StandInPort, end: Callable[[Vmm], object], cause: str
) -> None:
    """Without anybody's doing: the VMM is dead before anyone asks, the cause names the wire, and
    nothing is left."""
    async with open_vm(
        *made_of, home=vm_home, recorder=MemoryRecorder(), planned={}, port=port
    ) as vm:
        assert vm.host_pid is not None
        vmm = known(vm.host_pid)
        assert vm.cause_of_death() == ""
        end(vm)
        wait_for(lambda: not is_alive(vmm), "the VMM's end")
        assert await vm.wait_dead() == cause
        assert vm.death_limit() is None
        assert (await vm.destroy()).clean
        assert vm.cause_of_death() == cause
    assert left_of(vm_home) == []


@pytest.mark.anyio
@one_backend
async def test_the_vmms_end_is_named_as_ever(
    vm_home: Path, made_of: Parts, port: StandInPort
) -> None:
    """A VMM that is killed is a killed VMM, wire or no wire; and its owner's end is its owner's."""
    async with open_vm(
        *made_of, home=vm_home, recorder=MemoryRecorder(), planned={}, port=port
    ) as vm:
        assert vm.host_pid is not None
        os.kill(vm.host_pid, signal.SIGKILL)
        assert await vm.wait_dead() == "the VMM was killed by signal SIGKILL"
        assert (await vm.destroy()).clean
    assert left_of(vm_home) == []


@pytest.mark.anyio
@one_backend
async def test_hostile_frames_from_the_link(
    vm_home: Path, made_of: Parts, port: StandInPort, its_range: StandInRange
) -> None:
    """Frames for somebody else, broadcasts, tags, ARP, IPv6, of any length and many: the guest
    still answers, and nothing is heard of it but IPv4."""
    heads = (
        "ffffffffffff",
        "01005e000001",
        port.settings.mac.replace(":", ""),
        "333300000001",
        "020000000099",
    )
    kinds = ("0806", "86dd", "8100", "0800", "88b5", "0000")
    async with open_vm(
        *made_of, home=vm_home, recorder=MemoryRecorder(), planned={}, port=port
    ) as vm:
        for head in heads:
            for kind in kinds:
                for size in (0, 46, 1500):
                    frame = head + port.settings.gateway_mac.replace(":", "") + kind + "a5" * size
                    await anyio.to_thread.run_sync(
                        partial(its_range.ask, send=frame, port=port.number, times=60)
                    )
        assert await shell(vm, f'python3 -c "{PING}"') == "64\n"
        said = await anyio.to_thread.run_sync(partial(its_range.ask, look=0))
        assert {line for line in said["frames"] if line.startswith(f"{port.number} ")} == {
            f"{port.number} 0800 {port.settings.mac}"
        }


@pytest.mark.anyio
async def test_opened_and_cancelled(
    vm_home: Path, made_of: Parts, its_range: StandInRange, request: pytest.FixtureRequest
) -> None:
    """A cancellation at any moment of opening leaves nothing: no process, journal entry or control
    group of VMM or wire."""
    await ensure_template(*made_of, home=vm_home, recorder=MemoryRecorder())
    taken = request.config.stash.setdefault(PORTS_TAKEN, [0])
    for timeout_ms in (20, 80, 140, 180, 220, 300):
        taken[0] += 1
        recorder, port = MemoryRecorder(), its_range.port(taken[0])
        with anyio.move_on_after(timeout_ms / 1000):
            async with open_vm(*made_of, home=vm_home, recorder=recorder, planned={}, port=port):
                pass
        assert left_of(vm_home) == []
        assert cgroups_of(str(recorder.events[0].cell_id)) == []
        assert not any(map(identify, port.attached_pids))


class NoPort(StandInPort):
    """Of a range that is gone."""

    async def attach(self, pid: int) -> None:
        """It can't."""
        self.attached_pids.append(pid)
        raise HostError("the range is gone")


@pytest.mark.anyio
@one_backend
async def test_a_port_that_can_not_be_attached(
    vm_home: Path, made_of: Parts, its_range: StandInRange
) -> None:
    """The cell ends with the range's own words; its guest never ran; nothing is left."""
    recorder, port = MemoryRecorder(), NoPort(its_range, 200)
    with pytest.raises(HostError, match="the range is gone"):
        async with open_vm(*made_of, home=vm_home, recorder=recorder, planned={}, port=port):
            pytest.fail("it opened")
    assert Kind.CELL_RENEWED not in recorder.kinds()
    assert Kind.CELL_DESTROYED in recorder.kinds()
    assert (left_of(vm_home), list(map(identify, port.attached_pids))) == ([], [None])


@pytest.mark.anyio
@one_backend
@pytest.mark.parametrize("tier", ["container", "gvisor"])
async def test_a_containers_port_that_can_not_be_attached(
    vm_home: Path, its_range: StandInRange, tier: str
) -> None:
    """The cell ends with the range's own words, before anything of the runtime's ran; its
    destruction is on record and nothing is left."""
    made, recorder = await container_parts(tier, vm_home), MemoryRecorder()
    port = NoPort(its_range, 201)
    with pytest.raises(HostError, match="the range is gone"):
        async with open_container(
            made.plan, made.image, home=vm_home, recorder=recorder, planned={}, port=port
        ):
            pytest.fail("it opened")
    ended = ["cell.planned", "cell.starting", "cell.destroyed", "cell.failed"]
    assert [kind.value for kind in recorder.kinds()] == ended
    assert (left_of(vm_home), list(map(identify, port.attached_pids))) == ([], [None])


class DyingPort(StandInPort):
    """Who waits for it is looked at, and dies meanwhile."""

    settings_there = ""

    async def attach(self, pid: int) -> None:
        """Of a dead process."""
        names = (
            "ipv4/ip_unprivileged_port_start",
            "ipv4/ping_group_range",
            "ipv6/conf/all/disable_ipv6",
        )
        argv = ["/usr/bin/nsenter", "--net", "--target", str(pid), "/usr/bin/cat"]
        looked = await anyio.run_process([*argv, *(f"/proc/sys/net/{name}" for name in names)])
        self.settings_there = looked.stdout.decode()
        stage = known(pid)
        os.kill(pid, signal.SIGKILL)
        await anyio.to_thread.run_sync(wait_for, lambda: not is_alive(stage), "the stage's end")
        await super().attach(pid)


@pytest.mark.anyio
@one_backend
async def test_a_stage_that_dies_while_it_waits(vm_home: Path, its_range: StandInRange) -> None:
    """What is told is how the stage ended, not that a link could not be put into nothing; no link
    is left. Where it waited, low ports are everybody's, nobody may ping, and IPv6 is off."""
    made = await container_parts("container", vm_home)
    port = DyingPort(its_range, 202)
    with pytest.raises(CellError, match="the jail ended while it came up"):
        async with open_container(
            made.plan, made.image, home=vm_home, recorder=MemoryRecorder(), planned={}, port=port
        ):
            pytest.fail("it opened")
    assert port.settings_there.split() == ["0", "1", "0", "1"]
    said = await anyio.to_thread.run_sync(partial(its_range.ask, look=0))
    assert "p202" not in said["links"]
    assert left_of(vm_home) == []


@pytest.mark.anyio
@one_backend
async def test_a_guest_that_can_not_be_renewed_is_not_tried_twice(
    vm_home: Path, made_of: Parts, port: StandInPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port is attached once: what fails after that is the cell's failure, though the template may
    be to blame."""

    async def refuse(*_: object, **__: object) -> None:
        raise CellError("no answer")

    monkeypatch.setattr("belljar.channel.GuestClient.renew", refuse)
    with pytest.raises(CellError, match="could not be renewed"):
        async with open_vm(
            *made_of, home=vm_home, recorder=MemoryRecorder(), planned={}, port=port
        ):
            pytest.fail("it opened")
    assert len(port.attached_pids) == 1
    assert left_of(vm_home) == []


@pytest.mark.anyio
@one_backend
async def test_a_machine_without_a_port(vm_home: Path, made_of: Parts, port: StandInPort) -> None:
    """No device: nothing but a loopback in the guest, no wire in the journal. Port and plan must
    fit."""
    plan, image, kernel = made_of
    without = replace(plan, vm=replace(plan.vm, nic=False))
    async with open_vm(
        without, image, kernel, home=vm_home, recorder=MemoryRecorder(), planned={}
    ) as vm:
        assert await shell(vm, "ls /sys/class/net") == "lo\n"
        assert vm.wire is None
        assert [cell.kind for cell in list_cells(vm_home) if cell.state == "alive"] == ["cell"]
    for mismatched, given in ((without, port), (plan, None)):
        with pytest.raises(ValueError, match="a port goes with"):
            async with open_vm(
                mismatched,
                image,
                kernel,
                home=vm_home,
                recorder=MemoryRecorder(),
                planned={},
                port=given,
            ):
                pytest.fail("it opened")
    assert await reap(vm_home) == ()
