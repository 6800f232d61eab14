"""The ranges that the cases are tried in: three at a time in one tier, two of them struck at the end."""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from tests.security.egress import forged, host
from tests.security.egress.case import Case
from tests.security.egress.table import CASES, LISTENED, port, token

from belljar.cell.cell import Cell
from belljar.cell.open import open_range
from belljar.cell.parts import start_run
from belljar.cell.range import Range
from belljar.errors import BelljarError
from belljar.ledger.rundir import RunDirectory
from belljar.network.owner.range import NetworkRange as Network
from belljar.plan.addresses import RangeLayout
from belljar.plan.rules import DropReason
from belljar.policy.guarding import METADATA_ADDRESS
from belljar.policy.load import load_policy

PROBER: Final = Path(__file__).with_name("prober.py")
SERVER: Final = (
    "import socket\ns = socket.create_server(('', 5432))\nwhile True:\n c, _ = s.accept()\n"
    " c.sendall(b'welcome')\n c.close()\n"
)
HEAD: Final = """\
belljar: 1
risk: low
tier: {tier}
user: root
resources: {{cpus: 1, memory: 256MiB, disk: 64MiB, processes: 64, exec_timeout: 180s}}
network:
"""
SITE: Final = 'routes: [{path: "/{rest...}", body: "%s"}, {path: /, body: "%s"}]'
POLICIES: Final = {
    "deny": (
        f"""
  stand_ins:
    shop: {{kind: http, names: [shop.example, "*.shop.example"], ports: [80, 443/tls], {SITE % ("shop", "shop")}}}
    pay: {{kind: http, names: [pay.shop.example], ports: [80, 443/tls], {SITE % ("pay", "pay")}}}
    post: {{kind: smtp, names: [mail.example], ports: [25]}}
    db:
      kind: cell
      user: root
      names: [db.example]
      ports: [5432]
      command: [python3, -c, {json.dumps(SERVER)}]
      health: {{command: [python3, -c, "import socket; socket.create_connection(('127.0.0.1', 5432))"], interval: 200ms}}
"""
    ),
    "open": (
        f"""
  default: simulate
  sink: true
  stand_ins:
    cloud: {{kind: metadata}}
    private: {{kind: http, names: [private.example], ports: [8080], {SITE % ("private", "private")}}}
"""
    ),
    "bare": "\n  default: deny\n",
}
FIRST_PORT: Final = 40_001
"""Where a fresh cell's first command sends to."""
SENDER: Final = """
import socket, sys, time
while True:
    for address in sys.argv[2:]:
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            s = socket.socket(socket.AF_INET, kind)
            s.setblocking(False)
            try:
                s.connect_ex((address, int(sys.argv[1])))
                s.send(b"after")
            except OSError:
                pass
            s.close()
    print("sent", flush=True)
    time.sleep(0.02)
"""
FIRST: Final = """
(echo first > /dev/udp/203.0.113.70/{port}) &
(echo first > /dev/tcp/203.0.113.70/{port}) &
(echo first > /dev/tcp/{lan}/{ear}) &
wait
"""
TIMEOUT_S: Final = {"container": 20.0, "gvisor": 20.0, "microvm": 30.0}
"""How long the prober waits for an answer, in each tier: a machine that is emulated takes its time
for TLS."""
DEATH_S: Final = 60.0
"""By when what has been struck must have ended. It takes a second or two; a test that waits so long
has failed."""
LOOKS: Final = 50
"""At the counters, for one packet: a busy kernel may take a moment to pass it on."""
LONG: Final = ".".join(
    f"{number * 2654435761:x}x7q9z2k4w8mfj3hd0s6t1r5ypbnvcgla8e7u9i0o2p3q4w5z6x7c8v9b"[:60]
    for number in (3, 5, 7)
)
"""180 characters that could be data."""


@dataclass(frozen=True)
class Outside:
    tier: str
    home: Path
    folder: Path
    lan: host.Lan
    ports: Sequence[int]
    tried: Sequence[str]


