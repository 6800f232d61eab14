"""A range's namespace and its cells' with real rules between them, for `test_rules`. Started by
`unshare` in a namespace of its own, so that all ends with it.

Prints one JSON object: what was found, by the name of the trial. Everything is looked at from the
range's side: listeners and counters.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from belljar.network import ipc
from belljar.network.supervisor import netfilter
from belljar.network.supervisor.cell_dialler import CellDialler
from belljar.plan.addresses import CellPort, RangeLayout, lay_out
from belljar.plan.network import NetworkBounds, NetworkPlan, PortPlan, StandInPlan
from belljar.plan.nft import changed_rules, known_rules
from belljar.plan.rules import (
    ENTER_MARK,
    LOCAL_MARK,
    LOG_GROUP,
    LOG_SNAP_BYTES,
    REFUSE_MARK,
    DropReason,
    counts,
    render_rules,
)

CLONE_NEWNET = 0x40000000
WAIT_S = 30.0
LIBC = ctypes.CDLL(None, use_errno=True)
PLAN = NetworkPlan(
    stand_ins=(
        StandInPlan(
            id="shop",
            kind="http",
            names=("shop.example",),
            ports=(PortPlan(number=80, protocol="http"),),
            settings={},
        ),
        StandInPlan(
            id="db",
            kind="cell",
            names=("db.example",),
            ports=(PortPlan(number=5432, protocol="tcp"),),
            settings={},
        ),
    )
)
FEW = NetworkBounds(
    new_connections_per_s=1, new_connections_burst=5, queries_per_s=1, queries_burst=5
)
NOBODY = "0.0.0.0"  # noqa: S104 - a test's own namespace
OTHER_MAC = "02:aa:bb:cc:dd:ee"


def checksum(data: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(source: str, target: str, payload: bytes) -> bytes:
    """A packet of TCP's as a cell could write it by hand."""
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    whole = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 7, 0, 64, 6, 0) + addresses
    return whole[:10] + struct.pack("!H", checksum(whole)) + whole[12:] + payload


def syn(source: str, target: str, port: int, source_port: int) -> bytes:
    """The first segment of a connection."""
    head = struct.pack("!HHIIBBHHH", source_port, port, 1, 0, 0x50, 0x02, 1024, 0, 0)
    pseudo = socket.inet_aton(source) + socket.inet_aton(target) + struct.pack("!BBH", 0, 6, 20)
    return head[:16] + struct.pack("!H", checksum(pseudo + head)) + head[18:]


