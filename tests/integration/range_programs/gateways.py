"""Gateways for tests of what is around one. `serve` answers every datagram and connection with what
it got, and puts it on record first; the others are compromised and break rules."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import hashlib
import itertools
import json
import mmap
import os
import select
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from belljar.events import Kind
from belljar.network.gateway.config import Bounds, GatewayConfig, Listeners
from belljar.network.gateway.reporter import Reporter
from belljar.network.ipc import ENDED, READY, Item


def serve(config: GatewayConfig, listeners: Listeners, events: socket.socket) -> NoReturn:
    asyncio.get_event_loop_policy().get_event_loop().run_until_complete(
        _serve(config, listeners, events)
    )
    os._exit(1)


async def _serve(config: GatewayConfig, listeners: Listeners, events: socket.socket) -> None:
    reporter = Reporter(events, Bounds())
    reporter.start()
    numbers = itertools.count(1)

    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.DatagramTransport", transport)

        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            self.transport.sendto(b"echo " + data, addr)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        told = connection(config, writer.get_extra_info("socket"), next(numbers))
        address, port = told["address"], told["port"]
        await reporter.record(
            Item(Kind.NETWORK_CONNECTION, told),
            Item(Kind.NETWORK_STREAM, {**told, **STREAM, "bytes": len(line)}),
        )
        writer.write(b"echo %s:%d " % (address.encode(), port) + line)
        await writer.drain()
        writer.close()

    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Echo, sock=listeners["dns_udp"])
    for name, listener in listeners.items():
        if name == "sink" or name.isdecimal():
            await asyncio.start_server(answer, sock=listener)
    await reporter.record(Item(READY, {"certificate": "-----BEGIN CERTIFICATE-----"}))
    await reporter.end_requested.wait()
    await reporter.end(0, loop.time() + reporter.end_within_s)
    os._exit(0)


STREAM: Final = {"stand_in": "", "verdict": "allowed", "reason": "", "bytes": 0}


def connection(config: GatewayConfig, sock: Any, number: int) -> dict[str, Any]:  # noqa: ANN401 - of asyncio or not
    (source, source_port), (address, port) = sock.getpeername(), sock.getsockname()
    cell = next(port.name for port in config.layout.cells if port.address == source)
    place = {"cell": cell, "connection": number, "address": address, "port": port}
    return {**place, "source_port": source_port, "phase": "open"}


def say(
    events: socket.socket,
    number: int,
    kind: str,
    data: object,
    body: bytes | None = None,
    sha256: str = "",
) -> None:
    """One event or request of a gateway, as `belljar.network.ipc` has it; `sha256`: a false one."""
    bodies: list[dict[str, Any]] = []
    if body is not None:
        digest, size = sha256 or hashlib.sha256(body).hexdigest(), len(body)
        ref = {"name": "question", "kept_bytes": size, "total_bytes": size, "sha256": digest}
        bodies = [ref]
    events.send(json.dumps({"id": number, "kind": kind, "data": data, "bodies": bodies}).encode())
    if body:
        events.send(body)


def ready(events: socket.socket) -> None:
    events.setblocking(True)
    say(events, 1, READY, {"certificate": ""})
    events.recv(1 << 16)


def wait_for_the_end(events: socket.socket) -> NoReturn:
    while events.recv(1 << 16):
        pass
    os._exit(1)


def lie(_config: GatewayConfig, _listeners: Listeners, events: socket.socket) -> NoReturn:
    """Says that it serves, and then what no gateway may say."""
    ready(events)
    say(events, 2, "cell.destroyed", {})
    wait_for_the_end(events)


def say_less(
    config: GatewayConfig,
    listeners: Listeners,
    events: socket.socket,
    *,
    port: int,
    kinds: tuple[str, ...] = (),
    size: int = 5,
) -> NoReturn:
    """Answers one connection, and says less of it than it must."""
    ready(events)
    listeners[str(port)].setblocking(True)
    sock, _ = listeners[str(port)].accept()
    sock.setblocking(True)
    sock.recv(100)
    data = {**connection(config, sock, 1), **STREAM, "sni": "shop.example"}
    for number, kind in enumerate(kinds, 2):
        say(events, number, kind, data)
        events.recv(1 << 16)
    sock.sendall(bytes(size))
    sock.close()
    events.recv(1 << 16)  # the range's end
    say(events, 9, ENDED, {"unreported": 0})
    os._exit(0)


say_nothing = partial(say_less, port=80)
say_no_exchange = partial(say_less, port=80, kinds=(Kind.NETWORK_CONNECTION,))
say_no_tls = partial(say_less, port=443, kinds=(Kind.NETWORK_CONNECTION,))
keep_secrets = partial(
    say_less, port=443, kinds=(Kind.NETWORK_CONNECTION, Kind.NETWORK_TLS), size=1 << 20
)


def burn(_config: GatewayConfig, _listeners: Listeners, events: socket.socket) -> NoReturn:
    """Serves nobody, and uses all the processor time that it gets."""
    ready(events)
    while True:
        pass


def shout(_config: GatewayConfig, listeners: Listeners, events: socket.socket) -> NoReturn:
    """Serves nobody, and writes to its standard error without end, from the first datagram on."""
    ready(events)
    listeners["dns_udp"].setblocking(True)
    listeners["dns_udp"].recv(1)
    while True:
        os.write(2, bytes(1 << 16))


def hoard(_config: GatewayConfig, listeners: Listeners, events: socket.socket) -> NoReturn:
    """Serves nobody, and uses all the memory that it gets, from the first datagram on."""
    ready(events)
    listeners["dns_udp"].setblocking(True)
    listeners["dns_udp"].recv(1)
    held = []
    while True:
        held.append(b"x" * (1 << 20))


def probe(_config: GatewayConfig, listeners: Listeners, events: socket.socket) -> NoReturn:
    """Tries everything that it must not be able to do, when the first connection comes."""
    ready(events)
    listeners["80"].setblocking(True)
    connection, _ = listeners["80"].accept()
    data = {
        "stand_in": "shop",
        "what": "everything",
        "tried": {name: tried(action) for name, action in TRIES.items()},
    }
    say(events, 2, "network.attempt", data)
    events.recv(1 << 16)
    connection.close()
    events.recv(1 << 16)  # the range's end
    say(events, 3, ENDED, {"unreported": 0})
    os._exit(0)


def _ask(events: socket.socket, body: bytes) -> None:
    ready(events)
    say(events, 2, "ask", {"what": "dial"}, body)


def ask_elsewhere(_config: GatewayConfig, _listeners: Listeners, events: socket.socket) -> NoReturn:
    _ask(events, b'{"host":"elsewhere.example","port":443,"stand_in":"upstream:elsewhere.example"}')
    wait_for_the_end(events)


def ask_model(_config: GatewayConfig, _listeners: Listeners, events: socket.socket) -> NoReturn:
    """Asks the harness's model, which answers a stand-in `openai` alone."""
    ready(events)
    say(events, 2, "ask", {"what": "chat"}, b'{"messages":[{"role":"user","content":"out"}]}')
    wait_for_the_end(events)