@dataclass(kw_only=True)
class Opened:
    """A range while it lives, and what came of it: counters, links, the prober's words."""

    made: Range
    network: Network
    run: RunDirectory
    words: dict[str, str] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    routes: list[str] = field(default_factory=list)
    flushed_s: float = math.inf

    @property
    def pids(self) -> tuple[int, int]:
        supervisor, gateway = self.network.pids
        return supervisor, gateway

    @property
    def packets(self) -> bytes:
        return next(self.run.path.glob("ranges/*/packets.pcapng")).read_bytes()

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(self.made.cells.values())


@dataclass(kw_only=True)
class Death:
    raised: str
    why: str
    cells_ended: bool
    left: str = ""


def own_words(case: Case, ports: Sequence[int]) -> dict[str, str]:
    """What is a case's alone: its port, its token, and a port of the host's listeners."""
    ear = ports[LISTENED.index(case)] if case in LISTENED else 0
    return {"port": str(port(case)), "token": token(case), "ear": str(ear)}


def place(case: Case) -> tuple[str, str]:
    """The range and the cell that a case is tried in."""
    return ("deny", "db") if case.where == "db" else (case.where, "default")


Ready = Callable[[list[str]], Awaitable[None]]
"""Told the ranges' networks when all of them stand, before anything is tried."""


