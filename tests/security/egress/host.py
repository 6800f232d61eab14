"""The host's own ears: listeners on every address of it, one of a network that only this test knows
among them, and a look at every packet of the host's namespace."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import secrets
import selectors
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Any

_LISTEN_TRIES = 50
_HEARD_S = 30.0
_SO_ATTACH_FILTER = 26
_ETH_P_IP = 0x0800
_LOAD_WORD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_SOURCE, _TARGET = 12, 16
_NS_GET_USERNS = 0xB701


@dataclass(frozen=True, slots=True, kw_only=True)
class Lan:
    """A network beside the host that only the test knows."""

    private: str
    public: str


@contextmanager
def lan() -> Iterator[Lan]:
    number, tag = secrets.randbelow(200) + 20, secrets.token_hex(3)
    made = Lan(private=f"192.168.{number}.1", public=f"198.51.100.{number}")
    ip("link", "add", f"bj{tag}a", "type", "veth", "peer", "name", f"bj{tag}b")
    try:
        for address in (made.private, made.public):
            ip("addr", "add", f"{address}/32", "dev", f"bj{tag}a")
        for end in "ab":
            ip("link", "set", f"bj{tag}{end}", "up")
        yield made
    finally:
        ip("link", "del", f"bj{tag}a")


def ip(*words: str, namespace: int | None = None) -> Any:  # noqa: ANN401 - JSON
    """`ip`, in a process's network namespace; what it prints, parsed."""
    argv = ["ip", "-j", *words]
    said = (
        subprocess.check_output(argv, stderr=subprocess.PIPE)
        if namespace is None
        else within(namespace, *argv)
    )
    return json.loads(said) if said.strip() else []


@contextmanager
def entering(pid: int) -> Iterator[tuple[list[str], list[int]]]:
    """What stands before a command that is to run in a process's network namespace, and its files."""
    fds = [os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)]
    words = [f"--net=/proc/self/fd/{fds[0]}"]
    if os.geteuid() != 0:
        fds.append(fcntl.ioctl(fds[0], _NS_GET_USERNS))
        words += [f"--user=/proc/self/fd/{fds[1]}", "--preserve-credentials"]
    try:
        yield ["nsenter", *words], fds
    finally:
        for fd in fds:
            os.close(fd)


def within(pid: int, *argv: str) -> bytes:
    with entering(pid) as (enter, fds):
        words = [*enter, *argv]
        return subprocess.run(words, check=True, capture_output=True, pass_fds=fds).stdout


def addresses(own: Lan) -> list[str]:
    """Every IPv4 address of this host, its loopback's among them."""
    found = {
        item["local"]
        for device in ip("addr")
        if not device["ifname"].startswith("bj")
        for item in device["addr_info"]
        if item["family"] == "inet"
    }
    return sorted({*found, own.private, own.public})


class Ears:
    """Ports of the host, by TCP and UDP, IPv4 and IPv6, on every address."""

    def __init__(self, count: int) -> None:
        found = [_listeners() for _ in range(count)]
        self.ports = [port for port, _ in found]
        self._sockets = [sock for _, made in found for sock in made]
        self._heard: list[str] = []
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._listen, name="ears", daemon=True)
        self._lock = threading.Lock()

    def __enter__(self) -> Ears:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._stopped)
        self._thread.join()
        os.close(self._stop)
        for sock in self._sockets:
            sock.close()

    @property
    def heard(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._heard)

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stop, selectors.EVENT_READ)
            for sock in self._sockets:
                sock.setblocking(False)
                selector.register(sock, selectors.EVENT_READ)
            while True:
                ready: list[Any] = [key.fileobj for key, _ in selector.select()]
                if self._stop in ready:
                    return
                for sock in ready:
                    self._take(sock)

    def _take(self, sock: socket.socket) -> None:
        try:
            if sock.type == socket.SOCK_STREAM:
                accepted, peer = sock.accept()
                line = f"tcp {accepted.getsockname()[0]} from {peer[0]}"
                accepted.close()
            else:
                data, peer = sock.recvfrom(2048)
                line = f"udp {data[:80]!r} from {peer[0]}"
        except OSError as error:
            line = f"an error: {error}"
        with self._lock:
            self._heard.append(line)


def speak(addresses: Sequence[str], ears: Ears) -> int:
    """From this process to the ears, by TCP and UDP, at each of these addresses and each port."""
    places = [(address, port) for address in addresses for port in ears.ports]
    wanted = len(ears.heard) + 2 * len(places)
    for place in places:
        socket.create_connection(place, _HEARD_S).close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"trial", place)
    give_up = time.monotonic() + _HEARD_S
    while len(ears.heard) < wanted:
        if time.monotonic() > give_up:
            raise TimeoutError(f"the host's listeners did not hear all of {addresses}")
        time.sleep(0.01)
    return 2 * len(places)


def _listeners() -> tuple[int, list[socket.socket]]:
    """The four sockets of a port that is free for all of them."""
    kinds = [(socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM)]
    kinds += [(socket.AF_INET6, kind) for _, kind in kinds] if socket.has_ipv6 else []
    for _ in range(_LISTEN_TRIES):
        port, made = 20_000 + secrets.randbelow(10_000), []
        try:
            for family, kind in kinds:
                made.append(_listener(family, kind, port))
        except OSError:
            for sock in made:
                sock.close()
            continue
        return port, made
    raise OSError("no port is free")


def _listener(family: int, kind: int, port: int) -> socket.socket:
    sock = socket.socket(family, kind)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))  # noqa: S104 - every address is meant
        if kind == socket.SOCK_STREAM:
            sock.listen(64)
    except OSError:
        sock.close()
        raise
    return sock


@dataclass
class Sniffer:
    """Every IPv4 packet of the host's own namespace, on any device, that comes from or goes to one
    of these networks. The kernel looks, between `open` and `close`."""

    networks: Sequence[str]
    _socket: socket.socket = field(init=False)

    def open(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP))
        program = _program([IPv4Network(network) for network in self.networks])
        instructions = ctypes.create_string_buffer(program)
        head = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, head)
        self._socket.setblocking(False)
        while self._next() is not None:
            pass  # what came before the filter was there

    def close(self) -> None:
        self._socket.close()

    def seen(self) -> list[str]:
        """The packets since the last time: device, source and target."""
        found = []
        while (packet := self._next()) is not None:
            found.append(packet)
        return found

    def _next(self) -> str | None:
        try:
            data, where = self._socket.recvfrom(64)
        except BlockingIOError:
            return None
        return f"{where[0]}: {socket.inet_ntoa(data[12:16])} to {socket.inet_ntoa(data[16:20])}"


def _program(networks: Sequence[IPv4Network]) -> bytes:
    """Classic BPF: each network is compared with source and target; the packet, or nothing."""
    code: list[tuple[int, int, int, int]] = []
    for network in networks:
        for offset in (_SOURCE, _TARGET):
            code += [
                (_LOAD_WORD, 0, 0, offset),
                (_AND, 0, 0, int(network.netmask)),
                (_EQUAL, 0, 1, int(network.network_address)),
                (_RETURN, 0, 0, 0xFFFF),
            ]
    code.append((_RETURN, 0, 0, 0))
    return b"".join(struct.pack("@HBBI", *instruction) for instruction in code)
