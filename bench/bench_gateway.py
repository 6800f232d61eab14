"""The gateway against the same application on plain uvicorn, and through mitmdump.

    python bench/bench_gateway.py [--mitmdump PATH] [--rounds N] [--json]

One ASGI application, one client, loopback, cleartext HTTP/1.1, keep-alive. The gateway judges each
request and has it in a real ledger (a process of its own, on the disk) before it answers; `guarded`
looks at it first, for thirty values and credentials, as where a policy blocks; uvicorn and mitmdump
(a reverse proxy before the same uvicorn) record nothing. They alternate; medians of the rounds.
`--mitmdump` is the program's path (a virtual environment of its own: its pins are others); without it
its column is empty.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dns.message
import uvicorn
from starlette.types import Receive, Scope, Send

from belljar.events import Event, Kind
from belljar.ledger.rundir import RunDirectory
from belljar.network.gateway.config import Bounds, GatewayConfig, GuardConfig
from belljar.network.gateway.serve import run
from belljar.network.ipc import ASK, KINDS, EventDecoder, encode_ack
from belljar.network.stand_ins.web import App, HttpAnswer, Request, StandInContext
from belljar.plan.addresses import CellPort, NameAddress, RangeLayout
from belljar.plan.network import PortPlan, StandInPlan
from belljar.policy.guarding import Action, Place
from belljar.signals.values import KnownValue, ScanSpec, ValueSource

RESOLVER, SHOP = "127.0.79.1", "127.0.79.2"
SEQUENTIAL = 400
AT_ONCE = 16
BUSY_REQUESTS = 1600
QUERIES = 3000
QUERIES_AT_ONCE = 32


async def application(_scope: Scope, receive: Receive, send: Send) -> None:
    """A KiB."""
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1024")]})
    await send({"type": "http.response.body", "body": b"x" * 1024})


async def stand_in(_request: Request) -> HttpAnswer:
    """The same."""
    return HttpAnswer(body=b"x" * 1024)


def plain(fd: int) -> None:
    """uvicorn, on h11 as the gateway."""
    config = uvicorn.Config(application, http="h11", loop="asyncio", lifespan="off", log_config=None, access_log=False)
    uvicorn.Server(config).run([socket.socket(fileno=fd)])


def make(_kind: str, _context: StandInContext) -> App:
    """The same as a stand-in."""
    return stand_in


def guard() -> GuardConfig:
    """Of a policy that blocks thirty values."""
    texts = [f"value-{number:04}-{secrets.token_hex(8)}" for number in range(30)]
    values = [KnownValue(id=text[:10], text=text, source=ValueSource.PROTECTED) for text in texts]
    return GuardConfig(
        spec=ScanSpec(values=tuple(values), key_hex="00" * 32), actions=dict.fromkeys(Place, Action.BLOCK)
    )


def gateway(events: int, udp: int, http: int, scratch: str, guarded: str) -> None:
    """A gateway."""
    socks = [socket.socket(fileno=fd) for fd in (events, udp, http)]
    for sock in socks:
        sock.setblocking(False)  # noqa: FBT003 - the library's signature
    port = socks[2].getsockname()[1]
    layout = RangeLayout(
        prefix="127.0.76.0/22",
        resolver=RESOLVER,
        names=(NameAddress(pattern="shop.example", stand_in="shop", address=SHOP),),
        catch_all=None,
        cells=(CellPort(name="agent", address="127.0.0.1", mac="", gateway_mac="", outer_device=""),),
    )
    shop = StandInPlan(id="shop", kind="http", names=("shop.example",), ports=(PortPlan(number=port, protocol="http"),))
    bounds = Bounds()
    config = GatewayConfig(
        layout=layout, stand_ins=(shop,), scratch=Path(scratch), bounds=bounds, guard=guard() if guarded else None
    )
    asyncio.run(run(config, {"dns_udp": socks[1], str(port): socks[2]}, socks[0], make))


def owner(events: int, home: str) -> None:
    """Records every event in a ledger and says so."""
    sock, decoder = socket.socket(fileno=events), EventDecoder()
    with RunDirectory(Path(home), "bench", ["bench"]) as ledger:
        while datagram := sock.recv(1 << 17):
            said = decoder.feed(datagram)
            if said is not None and said.kind in KINDS:
                kind = Kind(said.kind)
                ledger.recorder.record(Event(kind=kind, data=said.data, bodies=said.bodies))
            if said is not None and said.kind != ASK:
                sock.send(encode_ack(said.id))


def listening(kind: int = socket.SOCK_STREAM) -> socket.socket:
    """A socket on every address; the resolver's has its own, as in a range's namespace."""
    sock = socket.socket(socket.AF_INET, kind)
    sock.bind(("0.0.0.0" if kind == socket.SOCK_STREAM else RESOLVER, 0))  # noqa: S104 - the same
    if kind == socket.SOCK_STREAM:
        sock.listen(1024)
    return sock


@contextlib.contextmanager
def role(*argv: str, fds: tuple[int, ...] = ()) -> Iterator[None]:
    """A process of this file in another role."""
    process = subprocess.Popen([sys.executable, __file__, "--role", *argv], pass_fds=fds)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Client:
    """Keep-alive connections to one server."""

    def __init__(self, address: str, port: int) -> None:
        self._where = (address, port)
        self._request = b"GET /x HTTP/1.1\r\nHost: shop.example\r\nAccept: */*\r\n\r\n"

    def _post(self, number: int) -> bytes:
        body = json.dumps({"id": number, "text": "a blue chair of wood " * 48}).encode()[:1024].ljust(1024)
        head = f"POST /x?page={number} HTTP/1.1\r\nHost: shop.example\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def run(self, count: int, *, post: bool = False) -> list[float]:
        """So many requests on one connection; milliseconds each."""
        reader, writer = await asyncio.open_connection(*self._where)
        took = []
        for number in range(count):
            request = self._post(number) if post else self._request
            at = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head)
            await reader.readexactly(1024)
            took.append((time.perf_counter() - at) * 1000)
        writer.close()
        return took

    async def measure(self) -> dict[str, float]:
        """Latency of one after the other, and how many a second of many at once."""
        await self.run(50)
        took = sorted(await self.run(SEQUENTIAL))
        posts = sorted(await self.run(SEQUENTIAL, post=True))
        at = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self.run(BUSY_REQUESTS // AT_ONCE))
        busy_s = time.perf_counter() - at
        return {
            "p50_ms": took[len(took) // 2],
            "p95_ms": took[len(took) * 95 // 100],
            "post_p50_ms": posts[len(posts) // 2],
            "per_s": BUSY_REQUESTS / busy_s,
        }


def dns_per_s(port: int) -> float:
    """Answers a second, with so many queries on their way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(20)
        sock.connect((RESOLVER, port))
        query = dns.message.make_query("shop.example", "A").to_wire()
        at = time.perf_counter()
        for _ in range(QUERIES_AT_ONCE):
            sock.send(query)
        for number in range(QUERIES):
            sock.recv(4096)
            if number < QUERIES - QUERIES_AT_ONCE:
                sock.send(query)
        return QUERIES / (time.perf_counter() - at)


