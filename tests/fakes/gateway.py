"""A gateway in a process of its own, on loopback addresses as a range's, and its owner: a thread
that reads, checks and acknowledges events."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.machine import PATIENCE_S

from belljar.dataclass import json_of
from belljar.events import Kind
from belljar.ledger.schema import check_data
from belljar.network.gateway.config import Bounds, GatewayConfig
from belljar.network.ipc import ALIVE, ENDED, KINDS, READY, EventDecoder, Item, encode_ack
from belljar.plan.addresses import CellPort, NameAddress, RangeLayout
from belljar.plan.network import PortPlan, StandInPlan

RESOLVER = "127.0.77.1"
SHOP = "127.0.77.2"
WILD = "127.0.77.3"
MAIL = "127.0.77.4"
OTHER = "127.0.77.5"
NAMES = {"shop.example": SHOP, "*.shop.example": WILD, "mail.example": MAIL, "other.example": OTHER}
DEADLINE_S = float(PATIENCE_S)


class Owner:
    """The owner's end of the event socket. `hold()`: no event is acknowledged until `release()`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.events: list[Item] = []
        self.ready: Item | None = None
        self.ended: Item | None = None
        self.problem = ""
        self._changed = threading.Condition()
        self._held, self._heartbeats = False, 0
        self._unacknowledged: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        decoder = EventDecoder()
        with contextlib.suppress(OSError):
            while datagram := self._received():
                try:
                    self._handle(decoder.feed(datagram))
                except ValueError as error:
                    self._note(repr(error))
        with self._changed:
            self._changed.notify_all()

    def _received(self) -> bytes:
        """The kernel tells once that the other end left acknowledgements unread."""
        try:
            return self.sock.recv(1 << 17)
        except ConnectionResetError:
            return self.sock.recv(1 << 17)

    def _send(self, datagram: bytes) -> None:
        """A gateway that has said its last word takes no more; what it said is there to be read."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.sock.send(datagram)

    def _handle(self, said: Item | None) -> None:
        if said is None:
            return
        if said.kind == ALIVE:
            self._send(encode_ack(said.id))
            with self._changed:
                self._heartbeats += 1
                self._changed.notify_all()
            return
        with self._changed:
            if said.kind == READY:
                self.ready = said
            elif said.kind == ENDED:
                self.ended = said
                self._changed.notify_all()
                return
            elif said.kind in KINDS:
                check_data(Kind(said.kind), dict(said.data))
                self.events.append(said)
            if self._held:
                self._unacknowledged.append(said.id)
            else:
                self._send(encode_ack(said.id))
            self._changed.notify_all()

    def _note(self, problem: str) -> None:
        with self._changed:
            self.problem = problem
            self._changed.notify_all()

    def hold(self) -> None:
        with self._changed:
            self._held = True

    def release(self) -> None:
        with self._changed:
            self._held = False
            for number in self._unacknowledged:
                self.sock.send(encode_ack(number))
            self._unacknowledged.clear()

    def end(self, within_s: float = DEADLINE_S) -> Item:
        """Says that the range ends, and returns the gateway's last word."""
        self.sock.send(json.dumps({"end": within_s}).encode())
        self.wait(lambda: self.ended is not None)
        assert self.ended is not None
        return self.ended

    def wait(self, until: Callable[[], bool]) -> None:
        """Returns when `until` is true of what was heard. Fails after a while."""
        with self._changed:
            came = self._changed.wait_for(lambda: self.problem or until(), DEADLINE_S)
        assert not self.problem, self.problem
        assert came, [(event.kind, event.data) for event in self.events]

    def hears_heartbeat(self, within_s: float) -> bool:
        """Whether the gateway says within so long that its loop turns."""
        with self._changed:
            known = self._heartbeats
            return self._changed.wait_for(lambda: self._heartbeats > known, within_s)

    def of(self, kind: Kind) -> list[dict[str, Any]]:
        """The data of the events of a kind so far."""
        return [dict(event.data) for event in self.events if event.kind is kind]

    def first(self, kind: Kind, **wanted: object) -> Item:
        """The first event of a kind with these data; waits for it."""

        def found() -> Item | None:
            for event in self.events:
                if event.kind is kind and all(
                    event.data.get(name) == value for name, value in wanted.items()
                ):
                    return event
            return None

        self.wait(lambda: found() is not None)
        event = found()
        assert event is not None
        return event


