"""A cell with a port, as its owner has it: `port_owner.py TIER MODE [LOOP]` prints JSON lines. A
program of its own: an ordinary user can run it, and it can be killed.

MODE: `use` does in the cell what `IN_CELL` tries and says what came of it; `refuse`: the port can't
be attached; `hold`: says `{"stage": PID, …}` and attaches only after a line on standard input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from tests.integration import range_stand_in as there

from belljar.cell.parts import ContainerParts, gather_parts
from belljar.channel import ExecRequest
from belljar.errors import BelljarError, HostError
from belljar.events import MemoryRecorder
from belljar.isolation.identity import user_range
from belljar.isolation.oci.open import open_container
from belljar.isolation.renewal import PortSettings
from belljar.policy.load import load_policy
from belljar.process import namespaces_of
from belljar.store.journal import Journal

POLICY = (
    "belljar: 1\nrisk: low\ntier: {tier}\nuser: root\nresources: {{memory: 256MiB, disk: 64MiB,"
    " processes: 64, lifetime: 5m}}\n"
)
IN_CELL = r"""
import json, os, socket, subprocess
found = {}
def note(name, work):
    try:
        found[name] = work()
    except OSError as exc:
        found[name] = exc.errno
def tell(address, size):
    with socket.create_connection((address, 80), timeout=10) as s:
        s.sendall(bytes(size)); s.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: s.recv(65536), b""))
    words = answer.split(b" ", 2)
    return [words[0].decode(), int(words[1]), len(words[2])]
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
note("gateway", lambda: tell("10.77.0.1", 10))
note("large", lambda: tell("10.77.0.53", 8 << 20))
note("low_port", low_port)
note("raw", lambda: made(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
note("packet", lambda: made(socket.AF_PACKET, socket.SOCK_RAW, 0x0300))
note("ping", lambda: made(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP))
note("forwarding", lambda: to("/proc/sys/net/ipv4/ip_forward"))
note("low_ports_closed", lambda: to("/proc/sys/net/ipv4/ip_unprivileged_port_start"))
note("ipv6_on", lambda: to("/proc/sys/net/ipv6/conf/all/disable_ipv6"))
note("ipv6", lambda: socket.create_connection(("::1", 80), timeout=1))
changes = {"link_down": "link set eth0 down", "link_mac": "link set eth0 address 02:00:00:00:00:09", "new_link": "link add x type veth",
           "address": "address add 10.77.0.9/32 dev eth0",
           "route": "route add 10.99.0.0/16 dev eth0",
           "neighbour": "neigh replace 10.77.0.1 lladdr 02:00:00:00:00:09 dev eth0"}
found["changed"] = [name for name, words in changes.items() if ip(*words.split()) == 0]
note("after", lambda: tell("10.77.0.1", 10))
found["addresses"] = {link["ifname"]: [f'{a["local"]}/{a["prefixlen"]}' for a in link["addr_info"]] for link in shown("address")}
found["mtu"] = {link["ifname"]: link["mtu"] for link in shown("link")}["eth0"]
found["resolver"] = open("/etc/resolv.conf").read()
found["hosts"] = socket.gethostbyname(socket.gethostname())
note("edited", lambda: [open("/etc/resolv.conf", "w").write("nameserver 8.8.8.8\n"), os.rename("/etc/resolv.conf", "/etc/r"), os.unlink("/etc/r")][-1])
print(json.dumps(found))
"""


def say(**data: Any) -> None:  # noqa: ANN401 - whatever JSON takes
    """One line."""
    print(json.dumps(data), flush=True)


class StandInPort:
    """The port that the helper has. `user_namespace` as an ordinary user's."""

    settings = PortSettings(
        address=IPv4Address(there.CELL),
        gateway=IPv4Address(there.GATEWAY),
        mac=there.CELL_MAC,
        gateway_mac=there.GATEWAY_MAC,
        resolver=IPv4Address(there.RESOLVER),
    )

    range_id = ""

    def __init__(self, mode: str, helper: subprocess.Popen[str]) -> None:
        self._mode, self._helper = mode, helper
        self.user_namespace = (
            None if os.geteuid() == 0 else os.open(f"/proc/{helper.pid}/ns/user", os.O_RDONLY)
        )

    async def attach(self, pid: int) -> None:
        """As the protocol has it."""
        if self._mode == "refuse":
            raise HostError("the range is gone")
        if self._mode == "hold":
            say(stage=pid, status=status_of(pid), **namespaces_of(pid, ("net", "user")))
            await anyio.to_thread.run_sync(sys.stdin.readline)
        answer = await anyio.to_thread.run_sync(partial(self.ask, attach=pid))
        if "error" in answer:
            raise HostError(f"no link: {answer['error']}")

    def ask(self, **command: int) -> dict[str, Any]:
        """The helper's answer."""
        if self._helper.stdin is None or self._helper.stdout is None:
            raise RuntimeError("no pipes")
        self._helper.stdin.write(json.dumps(command) + "\n")
        self._helper.stdin.flush()
        return dict(json.loads(self._helper.stdout.readline()))


def status_of(pid: int) -> dict[str, str]:
    """What /proc says of its rights."""
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        name: value.strip()
        for name, _, value in lines
        if name in {"CapEff", "NoNewPrivs", "Threads", "NSpid"}
    }


@contextmanager
def helper() -> Iterator[subprocess.Popen[str]]:
    """The range's stand-in, with the ids of this user below it."""
    pipe = subprocess.PIPE
    program = str(Path(__file__).with_name("range_stand_in.py"))
    with subprocess.Popen([sys.executable, program], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            first = json.loads(process.stdout.readline()) if process.stdout else {}
            if "map" in first and process.stdin and process.stdout:
                write_maps(process.pid)
                process.stdin.write("mapped\n")
                process.stdin.flush()
                process.stdout.readline()
            yield process
        finally:
            process.kill()


def write_maps(pid: int) -> None:
    """0 is this user, 1 and on are his subordinate ids."""
    ids = user_range().ids
    if ids is None:
        raise RuntimeError("no ids")
    for mapper, lines in ((ids.newgidmap, ids.gid_map), (ids.newuidmap, ids.uid_map)):
        words = [str(number) for line in lines for number in line]
        subprocess.run([str(mapper), str(pid), *words], check=True)


async def parts_of(tier: str, home: Path) -> ContainerParts:
    """What `open_cell` would make a cell of."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "policy.yaml"
        file.write_text(POLICY.format(tier=tier))
        parts = await anyio.to_thread.run_sync(gather_parts, load_policy(file), home)
    assert isinstance(parts, ContainerParts)
    return parts


async def own(tier: str, home: Path, port: StandInPort) -> None:
    """Open the cell, try it, end it; the events besides."""
    parts, recorder = await parts_of(tier, home), MemoryRecorder()
    try:
        async with open_container(
            parts.plan, parts.image, home=home, recorder=recorder, planned={}, port=port
        ) as live:
            say(timings_ms=live.timings_ms)
            output = await live.client.exec(
                ExecRequest(argv=["python3", "-c", IN_CELL], timeout_s=60)
            )
            say(found=json.loads(output.stdout or b"{}"), errors=output.stderr.decode())
    except BelljarError as exc:
        say(error=f"{type(exc).__name__}: {exc.what}")
    say(
        events=[event.kind.value for event in recorder.events], entries=len(Journal(home).entries())
    )
    say(there=port.ask(look=0))


def main(tier: str, mode: str, loop: str = "asyncio") -> None:
    """One cell."""
    with helper() as process:
        anyio.run(
            own, tier, Path(os.environ["BELLJAR_HOME"]), StandInPort(mode, process), backend=loop
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
