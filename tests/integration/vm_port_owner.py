"""Cells with ports, as their owner has them: `vm_port_owner.py MODE` prints JSON lines. A program of
its own, so that an ordinary user can run it and so that it can be killed. MODE: `use` tries in two
clones of one template what `IN_GUEST` tries; `hold` opens one and waits for the end of standard
input; `wait` does so before a container's port is attached.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from tests.fakes.recorder import MemoryRecorder
from tests.integration.microvm_owner import parts
from tests.integration.vm_port import StandInPort, StandInRange, stand_in_range

from belljar.cell.parts import ContainerParts, gather_parts
from belljar.channel import ExecRequest
from belljar.image.kernel import Kernel
from belljar.image.store import Image
from belljar.isolation.microvm.clone import open_vm
from belljar.isolation.oci.open import open_container
from belljar.plan.model import MicrovmPlan
from belljar.policy.load import load_policy
from belljar.store.journal import Journal

CONTAINER = (
    "belljar: 1\nrisk: low\ntier: {tier}\nuser: root\nresources: {{memory: 256MiB, disk: 64MiB,"
    " processes: 64, lifetime: 5m}}\n"
)
IN_GUEST = r"""
import hashlib, json, os, socket, struct, subprocess
found = {}
SIZE = 3 << 20
def note(name, work):
    try:
        found[name] = work()
    except OSError as exc:
        found[name] = exc.errno
def transfer(up, down):
    contents = os.urandom(up)
    with socket.create_connection(("10.77.0.1", 80), timeout=60) as s:
        s.sendall(struct.pack("<QQ", up, down) + contents)
        answer = b"".join(iter(lambda: s.recv(1 << 16), b""))
        local = s.getsockname()[0]
    arrived = answer[:32] == hashlib.sha256(contents).digest()
    return [local, arrived, len(answer) - 64, hashlib.sha256(answer[32:-32]).digest() == answer[-32:]]
def datagram(size):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(10)
        question = os.urandom(size)
        s.sendto(question, ("10.77.0.53", 53))
        return s.recv(4096) == question[::-1]
def made(*kind):
    socket.socket(*kind).close()
    return 0
def low_port():
    with socket.socket() as s:
        s.bind(("0.0.0.0", 80)); s.listen()
        socket.create_connection(("127.0.0.1", 80), timeout=10).close()
    return 0
def to(path):
    with open(path, "w") as file:
        file.write("1")
    return 0
def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True).returncode
def shown(*words):
    return json.loads(subprocess.run(["ip", "-j", *words], capture_output=True).stdout or "[]")