@dataclass
class Gateway:
    """A running gateway. `ports`: http, tls, tcp, smtp, smtps, sink, dns_udp."""

    owner: Owner
    process: subprocess.Popen[bytes]
    ports: dict[str, int]
    authority: Path

    def connect(self, protocol: str, address: str = SHOP) -> socket.socket:
        sock = socket.create_connection((address, self.ports[protocol]), timeout=DEADLINE_S)
        sock.settimeout(DEADLINE_S)
        return sock

    def exchange(self, data: bytes, protocol: str = "http", address: str = SHOP) -> bytes:
        """All that is answered to these bytes until the gateway closes."""
        with self.connect(protocol, address) as sock:
            sock.sendall(data)
            return read_all(sock)

    def curl(self, *args: str, path: str = "/") -> tuple[int, str]:
        """curl's exit status, and its output: the body, a line `STATUS VERSION`."""
        name, port = "shop.example", self.ports["tls"]
        argv = ["curl", "-sS", "--noproxy", "*", "--cacert", str(self.authority)]
        argv += ["--resolve", f"{name}:{port}:{SHOP}", "-w", "\n%{http_code} %{http_version}"]
        argv += [*args, f"https://{name}:{port}{path}"]
        done = subprocess.run(argv, capture_output=True, timeout=60, check=False)
        return done.returncode, done.stdout.decode("latin-1") + done.stderr.decode("latin-1")


def read_all(sock: socket.socket) -> bytes:
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            got += data
    return got


def is_silent(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    finally:
        sock.settimeout(DEADLINE_S)
    return False


def layout() -> RangeLayout:
    owners = ("shop", "wild", "mail", "other")
    names = zip(NAMES.items(), owners, strict=True)
    agent = CellPort(name="agent", address="127.0.0.1", mac="", gateway_mac="", outer_device="p0")
    return RangeLayout(
        prefix="127.0.76.0/22",
        resolver=RESOLVER,
        names=tuple(NameAddress(pattern=p, stand_in=s, address=a) for (p, a), s in names),
        catch_all=None,
        cells=(agent,),
    )


def listener(kind: int = socket.SOCK_STREAM) -> socket.socket:
    sock = socket.socket(socket.AF_INET, kind)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((RESOLVER if kind == socket.SOCK_DGRAM else "0.0.0.0", 0))  # noqa: S104
    if kind == socket.SOCK_STREAM:
        sock.listen(4096)
    return sock


@contextlib.contextmanager
def running(
    directory: Path,
    *,
    bounds: Bounds | None = None,
    kinds: Mapping[str, str] | None = None,
    **changes: Any,  # noqa: ANN401 - bounds
) -> Iterator[Gateway]:
    """A gateway with stand-ins `shop`, `wild`, `other` (http, tls) and `mail`."""
    protocols = ("http", "tls", "smtp", "smtps", "tcp")
    tcp = {name: listener() for name in protocols}
    ports = {name: int(sock.getsockname()[1]) for name, sock in tcp.items()}
    rest = {"dns_udp": listener(socket.SOCK_DGRAM), "sink": listener()}
    ports |= {name: int(sock.getsockname()[1]) for name, sock in rest.items()}
    web = tuple(PortPlan(number=ports[name], protocol=name) for name in ("http", "tls"))
    raw = tuple(PortPlan(number=ports[name], protocol=name) for name in ("smtp", "smtps", "tcp"))
    stand_ins = [
        StandInPlan(id=id_, kind=(kinds or {}).get(id_, "http"), names=(), ports=web)
        for id_ in ("shop", "wild", "other")
    ]
    stand_ins.append(StandInPlan(id="mail", kind="smtp", names=("mail.example",), ports=raw))
    config = GatewayConfig(
        layout=layout(),
        stand_ins=tuple(stand_ins),
        scratch=directory,
        bounds=replace(bounds or Bounds(), **changes),
    )
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fds: dict[str, Any] = {
        "events": there.fileno(),
        **{name: sock.fileno() for name, sock in rest.items()},
    }
    fds["tcp"] = {ports[name]: sock.fileno() for name, sock in tcp.items()}
    argv = [sys.executable, "-W", "error", str(Path(__file__).with_name("gateway_main.py"))]
    process = subprocess.Popen(
        [*argv, json.dumps(json_of(config)), json.dumps(fds)],
        pass_fds=[there.fileno(), *(sock.fileno() for sock in (*tcp.values(), *rest.values()))],
        env=dict(os.environ),
    )
    there.close()
    owner = Owner(here)
    try:
        owner.wait(lambda: owner.ready is not None)
        assert owner.ready is not None
        authority = directory / "authority.pem"
        authority.write_text(str(owner.ready.data["certificate"]))
        yield Gateway(owner, process, ports, authority)
        assert owner.ended is not None or process.poll() is None, "the gateway has died"
        assert not owner.problem, owner.problem
    finally:
        process.kill()
        process.wait()
        for sock in (*tcp.values(), *rest.values(), here):
            sock.close()


# In everything but time: what waits is `test_gateway_waits`' affair, and a busy machine no client's
# fault.
SMALL = Bounds(
    head_timeout_s=60.0, handshake_timeout_s=60.0, body_bytes=100_000, head_bytes=8192, headers=20
)


def reason(gateway: Gateway) -> str:
    """Why a request was refused: its head, or its body."""

    def reasons() -> list[str]:
        kinds = (Kind.NETWORK_HTTP, Kind.NETWORK_HTTP_ANSWERED)
        events = [event for event in gateway.owner.events if event.kind in kinds]
        return [str(event.data["reason"]) for event in events if event.data.get("reason")]

    gateway.owner.wait(lambda: bool(reasons()))
    return reasons()[0]