def enter(namespace: int) -> None:
    """This thread goes into the namespace; sockets made there stay there."""
    if LIBC.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class World:
    """The range's namespace (this process's), its rules, and a namespace for each cell."""

    def __init__(self, plan: NetworkPlan) -> None:
        self.plan = plan
        self.layout: RangeLayout = lay_out(
            plan, ("default",), random_bytes=bytes(range(32)), avoid=()
        )
        self.own = os.open("/proc/self/ns/net", os.O_RDONLY)
        self.cells = {port.name: self._namespace() for port in self.layout.cells}
        self.load()
        self._range()
        for port in self.layout.cells:
            self._attach(port)

    def _namespace(self) -> int:
        if LIBC.unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        made = os.open("/proc/self/ns/net", os.O_RDONLY)
        enter(self.own)
        return made

    def load(self) -> None:
        """The rendered rules, in place of all others."""
        text = json.dumps(render_rules(self.layout, self.plan))
        subprocess.run(["nft", "-j", "-f", "-"], input=text, text=True, check=True)

    def _range(self) -> None:
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # the rules alone must see to it
        run("ip", "link", "set", "lo", "up")
        for prefix in self.layout.local_prefixes:
            run("ip", "route", "add", "local", prefix, "dev", "lo")
        run("ip", "route", "add", "local", "default", "dev", "lo", "table", "100")
        run("ip", "rule", "add", "iif", "lo", "lookup", "main", "prio", "99")
        for mark, priority in ((LOCAL_MARK, "100"), (ENTER_MARK, "98"), (REFUSE_MARK, "97")):
            run("ip", "rule", "add", "fwmark", str(mark), "lookup", "100", "prio", priority)

    def _attach(self, port: CellPort) -> None:
        inside = f"/proc/{os.getpid()}/fd/{self.cells[port.name]}"
        outer, gateway = port.outer_device, self.layout.resolver
        run(
            "ip",
            "link",
            "add",
            outer,
            "address",
            port.gateway_mac,
            "type",
            "veth",
            "peer",
            "name",
            "inner",
        )
        run("ip", "link", "set", "inner", "netns", inside, "name", "eth0", "address", port.mac)
        Path(f"/proc/sys/net/ipv6/conf/{outer}/addr_gen_mode").write_text("1")
        run("ip", "link", "set", outer, "up")
        run("ip", "route", "add", f"{port.address}/32", "dev", outer)
        run(
            "ip", "neigh", "add", port.address, "lladdr", port.mac, "nud", "permanent", "dev", outer
        )
        # What a cell's own IPv6 says unasked would be counted too, at times of its own.
        run(
            "nsenter",
            f"--net={inside}",
            "sh",
            "-c",
            "echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6",
        )
        for words in (
            ("link", "set", "lo", "up"),
            ("link", "set", "eth0", "up"),
            ("addr", "add", f"{port.address}/32", "dev", "eth0"),
            ("route", "add", f"{gateway}/32", "dev", "eth0"),
            ("route", "add", "default", "via", gateway, "dev", "eth0"),
            (
                "neigh",
                "add",
                gateway,
                "lladdr",
                port.gateway_mac,
                "nud",
                "permanent",
                "dev",
                "eth0",
            ),
        ):
            run("nsenter", f"--net={inside}", "ip", *words)

    def socket_in(self, cell: str, *kind: int) -> socket.socket:
        """A socket in a cell's namespace; "": in the range's."""
        if cell:
            enter(self.cells[cell])
        try:
            made = socket.socket(*kind)
        finally:
            enter(self.own)
        made.settimeout(WAIT_S)
        return made

    def listed(self) -> dict[str, Any]:
        """All rules of the range's namespace."""
        done = subprocess.run(["nft", "-j", "list", "ruleset"], capture_output=True, check=True)
        return dict(json.loads(done.stdout))

    def differences(self) -> list[str]:
        """From what was rendered."""
        return list(changed_rules(known_rules(render_rules(self.layout, self.plan)), self.listed()))

    def counted(self) -> dict[DropReason, int]:
        """Packets by reason."""
        return counts(self.listed())

    def address(self, stand_in: str) -> str:
        """A stand-in's first address."""
        return next(name.address for name in self.layout.names if name.stand_in == stand_in)


def run(*argv: str) -> None:
    """A tool that must succeed."""
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def counting(world: World) -> Iterator[dict[str, int]]:
    """Fills the mapping with the reasons whose counters moved meanwhile, and by how much."""
    before, moved = world.counted(), dict[str, int]()
    yield moved
    after = world.counted()
    moved.update(
        {
            str(reason): after[reason] - before[reason]
            for reason in DropReason
            if after[reason] != before[reason]
        }
    )


def connect(world: World, cell: str, address: str, port: int) -> str:
    """How a TCP connection ends: "open" or the error's name."""
    with world.socket_in(cell, socket.AF_INET, socket.SOCK_STREAM) as made:
        try:
            made.connect((address, port))
        except TimeoutError:
            return "timeout"
        except OSError as exc:
            return errno_name(exc)
        return "open"


def errno_name(exc: OSError) -> str:
    """ECONNREFUSED and the like."""
    return errno.errorcode.get(exc.errno or 0, str(exc))


def frame(world: World, packet: bytes, cell: str = "default") -> None:
    """Sends a packet from the cell's device, whoever it says it is."""
    port = world.layout.cell(cell)
    macs = bytes.fromhex(f"{port.gateway_mac}{port.mac}".replace(":", ""))
    with world.socket_in(cell, socket.AF_PACKET, socket.SOCK_RAW) as made:
        enter(world.cells[cell])
        try:
            made.bind(("eth0", 0))
        finally:
            enter(world.own)
        made.send(macs + struct.pack("!H", 0x0800) + packet)


