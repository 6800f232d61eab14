"""Ranges of one policy and one run, side by side, for the tests that look for one in the other."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from belljar.cell.cell import Cell
from belljar.cell.open import open_range
from belljar.cell.range import Range
from belljar.ledger.rundir import RunDirectory
from belljar.network.owner.range import NetworkRange as Network
from belljar.policy.loaded import LoadedPolicy

CLIENT: Final = """
import json, socket, sys
def talk(kind, address, port, said, least=1):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    s.settimeout(20)
    data = b""
    try:
        s.connect((address, port))
        s.sendall(bytes.fromhex(said))
        while True:
            more = s.recv(65536)
            data += more
            if not more or kind == "udp":
                break
    except OSError as error:
        return data.hex() or type(error).__name__
    return data.hex()
print(json.dumps([talk(*asked) for asked in json.load(sys.stdin)]))
"""


RUNNER: Final = """
import concurrent.futures, json, subprocess, sys
def run(argv):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.decode("utf-8", "replace")
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(json.dumps([*pool.map(run, json.load(sys.stdin))]))
"""


@dataclass(frozen=True)
class Side:
    opened: Range
    network: Network

    @property
    def cell(self) -> Cell:
        return self.opened.cell

    @property
    def gateway(self) -> int:
        return self.pids[1]

    @property
    def pids(self) -> tuple[int, int]:
        supervisor, gateway = self.network.pids
        return supervisor, gateway

    def address(self, pattern: str = "board.example") -> str:
        return next(name.address for name in self.network.layout.names if name.pattern == pattern)

    async def talk(self, *asked: tuple[str, str, int, bytes]) -> list[bytes]:
        """(udp or tcp, address, port, what is said): what came of each, or the error's name."""
        told = json.dumps(
            [(kind, address, port, said.hex()) for kind, address, port, said in asked]
        ).encode()
        output = await self.cell.exec(["python3", "-I", "-c", CLIENT], input=told)
        assert output.success, output.stderr
        found: list[str] = json.loads(output.stdout)
        return [
            bytes.fromhex(text) if re.fullmatch("([0-9a-f]{2})*", text) else text.encode()
            for text in found
        ]

    async def http(
        self, *requests: tuple[str, str, bytes], host: str = "board.example"
    ) -> list[bytes]:
        """(method, path, body) each: what came back, whole, without the time."""
        asked = [
            ("tcp", self.address(host), 80, request_bytes(*request, host=host))
            for request in requests
        ]
        return [re.sub(rb"(?i)date: [^\r]*\r\n", b"", said) for said in await self.talk(*asked)]

    async def run(self, commands: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """What programs say, both streams, whatever their codes; several at a time."""
        output = await self.cell.exec(
            ["python3", "-I", "-c", RUNNER], input=json.dumps([*commands.values()]).encode()
        )
        assert output.success, output.stderr
        return dict(zip(commands, json.loads(output.stdout), strict=True))

    async def dns(self, *names: str) -> list[bytes]:
        """The resolver's answers, with this range's own addresses left out."""
        said = await self.talk(
            *(("udp", self.network.layout.resolver, 53, query(name)) for name in names)
        )
        own = {
            bytes(int(part) for part in name.address.split("."))
            for name in self.network.layout.names
        }
        for address in own:
            said = [answer.replace(address, b"ADDR") for answer in said]
        return said


def request_bytes(method: str, path: str, body: bytes, *, host: str) -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\nConnection:"
        " close\r\n\r\n"
    )
    return head.encode() + body


def query(name: str) -> bytes:
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    return b"\x2a\x2a\x01\x00\x00\x01\0\0\0\0\0\0" + labels + b"\0\0\x01\0\x01"


@dataclass(frozen=True)
class Pair:
    one: Side
    other: Side
    run: RunDirectory

    def events(self, side: Side) -> list[dict[str, Any]]:
        """What is on record of one range: the network's events."""
        lines = (
            json.loads(line) for line in (self.run.path / "ledger.jsonl").read_bytes().splitlines()
        )
        return [
            line
            for line in lines
            if line["kind"].startswith("network.") and line["data"]["range"] == side.network.id
        ]


@asynccontextmanager
async def opened_side(policy: LoadedPolicy, run: RunDirectory, home: Path) -> AsyncIterator[Side]:
    async with open_range(policy, run=run, home=home) as opened:
        assert opened.network is not None
        yield Side(opened, opened.network)