note("up", lambda: transfer(SIZE, 0))
note("down", lambda: transfer(0, SIZE))
note("both", lambda: transfer(1 << 20, 1 << 20))
note("datagrams", lambda: [datagram(size) for size in (12, 60, 512, 1232, 1472)])
note("low_port", low_port)
note("raw", lambda: made(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
note("packet", lambda: made(socket.AF_PACKET, socket.SOCK_RAW, 0x0300))
note("ping", lambda: made(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP))
note("forwarding", lambda: to("/proc/sys/net/ipv4/ip_forward"))
note("ipv6_on", lambda: to("/proc/sys/net/ipv6/conf/all/disable_ipv6"))
note("ipv6", lambda: socket.create_connection(("::1", 80), timeout=1))
changes = {"link_down": "link set eth0 down", "link_mac": "link set eth0 address 02:00:00:00:00:09", "new_link": "link add x type veth",
           "address": "address add 10.77.0.9/32 dev eth0", "route": "route add 10.99.0.0/16 dev eth0",
           "neighbour": "neigh replace 10.77.0.1 lladdr 02:00:00:00:00:09 dev eth0"}
found["changed"] = [name for name, words in changes.items() if ip(*words.split()) == 0]
found["addresses"] = {link["ifname"]: [f'{a["local"]}/{a["prefixlen"]}' for a in link["addr_info"]] for link in shown("address")}
found["links"] = {link["ifname"]: [link["address"], link["mtu"], "UP" in link["flags"]] for link in shown("link")}
found["routes"] = sorted(f'{r["dst"]} {r.get("gateway", "-")} {r["dev"]}' for r in shown("route"))
found["neighbours"] = [[n["dst"], n["lladdr"], n["state"]] for n in shown("neigh")]
found["resolver"] = open("/etc/resolv.conf").read()
note("edited", lambda: [open("/etc/resolv.conf", "w").write("nameserver 8.8.8.8\n"), os.rename("/etc/resolv.conf", "/etc/r"), os.unlink("/etc/r")][-1])
print(json.dumps(found))
"""


def parts_with_nic(home: Path) -> tuple[MicrovmPlan, Image, Kernel]:
    """As `parts`, of a machine with a network device."""
    plan, image, kernel = parts(home)
    return replace(plan, vm=replace(plan.vm, nic=True)), image, kernel


async def container_parts(tier: str, home: Path) -> ContainerParts:
    """What `open_cell` would make a container of."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "policy.yaml"
        file.write_text(CONTAINER.format(tier=tier))
        made = await anyio.to_thread.run_sync(gather_parts, load_policy(file), home)
    if not isinstance(made, ContainerParts):
        raise TypeError(made)
    return made


def say(**data: Any) -> None:  # noqa: ANN401 - whatever JSON takes
    """One line."""
    print(json.dumps(data), flush=True)


async def use(home: Path, its_range: StandInRange) -> None:
    """Two clones, one after the other, and what came of it."""
    made, recorder = parts_with_nic(home), MemoryRecorder()
    for number in (1, 2):
        async with open_vm(
            *made, home=home, recorder=recorder, planned={}, port=its_range.port(number)
        ) as vm:
            outcome = await vm.client.exec(
                ExecRequest(argv=("python3", "-c", IN_GUEST), timeout_s=120)
            )
            say(
                **{
                    f"errors{number}": outcome.stderr.decode(),
                    f"found{number}": json.loads(outcome.stdout or b"{}"),
                }
            )
            kinds = sorted(entry.kind for entry in Journal(home).entries())
            cause, destruction = vm.cause_of_death(), await vm.destroy()
            say(
                **{
                    f"kinds{number}": kinds,
                    f"cause{number}": cause,
                    f"clean{number}": destruction.clean,
                }
            )
    say(
        events=[event.kind.value for event in recorder.events], entries=len(Journal(home).entries())
    )
    say(there=its_range.ask(look=0))


async def hold(home: Path, its_range: StandInRange) -> None:
    """One, for somebody else to see to."""
    port = its_range.port(1)
    async with open_vm(
        *parts_with_nic(home), home=home, recorder=MemoryRecorder(), planned={}, port=port
    ) as vm:
        say(vmm=vm.host_pid, wire=port.attached_pids[0], helper=its_range.pid)
        await anyio.to_thread.run_sync(sys.stdin.read)


class WaitingPort(StandInPort):
    """It says which process waits for it, and is attached when standard input ends."""

    async def attach(self, pid: int) -> None:
        """As the protocol has it."""
        say(stage=pid)
        await anyio.to_thread.run_sync(sys.stdin.read)
        await super().attach(pid)


async def wait(home: Path, its_range: StandInRange) -> None:
    """A container whose stage waits for its link."""
    made = await container_parts("container", home)
    port = WaitingPort(its_range, 1)
    async with open_container(
        made.plan, made.image, home=home, recorder=MemoryRecorder(), planned={}, port=port
    ):
        raise RuntimeError("it opened")


def main(mode: str) -> None:
    """With a range of its own."""
    modes = {"use": use, "hold": hold, "wait": wait}
    with stand_in_range() as its_range:
        anyio.run(modes[mode], Path(os.environ["BELLJAR_HOME"]), its_range)


if __name__ == "__main__":
    main(*sys.argv[1:])