@contextlib.contextmanager
def servers(mitmdump: str | None, scratch: str) -> Iterator[tuple[dict[str, Client], int]]:
    """All of them, and the resolver's port."""
    with contextlib.ExitStack() as stack:
        app = stack.enter_context(listening())
        stack.enter_context(role("plain", str(app.fileno()), fds=(app.fileno(),)))
        clients = {"uvicorn": Client("127.0.0.1", app.getsockname()[1])}
        for name, guarded in (("guarded", "yes"), ("gateway", "")):
            http, udp = (stack.enter_context(s) for s in (listening(), listening(socket.SOCK_DGRAM)))
            here, there = (stack.enter_context(s) for s in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            stack.enter_context(role("owner", str(here.fileno()), f"{scratch}/{name}", fds=(here.fileno(),)))
            fds = tuple(s.fileno() for s in (there, udp, http))
            stack.enter_context(role("gateway", *map(str, fds), scratch, guarded, fds=fds))
            clients[name] = Client(SHOP, http.getsockname()[1])
        if mitmdump is not None:
            with listening() as free:
                port = free.getsockname()[1]
            target = f"reverse:http://127.0.0.1:{app.getsockname()[1]}"
            argv = [mitmdump, "-q", "--mode", target, "--listen-port", str(port), "--set", f"confdir={scratch}"]
            process = subprocess.Popen(argv)
            stack.callback(process.wait)
            stack.callback(process.kill)
            clients["mitmdump"] = Client("127.0.0.1", port)
            _answering(port)
        yield clients, udp.getsockname()[1]


def _answering(port: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise RuntimeError("mitmdump does not listen")


def measured(mitmdump: str | None, rounds: int) -> dict[str, Any]:
    """Medians of the rounds, by server and figure."""
    found: dict[str, list[dict[str, float]]] = {}
    queries = []
    with tempfile.TemporaryDirectory() as scratch, servers(mitmdump, scratch) as (clients, dns_port):
        for _ in range(rounds):
            for name, client in clients.items():
                found.setdefault(name, []).append(asyncio.run(client.measure()))
            queries.append(dns_per_s(dns_port))
    medians = {name: {k: statistics.median(r[k] for r in rs) for k in rs[0]} for name, rs in found.items()}
    return {**medians, "dns_per_s": statistics.median(queries), "load": os.getloadavg()[0], "rounds": rounds}


def show(found: dict[str, Any]) -> None:
    """A table with ratios to plain uvicorn."""
    base = found["uvicorn"]
    print(f"{'':12} {'P50 ms':>8} {'P95 ms':>8} {'POST P50':>8} {'a second':>9}  ratios to uvicorn")
    for name in ("uvicorn", "gateway", "guarded", "mitmdump"):
        if name in found:
            row = found[name]
            ratios = " ".join(f"{row[k] / base[k]:.2f}" for k in base)
            print(
                f"{name:12} {row['p50_ms']:8.2f} {row['p95_ms']:8.2f} {row['post_p50_ms']:8.2f} {row['per_s']:9.0f}  {ratios}"
            )
    print(f"DNS answers a second: {found['dns_per_s']:.0f}; load {found['load']:.1f}, {found['rounds']} rounds")


def main() -> None:
    """Measures, or plays a role."""
    roles = {"plain": lambda fd: plain(int(fd)), "owner": lambda fd, home: owner(int(fd), home)}
    if sys.argv[1:2] == ["--role"]:
        name, *rest = sys.argv[2:]
        if name == "gateway":
            gateway(*map(int, rest[:3]), *rest[3:])  # type: ignore[arg-type]
        else:
            roles[name](*rest)  # type: ignore[operator]
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mitmdump")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measured(given.mitmdump, given.rounds)
    print(json.dumps(found)) if given.json else show(found)


if __name__ == "__main__":
    main()
