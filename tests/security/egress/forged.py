"""Frames that no workload can send, put onto a cell's port from outside by the host: what a cell's
own kernel, taken over, could do. Pure but for `send`."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from tests.security.egress.host import entering, ip

from belljar.plan.addresses import CellPort

_SEND: Final = (
    "import socket, sys\n"
    "s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n"
    "s.bind(('eth0', 0))\n"
    "for line in sys.stdin:\n"
    "    s.send(bytes.fromhex(line))\n"
    "    print('sent', flush=True)\n"
)
PUBLIC: Final = "203.0.113.90"
OTHER_MAC: Final = "02:aa:bb:cc:dd:ee"
EXPECTED: Final[Mapping[str, str]] = {
    "ARP answer": "arp", "IPv6": "ipv6", "router advertisement": "ipv6", "another MAC": "spoofed",
    "another cell's address": "spoofed", "the gateway's address": "spoofed",
    "first fragment": "fragment", "later fragment": "fragment",
    "loose source route": "source_route", "strict source route": "source_route",
    "record route": "options", "no address": "spoofed", "multicast": "multicast",
    "multicast MAC": "multicast", "broadcast": "broadcast", "broadcast MAC": "broadcast",
    "loopback": "forbidden", "GRE": "protocol", "IPv6 within IPv4": "protocol", "echo": "icmp",
    "redirect": "icmp", "VLAN tag": "udp",
}  # fmt: skip
"""What is sent, and the one counter that it moves by one."""


def frames(port: CellPort, resolver: str) -> Mapping[str, bytes]:
    return dict(_frames(port, resolver))


def _frames(port: CellPort, resolver: str) -> Iterator[tuple[str, bytes]]:
    def packet(data: bytes, target: str = PUBLIC, **changes: object) -> bytes:
        return _ethernet(port, 0x0800, _ipv4(port.address, target, data, **changes))  # type: ignore[arg-type]

    udp = struct.pack("!HHHH", 4000, 4001, 12, 0) + b"data"
    arp = (
        struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2)
        + _mac(port.mac)
        + _address(resolver)
        + _mac(port.gateway_mac)
    )
    yield "ARP answer", _ethernet(port, 0x0806, arp + _address(port.address))
    yield "IPv6", _ethernet(port, 0x86DD, _ipv6(17, udp))
    yield "router advertisement", _ethernet(port, 0x86DD, _ipv6(58, bytes((134, 0)) + bytes(14)))
    yield "another MAC", _ethernet(port, 0x0800, _ipv4(port.address, PUBLIC, udp), source=OTHER_MAC)
    for name, source in (
        ("another cell's address", _beside(port.address)),
        ("the gateway's address", resolver),
        ("no address", "0.0.0.0"),  # noqa: S104 - nobody binds
    ):
        yield name, _ethernet(port, 0x0800, _ipv4(source, PUBLIC, udp))
    yield "first fragment", packet(udp, fragment=0x2000)
    yield "later fragment", packet(udp, fragment=0x0010)
    routes = {"loose source route": 131, "strict source route": 137, "record route": 7}
    for name, number in routes.items():
        yield name, packet(udp, options=bytes((number, 7, 4)) + _address(resolver) + b"\0")
    for name, target, mac in (
        ("multicast", "224.0.0.251", "01:00:5e:00:00:fb"),
        ("broadcast", "255.255.255.255", "ff:ff:ff:ff:ff:ff"),
        ("loopback", "127.0.0.1", ""),
    ):
        yield name, _ethernet(port, 0x0800, _ipv4(port.address, target, udp), target=mac)
    for name, mac in (("multicast", "01:00:5e:00:00:fb"), ("broadcast", "ff:ff:ff:ff:ff:ff")):
        yield f"{name} MAC", _ethernet(port, 0x0800, _ipv4(port.address, PUBLIC, udp), target=mac)
    yield "GRE", packet(bytes(8), protocol=47)
    yield "IPv6 within IPv4", packet(_ipv6(17, udp), protocol=41)
    yield "echo", packet(_icmp(8, b"tunnel"), protocol=1)
    tag = b"\0\0\x08\0"  # of VLAN 0, which is none
    yield "VLAN tag", _ethernet(port, 0x8100, tag + _ipv4(port.address, PUBLIC, udp))
    yield (
        "redirect",
        packet(_icmp(5, _address(PUBLIC) + _ipv4(port.address, PUBLIC, udp)), resolver, protocol=1),
    )


def _ethernet(
    port: CellPort, kind: int, data: bytes, *, source: str = "", target: str = ""
) -> bytes:
    return (
        _mac(target or port.gateway_mac) + _mac(source or port.mac) + kind.to_bytes(2, "big") + data
    )


def _ipv4(
    source: str,
    target: str,
    data: bytes,
    *,
    protocol: int = 17,
    fragment: int = 0,
    options: bytes = b"",
) -> bytes:
    words = 5 + len(options) // 4
    size = words * 4 + len(data)
    head = struct.pack("!BBHHHBBH", 64 | words, 0, size, 7, fragment, 64, protocol, 0)
    head += _address(source) + _address(target) + options
    return head[:10] + _sum(head).to_bytes(2, "big") + head[12:] + data


def _ipv6(following: int, data: bytes) -> bytes:
    ends = b"".join(socket.inet_pton(socket.AF_INET6, f"2001:db8::{n}") for n in (1, 2))
    return struct.pack("!IHBB", 6 << 28, len(data), following, 255) + ends + data


def _icmp(kind: int, data: bytes) -> bytes:
    whole = bytes((kind, 0, 0, 0)) + (bytes(4) if kind == 8 else b"") + data
    return whole[:2] + _sum(whole).to_bytes(2, "big") + whole[4:]


def _sum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(~total & 0xFFFF)


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _address(text: str) -> bytes:
    return socket.inet_aton(text)


def _beside(address: str) -> str:
    return str(IPv4Address(int(IPv4Address(address)) ^ 1))


def namespace_of(port: CellPort) -> int:
    """A process in the network namespace that has this port, by its MAC. Raises `LookupError`."""
    seen: set[int] = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            number = (process / "ns/net").stat().st_ino
            if number not in seen and port.mac in {
                link["address"] for link in ip("link", namespace=int(process.name))
            }:
                return int(process.name)
        except (OSError, subprocess.CalledProcessError):
            continue  # it has just ended
        seen.add(number)
    raise LookupError(f"no namespace has the port {port.name}")


@contextmanager
def sending(pid: int) -> Iterator[Callable[[bytes], None]]:
    """Puts frames onto the port, from within that process's network namespace."""
    pipe = subprocess.PIPE
    with (
        entering(pid) as (enter, fds),
        subprocess.Popen(
            [*enter, sys.executable, "-I", "-c", _SEND],
            stdin=pipe,
            stdout=pipe,
            text=True,
            pass_fds=fds,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        into, out = process.stdin, process.stdout

        def send(frame: bytes) -> None:
            into.write(frame.hex() + "\n")
            into.flush()
            assert out.readline() == "sent\n"

        yield send
        into.close()
