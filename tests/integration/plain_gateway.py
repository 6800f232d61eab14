"""The smallest gateway: answers every datagram and every connection with what it got, and puts it
on record first. For tests of what is around a gateway."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import mmap
import os
import select
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, cast

from belljar.events import Kind
from belljar.network.gateway.config import Bounds, GatewayConfig, Listeners
from belljar.network.gateway.reporter import Reporter
from belljar.network.ipc import ENDED, READY, Item


def serve(config: GatewayConfig, listeners: Listeners, events: socket.socket) -> NoReturn:
    """Until it is killed."""
    asyncio.get_event_loop_policy().get_event_loop().run_until_complete(
        _serve(config, listeners, events)
    )
    os._exit(1)


async def _serve(config: GatewayConfig, listeners: Listeners, events: socket.socket) -> None:
    reporter = Reporter(events, Bounds())
    reporter.start()

    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.DatagramTransport", transport)

        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            self.transport.sendto(b"echo " + data, addr)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        address, port = writer.get_extra_info("sockname")
        data = {
            "cell": "", "stand_in": "", "address": address, "port": port, "verdict": "allowed", "reason": "", "bytes": len(line),
        }  # fmt: skip
        await reporter.record(Item(Kind.NETWORK_STREAM, data))
        writer.write(b"echo %s:%d " % (address.encode(), port) + line)
        await writer.drain()
        writer.close()

    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Echo, sock=listeners.dns_udp)
    for listener in (
        listeners.dns_tcp,
        *listeners.tcp.values(),
        *((listeners.sink,) if listeners.sink else ()),
    ):
        await asyncio.start_server(answer, sock=listener)
    await reporter.record(Item(READY, {"certificate": "-----BEGIN CERTIFICATE-----"}))
    await reporter.end_requested.wait()
    await reporter.end(0, loop.time() + reporter.end_within_s)
    os._exit(0)


def lie(_config: GatewayConfig, _listeners: Listeners, events: socket.socket) -> NoReturn:
    """Says that it serves, and then what no gateway may say."""
    events.setblocking(True)
    ready = {"id": 1, "kind": READY, "data": {"certificate": ""}, "bodies": []}
    events.send(json.dumps(ready).encode())
    events.recv(1 << 16)
    events.send(json.dumps({"id": 2, "kind": "cell.destroyed", "data": {}, "bodies": []}).encode())
    while events.recv(1 << 16):
        pass
    os._exit(1)


def burn(_config: GatewayConfig, _listeners: Listeners, events: socket.socket) -> NoReturn:
    """Serves nobody, and uses all the processor time that it gets."""
    _ready(events)
    while True:
        pass


def hoard(_config: GatewayConfig, listeners: Listeners, events: socket.socket) -> NoReturn:
    """Serves nobody, and uses all the memory that it gets, from the first datagram for its resolver
    on."""
    _ready(events)
    listeners.dns_udp.setblocking(True)
    listeners.dns_udp.recv(1)
    held = []
    while True:
        held.append(b"x" * (1 << 20))


def _ready(events: socket.socket) -> None:
    events.setblocking(True)
    events.send(
        json.dumps({"id": 1, "kind": READY, "data": {"certificate": ""}, "bodies": []}).encode()
    )
    events.recv(1 << 16)


def end_short(_config: GatewayConfig, _listeners: Listeners, events: socket.socket) -> NoReturn:
    """Ends when it is told to, without a last word."""
    _ready(events)
    events.recv(1 << 16)
    os._exit(0)


def end_unasked(_config: GatewayConfig, _listeners: Listeners, events: socket.socket) -> NoReturn:
    """Says its last word at once."""
    _ready(events)
    last = {"id": 2, "kind": ENDED, "data": {"unreported": 0}, "bodies": []}
    events.send(json.dumps(last).encode())
    while events.recv(1 << 16):
        pass
    os._exit(1)


def flood(_config: GatewayConfig, listeners: Listeners, events: socket.socket) -> NoReturn:
    """Says that it serves, and from the first connection on as much as the protocol allows, for as
    long as somebody records it."""
    events.setblocking(True)
    events.send(
        json.dumps({"id": 1, "kind": READY, "data": {"certificate": ""}, "bodies": []}).encode()
    )
    events.recv(1 << 16)
    listeners.tcp[80].setblocking(True)
    listeners.tcp[80].accept()
    kept = 1 << 16
    for number in range(2, 1 << 30):
        ref = {"name": "b", "kept_bytes": kept, "total_bytes": kept, "sha256": f"{number:064x}"}
        data = {"stand_in": "shop", "what": "x" * 40_000, "list": ["y" * 10_000]}
        events.send(
            json.dumps(
                {"id": number, "kind": "network.attempt", "data": data, "bodies": [ref]}
            ).encode()
        )
        events.send(number.to_bytes(8, "big") * (kept // 8))
        if not events.recv(1 << 16):
            break
    os._exit(1)


def probe(_config: GatewayConfig, listeners: Listeners, events: socket.socket) -> NoReturn:
    """Tries everything that it must not be able to do, when the first connection comes, and puts on
    record how each try ended."""
    events.setblocking(True)
    events.send(
        json.dumps({"id": 1, "kind": READY, "data": {"certificate": ""}, "bodies": []}).encode()
    )
    events.recv(1 << 16)
    listeners.tcp[80].setblocking(True)
    connection, _ = listeners.tcp[80].accept()
    data = {
        "stand_in": "shop",
        "what": "everything",
        "tried": {name: tried(action) for name, action in TRIES.items()},
    }
    events.send(
        json.dumps({"id": 2, "kind": "network.attempt", "data": data, "bodies": []}).encode()
    )
    events.recv(1 << 16)
    connection.close()
    events.recv(1 << 16)  # the range's end
    events.send(
        json.dumps({"id": 3, "kind": ENDED, "data": {"unreported": 0}, "bodies": []}).encode()
    )
    os._exit(0)


def tried(action: Callable[[], object]) -> str:
    """What came of it, or the error's name."""
    try:
        return repr(action())
    except OSError as exc:
        return errno.errorcode.get(exc.errno or 0, repr(exc))
    except MemoryError:
        return "MemoryError"


