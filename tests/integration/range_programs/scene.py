"""A range for the scenarios in this folder: what it recorded, its failures, and its cells: plain
processes in network namespaces that talk with this host's own tools."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from tests.fakes.recorder import MemoryRecorder

from belljar.errors import BelljarError
from belljar.network.owner.processes import RangeSpec
from belljar.network.owner.range import NetworkRange
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan, PortPlan, StandInPlan
from belljar.process import ProcessId, identify

GATEWAYS = "tests.integration.range_programs.gateways"
PLAIN = f"{GATEWAYS}:serve"
PROBING = f"{GATEWAYS}:probe"
SHOP = StandInPlan(
    id="shop",
    kind="http",
    names=("shop.example",),
    ports=(PortPlan(number=80, protocol="http"), PortPlan(number=8080, protocol="http")),
)
TIMEOUT_S = 120.0
CLIENT = r"""
import contextlib, json, socket, sys
def talk(kind, address, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    tries = 12 if kind == "udp" else 1  # a datagram and its answer can be lost
    s.settimeout(float(sys.argv[2]) / tries)
    try:
        s.connect((address, port))
        for left in reversed(range(tries)):
            s.send(b"hello\n")
            with contextlib.suppress(*[TimeoutError] * bool(left)):
                return s.recv(100).decode()
    except OSError as exc:
        return type(exc).__name__ + " " + str(exc.errno)
print(json.dumps([talk(*asked) for asked in json.loads(sys.argv[1])]))
"""


class Cell:
    """A process in a network namespace of its own, and what can be run beside it."""

    def __init__(self, made: NetworkRange) -> None:
        nested = [] if made.user_namespace is None else ["--user", "--map-root-user"]
        words = ["unshare", *nested, "--net", "sh", "-c", "echo up; exec sleep 600"]
        fds = [] if made.user_namespace is None else [made.user_namespace]
        self._process = subprocess.Popen(
            [*enter_user(fds), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=fds,
            env={"PATH": os.environ["PATH"]},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"up\n"
        self.pid = self._process.pid
        self.namespace = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY)
        self.fds = [os.open(f"/proc/{self.pid}/ns/user", os.O_RDONLY)] if nested else []

    def _inside(self, argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
        net = ["nsenter", f"--net=/proc/self/fd/{self.namespace}"]
        options = {"text": True, "pass_fds": [*self.fds, self.namespace]}
        return [*enter_user(self.fds), *net, *argv], options

    def run(self, *argv: str) -> str:
        """What a command prints that runs in the cell's network."""
        words, options = self._inside(argv)
        done = subprocess.run(words, capture_output=True, check=False, timeout=300, **options)
        return str(done.stdout) if done.returncode == 0 else f"failed: {done.stderr}"

    @contextlib.contextmanager
    def going_on(self, *argv: str) -> Iterator[IO[str]]:
        """A command that runs in the cell's network until the block is left, and what it says."""
        words, options = self._inside(argv)
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(words, stdout=pipe, stderr=none, **options) as process:
            assert process.stdout is not None
            try:
                yield process.stdout
            finally:
                process.kill()

    def queue(self) -> dict[str, Any]:
        """What waits at the cell's end of its port, and what was thrown away there."""
        return dict(json.loads(self.run("tc", "-s", "-j", "qdisc", "show", "dev", "eth0"))[0])

    def talk(self, *asked: tuple[str, str, int], within_s: float = TIMEOUT_S) -> list[str]:
        """(udp or tcp, address, port) each: what came back, or the error."""
        words = (json.dumps(asked), str(within_s))
        return list(json.loads(self.run(sys.executable, "-I", "-c", CLIENT, *words)))

    def end(self) -> None:
        for fd in (self.namespace, *self.fds):
            os.close(fd)
        self._process.kill()
        self._process.communicate()


def enter_user(fds: list[int]) -> list[str]:
    """What stands before a command that is to run in this descriptor's user namespace, if any."""
    return [
        word
        for fd in fds
        for word in ("nsenter", f"--user=/proc/self/fd/{fd}", "--preserve-credentials")
    ]


class Scene:
    def __init__(self, home: Path, **changes: Any) -> None:  # noqa: ANN401 - fields of the plan
        self.network = replace(NetworkPlan(stand_ins=(SHOP,)), **changes)
        self.layout = lay_out(
            self.network, ["agent", "other"], random_bytes=os.urandom(16), avoid=[]
        )
        self.recorder = MemoryRecorder()
        self.home = home
        self.directory = Path(tempfile.mkdtemp(dir=home))
        self.deaths: list[BelljarError] = []
        self.died = threading.Event()

    def on_failure(self, error: BelljarError) -> None:
        self.deaths.append(error)
        self.died.set()

    @contextlib.asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[NetworkRange]:  # noqa: ANN401 - RangeSpec's, and answer
        answer = options.pop("answer", None)
        options = {"serve": PLAIN, **options}
        async with NetworkRange(
            RangeSpec(
                network=self.network, layout=self.layout, directory=self.directory, **options
            ),
            recorder=self.recorder,
            home=self.home,
            on_failure=self.on_failure,
            handle_request=answer,
        ) as made:
            yield made

    def data(self, kind: str) -> list[dict[str, Any]]:
        return [dict(event.data) for event in self.recorder.events if event.kind == kind]

    def address(self, name: str = "shop.example") -> str:
        return next(item.address for item in self.layout.names if item.pattern == name)

    def summary(self, made: NetworkRange) -> dict[str, Any]:
        destruction = made.destruction
        return {
            "range": made.id,
            "clean": destruction is not None and destruction.clean,
            "survivors": [] if destruction is None else list(destruction.survivors),
            "unproven": [] if destruction is None else list(map(str, destruction.unproven)),
            "deaths": [[type(error).__name__, error.what] for error in self.deaths],
            "kinds": [str(event.kind) for event in self.recorder.events],
            "journal": sorted(path.name for path in (self.home / "journal").glob("*")),
        }


def processes(made: NetworkRange) -> tuple[ProcessId, ProcessId]:
    supervisor, gateway = map(identify, made.pids)
    assert supervisor is not None
    assert gateway is not None
    return supervisor, gateway


def fork_server_of(made: NetworkRange) -> int:
    status = status_of(processes(made)[0])
    return int(status.partition("\nPPid:")[2].split()[0])


def status_of(process: ProcessId) -> str:
    return Path(f"/proc/{process.pid}/status").read_text()


@contextlib.contextmanager
def cell(made: NetworkRange) -> Iterator[Cell]:
    living = Cell(made)
    try:
        yield living
    finally:
        living.end()


def within(true: Callable[[], bool]) -> bool:
    give_up = time.monotonic() + TIMEOUT_S
    while not (done := true()) and time.monotonic() < give_up:
        time.sleep(0.01)
    return done