def turn(_config: GatewayConfig, _listeners: Listeners, events: socket.socket) -> NoReturn:
    """Is handed the end of a relay, and tries to make something else of it."""
    _ask(events, b'{"host":"good.example","port":443,"stand_in":"upstream:good.example"}')
    _, fds, _, _ = socket.recv_fds(events, 1 << 16, 1)
    end = socket.socket(fileno=fds[0])
    elsewhere = struct.pack("=H", socket.AF_INET) + struct.pack("!HI8x", 9, 0x7F00_0001)
    number, flag = end.fileno(), socket.MSG_FASTOPEN

    def reopen() -> object:
        return _call(libc.sendto(number, b"x", 1, flag, elsewhere, len(elsewhere)))

    def shut_and_reopen() -> object:
        end.shutdown(socket.SHUT_RDWR)
        return reopen()

    tries: dict[str, Callable[[], object]] = {
        "family": lambda: end.family.name,
        "write": lambda: end.send(b"x"),
        "connect": lambda: _call(libc.connect(number, elsewhere, len(elsewhere))),
        # connect(AF_UNSPEC) would part it from its peer (connect(2))
        "disconnect": lambda: _call(libc.connect(number, bytes(16), 16)),
        "fast open": reopen,
        "fast open after shutdown": shut_and_reopen,
        "listen": lambda: end.listen(1),
        "bind": lambda: end.bind("\0name"),
        "socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "interfaces": lambda: fcntl.ioctl(number, 0x8912, bytes(16)),
    }
    ended = {name: tried(action) for name, action in tries.items()}
    say(events, 3, "network.attempt", {"stand_in": "", "what": "everything", "tried": ended})
    for _ in ("its record", "the range's end"):
        events.recv(1 << 16)
    say(events, 4, ENDED, {"unreported": 0})
    os._exit(0)


def tried(action: Callable[[], object]) -> str:
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
    "network devices": lambda: socket.if_nameindex(),
}


def _open_descriptors() -> Iterator[str]:
    for fd in range(1000):
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            continue
        yield (
            f"{fd}"
            f" {'socket' if stat.S_ISSOCK(mode) else 'pipe' if stat.S_ISFIFO(mode) else 'other'}"
        )