def _connect(family: int, address: tuple[str, int] | str) -> str:
    with socket.socket(family, socket.SOCK_STREAM) as end:
        end.connect(address)
    return "connected"


def _ptrace() -> int:
    return _call(libc.ptrace(16, os.getppid(), 0, 0))


def _call(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def _grow(size: int) -> int:
    return len(bytearray(size))


libc = ctypes.CDLL(None, use_errno=True)
TRIES: dict[str, Callable[[], object]] = {
    "socket inet": lambda: _connect(socket.AF_INET, ("127.0.0.1", 80)),
    "socket unix": lambda: _connect(socket.AF_UNIX, "/run/x"),
    "socket netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "socket packet": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0),
    "pair of sockets": socket.socketpair,
    "pipe": os.pipe,
    "epoll": select.epoll,
    "whether there is a process": lambda: os.sched_getaffinity(os.getppid()),
    "open /etc/passwd": lambda: os.open("/etc/passwd", os.O_RDONLY),
    "open /proc": lambda: [*Path("/proc").iterdir()],
    "list /": lambda: sorted(path.name for path in Path("/").iterdir()),
    "list up": lambda: sorted(path.name for path in Path("/../../../..").iterdir()),
    "read own file": lambda: Path("/s/shop/index").read_text(),
    "write own file": lambda: os.open("/s/shop/index", os.O_WRONLY),
    "make file in root": lambda: os.open("/new", os.O_WRONLY | os.O_CREAT),
    "scratch": lambda: Path("/t/x").write_text("yes"),
    "unlink own file": lambda: Path("/s/shop/index").unlink(),
    "fork": os.fork,
    "exec": lambda: os.execv("/s/shop/index", ["x"]),  # noqa: S606 - it is to fail
    "ptrace": _ptrace,
    "kill": lambda: os.kill(os.getppid(), 0),
    "setuid": lambda: os.setuid(0),
    "unshare": lambda: _call(libc.unshare(0x10000000)),
    "mount": lambda: _call(libc.mount(b"x", b"/s", b"tmpfs", 0, None)),
    "prctl": lambda: _call(libc.prctl(22, 2, 0, 0, 0)),
    "executable memory": lambda: mmap.mmap(
        -1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    ),
    "memory over the limit": lambda: _grow(1 << 30),
    "descriptors": lambda: sorted(_open_descriptors()),
    "uid": lambda: (os.getuid() == os.geteuid(), os.getuid() == 0),
    "whoever ends a standstill": lambda: getattr(
        signal.getsignal(signal.SIGVTALRM), "__module__", ""
    ),
    "network devices": lambda: socket.if_nameindex(),
}


def _open_descriptors() -> Iterator[str]:
    """What each descriptor is, by the kind of file."""
    for fd in range(1000):
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            continue
        yield (
            f"{fd}"
            f" {'socket' if stat.S_ISSOCK(mode) else 'pipe' if stat.S_ISFIFO(mode) else 'other'}"
        )