class Play:
    def __init__(self, outside: Outside, ready: Ready) -> None:
        self.outside, self._ready = outside, ready
        self.ranges: dict[str, Opened] = {}
        self.deaths: dict[str, Death] = {}
        self.forged: dict[str, dict[str, int]] = {}

    async def play(self) -> None:
        """From the first range's beginning to the last one's end."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._range("bare"))
            await self._first_command(self.ranges["bare"].cells[0])
            for name in ("deny", "open"):
                await stack.enter_async_context(self._range(name))
            await self._ready([made.network.layout.prefix for made in self.ranges.values()])
            await self._try_all()
            await self._forge(self.ranges["bare"].network)
            await self._strike("deny", self._flush)
            await self._strike("bare", self._kill)

    @asynccontextmanager
    async def _range(self, name: str) -> AsyncIterator[None]:
        file = self.outside.folder / f"{name}.yaml"
        file.write_text(HEAD.format(tier=self.outside.tier) + POLICIES[name])
        try:
            with start_run("egress", name, [], home=self.outside.home) as run:
                async with open_range(load_policy(file), run=run, home=self.outside.home) as made:
                    assert made.network is not None
                    self.ranges[name] = Opened(made=made, network=made.network, run=run)
                    yield
        except BelljarError as error:
            if name not in self.deaths:
                raise
            self.deaths[name].left = type(error).__name__

    async def _first_command(self, cell: Cell) -> None:
        words = FIRST.format(
            port=FIRST_PORT, lan=self.outside.lan.private, ear=self.outside.ports[-1]
        )
        await cell.exec(["/bin/bash", "-c", words])

    async def _try_all(self) -> None:
        """In all cells at the same time: the ranges are each other's neighbours while they work."""
        async with anyio.create_task_group() as group:
            for name, made in self.ranges.items():
                for cell_name, cell in made.made.cells.items():
                    cases = [case for case in CASES if place(case) == (name, cell_name)]
                    if cases:
                        group.start_soon(self._try, name, cell, cases)
        for made in self.ranges.values():
            await made.network.check()
            made.counters = made.network.counters()
            supervisor = made.pids[0]
            made.links = [device["ifname"] for device in host.ip("link", namespace=supervisor)]
            made.routes = [
                route["dst"]
                for route in host.ip("route", "show", "table", "all", namespace=supervisor)
            ]

    async def _try(self, name: str, cell: Cell, cases: Sequence[Case]) -> None:
        known, steps = self.facts(name), []
        for case in cases:
            own = {**known, **own_words(case, self.outside.ports)}
            do, *args = [word.format_map(own) for word in case.step]
            steps.append({"id": case.name, "do": do, "args": args, "alone": case.alone})
        await cell.write_file("/prober.py", PROBER.read_bytes())
        told = json.dumps({"steps": steps, "timeout_s": TIMEOUT_S[self.outside.tier]}).encode()
        output = await cell.exec(["python3", "/prober.py"], input=told, max_output_bytes=1 << 20)
        assert output.success, output.stderr.decode("utf-8", "replace")[-2000:]
        self.ranges[name].words.update(json.loads(output.stdout))

    async def _forge(self, network: Network) -> None:
        port = network.layout.cell("default")
        pid = await anyio.to_thread.run_sync(forged.namespace_of, port)
        before = network.counters()
        with forged.sending(pid) as send:
            for name, frame in forged.frames(port, network.layout.resolver).items():
                await anyio.to_thread.run_sync(send, frame)
                moved: dict[str, int] = {}
                for _ in range(LOOKS):
                    await network.check()
                    after = network.counters()
                    moved = {word: after[word] - before[word] for word in DropReason}
                    if any(moved.values()):
                        break
                self.forged[name] = {word: count for word, count in moved.items() if count}
                before = after

    def facts(self, name: str) -> dict[str, str]:
        """What stands in a case's braces: addresses of this range, the one beside, the host."""
        beside = {"deny": "open"}.get(name, "deny")
        own, other = (addresses(self.ranges[each].network.layout) for each in (name, beside))
        return {
            **own,
            **{f"n_{key}": value for key, value in other.items()},
            "lan": self.outside.lan.private,
            "lan_public": self.outside.lan.public,
            "host": ",".join(
                address for address in self.outside.tried if not address.startswith("127.")
            ),
            "long": LONG,
        }

    async def _strike(self, name: str, blow: Callable[[Opened], None]) -> None:
        """While a command of its own cell sends and sends, as it does until it ends."""
        made = self.ranges[name]
        watched = [os.pidfd_open(cell.host_pid) for cell in made.cells if cell.host_pid is not None]
        begun = anyio.Event()
        targets = [self.outside.lan.private, self.outside.lan.public, *self._victims(name)]
        argv = ["python3", "-c", SENDER, str(self.outside.ports[-1]), *targets]
        raised: list[BelljarError] = []

        async def send() -> None:
            try:
                await made.made.cell.exec(argv, on_output=lambda *_: begun.set())
            except BelljarError as error:
                raised.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            with anyio.fail_after(DEATH_S):
                await begun.wait()
            await anyio.to_thread.run_sync(blow, made)
        ended = [await anyio.to_thread.run_sync(_has_ended, fd) for fd in watched]
        error = raised[0] if raised else None
        self.deaths[name] = Death(
            raised=type(error).__name__,
            why="" if error is None else error.what,
            cells_ended=bool(ended) and all(ended),
        )

    def _victims(self, name: str) -> list[str]:
        """What it would reach if nothing stood before it: its own cells, and the others'."""
        others = [made for each, made in self.ranges.items() if each != name]
        return [
            cell.address
            for made in [self.ranges[name], *others]
            for cell in made.network.layout.cells
        ]

    @staticmethod
    def _flush(made: Opened) -> None:
        made.flushed_s = time.time()
        host.within(made.pids[0], "nft", "flush", "ruleset")

    @staticmethod
    def _kill(made: Opened) -> None:
        os.kill(made.pids[1], signal.SIGKILL)


def _has_ended(pidfd: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(pidfd, selectors.EVENT_READ)
        ready = bool(selector.select(DEATH_S))
    os.close(pidfd)
    return ready


def addresses(layout: RangeLayout) -> dict[str, str]:
    """A layout's addresses by the words that cases have for them."""
    prefix = IPv4Network(layout.prefix)
    named = {name.address for name in layout.names} | {layout.resolver, layout.catch_all}
    words = {"*.shop.example": "wild", METADATA_ADDRESS: "cloud"}
    known = {
        words.get(name.pattern, name.pattern.partition(".")[0]): name.address
        for name in layout.names
    }
    return {
        **known,
        "resolver": layout.resolver,
        "own": layout.cell("default").address,
        "catch_all": layout.catch_all or "",
        "free": next(str(prefix[at]) for at in range(2, 255) if str(prefix[at]) not in named),
        "unused": str(prefix[700]),
        "network": str(prefix[0]),
        "broadcast": str(prefix[-1]),
    }