def listener(world: World, cell: str, port: int, *, transparent: bool = False) -> socket.socket:
    """A listener on every address of a namespace."""
    made = world.socket_in(cell, socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if transparent:
        made.setsockopt(socket.SOL_IP, socket.IP_TRANSPARENT, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, LOCAL_MARK)
    made.bind((NOBODY, port))
    made.listen(16)
    return made


def talk(world: World, server: socket.socket, cell: str, address: str, port: int) -> dict[str, Any]:
    """A connection that is used in both directions: what arrived, and whom the listener took itself
    for."""
    with world.socket_in(cell, socket.AF_INET, socket.SOCK_STREAM) as client:
        client.connect((address, port))
        accepted, peer = server.accept()
        with accepted:
            accepted.settimeout(WAIT_S)
            client.sendall(b"question")
            asked = accepted.recv(100).decode()
            accepted.sendall(b"answer")
            return {
                "asked": asked,
                "answered": client.recv(100).decode(),
                "as": accepted.getsockname(),
                "by": peer[0],
            }


def services(world: World) -> dict[str, Any]:
    """What the plan names works, by listeners on 0.0.0.0."""
    found: dict[str, Any] = {}
    with listener(world, "", 80) as web, counting(world) as moved:
        found["shop"] = talk(world, web, "default", world.address("shop"), 80)
    found["shop counts"] = moved
    found |= dialled(world)
    found["db segments"] = segments(world)
    with world.socket_in("", socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        resolver.bind((world.layout.resolver, 53))
        found["resolver"] = dns(world, resolver)
    return found


def dialled(world: World) -> dict[str, Any]:
    """A connection to another cell: refused as long as nobody listens there, then both halves."""
    ours, theirs = ipc.pair()
    dialler, log = CellDialler(ours), netfilter.open_log(LOG_GROUP, LOG_SNAP_BYTES)
    address = world.address("db")
    found: dict[str, Any] = {}

    def dial() -> socket.socket:
        client = world.socket_in("default", socket.AF_INET, socket.SOCK_STREAM)
        client.setblocking(False)
        client.connect_ex((address, 5432))
        while not select.select([], [client], [], 0)[1]:
            readable, dialled, _ = select.select([log], [*dialler.waiting], [], 0.05)
            for end in dialled:
                dialler.finish(end)
            for datagram in netfilter.read_all(log) if readable else ():
                for logged in netfilter.parse_log(datagram):
                    dialler.begin(logged.packet)
        return client

    assert world.layout.proxy_port is not None
    with log, listener(world, "", world.layout.proxy_port, transparent=True) as proxy:
        with dial() as client, counting(world) as moved:
            found["db refused"] = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        with listener(world, "db", 5432) as database, counting(world) as moved, dial() as client:
            taken, end = proxy.accept()[0], database.accept()[0]
            _, (half,) = ipc.receive(theirs)
            with taken, end, socket.socket(fileno=half) as to_db:
                for one, other in ((client, taken), (to_db, end), (end, to_db), (taken, client)):
                    other.settimeout(WAIT_S)
                    one.sendall(b"through")
                    assert other.recv(100) == b"through"
                own = world.layout.cell("default").address
                found["db"] = [taken.getsockname(), end.getpeername()[0] == own]
        found["db counts"] = moved
    return found


def segments(world: World) -> list[dict[str, int]]:
    """Segments of a connection that nobody began, from either side: the counters that moved."""
    found = []
    for cell, other_cell, ports in (
        ("default", "db", (40000, 5432)),
        ("db", "default", (5432, 40001)),
    ):
        own, other = world.layout.cell(cell), world.layout.cell(other_cell)
        tcp = struct.pack("!HHIIBBHHH", *ports, 1, 1, 0x50, 0x10, 1024, 0, 0)
        with other_frames(world, other_cell) as seen, counting(world) as moved:
            frame(world, ipv4(own.address, other.address, tcp), cell=cell)
        found.append({**moved, "arrived": len(seen)})
    return found


@contextlib.contextmanager
def other_frames(world: World, cell: str) -> Iterator[list[bytes]]:
    """What comes to a cell meanwhile, but for resets."""
    seen: list[bytes] = []
    tap = world.socket_in(cell, socket.AF_PACKET, socket.SOCK_RAW)
    with tap:
        tap.bind(("eth0", 3))
        yield seen
        tap.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            while data := tap.recvfrom(2000):
                is_in = data[1][2] != socket.PACKET_OUTGOING
                if is_in and not data[0][47] & 4:
                    seen.append(data[0])


def dns(world: World, resolver: socket.socket) -> str:
    """A datagram to the resolver and its answer."""
    with world.socket_in("default", socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"question", (world.layout.resolver, 53))
        asked, peer = resolver.recvfrom(100)
        resolver.sendto(asked + b" answered", peer)
        return client.recv(100).decode()


def floods(world: World) -> dict[str, dict[str, int]]:
    """More than the bounds allow, in one go."""
    own, shop = world.layout.cell("default").address, world.address("shop")
    found = {}
    with counting(world) as moved:
        for number in range(40):
            frame(world, ipv4(own, shop, syn(own, shop, 80, 41000 + number)))
    found["connections"] = moved
    with (
        counting(world) as moved,
        world.socket_in("default", socket.AF_INET, socket.SOCK_DGRAM) as client,
    ):
        for _ in range(40):
            with contextlib.suppress(OSError):
                client.sendto(b"q", (world.layout.resolver, 53))
    found["queries"] = moved
    return found


EDITS: dict[str, tuple[str, ...]] = {
    "flush": ("flush ruleset",),
    "delete table": ("delete table inet range",),
    "delete arp": ("delete table arp range",),
    "policy": ("chain inet range forward { type filter hook forward priority 0; policy accept; }",),
    "insert": ("insert rule inet range prerouting accept",),
    "add": ("add rule inet range output accept",),
    "flush chain": ("flush chain inet range checked",),
    "element": ("add element inet range answered { 8.8.8.8 . tcp . 443 }",),
    "element gone": ("flush set inet range forbidden",),
    "another table": (
        "add table ip nat",
        "add chain ip nat post { type nat hook postrouting priority 100; }",
    ),
    "another chain": ("add chain inet range more { type filter hook prerouting priority -500; }",),
    "order": ("add rule inet range unnamed meta l4proto udp goto refuse_udp",),
}


def edits(world: World) -> dict[str, Any]:
    """Rules changed by hand, each change told, and none after they were loaded again."""
    found: dict[str, Any] = {"at first": world.differences()}
    for name, commands in EDITS.items():
        for command in commands:
            run("nft", command)
        found[name] = world.differences()
        world.load()
        found[f"{name}, repaired"] = world.differences()
    return found


def sinks() -> dict[str, Any]:
    """With a sink, TCP to a port nobody has reaches it under its own name, and what is forbidden is
    refused all the same."""
    world = World(replace(PLAN, sink=True))
    assert world.layout.sink_port is not None
    found: dict[str, Any] = {}
    with listener(world, "", world.layout.sink_port, transparent=True) as sink:
        found["public"] = talk(world, sink, "default", "8.8.8.8", 4444)
        found["stand-in's other port"] = talk(world, sink, "default", world.address("shop"), 81)
        for name, address in (
            ("metadata", "169.254.169.254"),
            ("LAN", "192.168.1.1"),
            ("neighbour", world.address("db")),
        ):
            found[name] = connect(world, "default", address, 80)
        with listener(world, "", 80) as web:
            found["shop"] = talk(world, web, "default", world.address("shop"), 80)
    found["differences"] = world.differences()
    return found


def main() -> None:
    """Every trial, in a world of its own where one trial would disturb another."""
    if sys.argv[1] == "sink":
        found: dict[str, Any] = sinks()
    elif sys.argv[1] == "floods":
        found = floods(World(replace(PLAN, bounds=FEW)))
    else:
        world = World(PLAN)
        found = {trial.__name__: trial(world) for trial in (services, edits)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
