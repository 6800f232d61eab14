"""Model servers that are broken or hostile, in real cells."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from tests.integration.conftest import Belljar
from tests.machine import PATIENCE_S

from belljar.cell.cell import Cell
from belljar.cell.parts import start_run
from belljar.errors import CellError, HostError
from belljar.events import Kind
from belljar.ledger.listing import read_events
from belljar.ledger.schema import Line
from belljar.ledger.verification import verify
from belljar.model.http import BrokenOffError, Question
from belljar.model.serve import ModelCell, load_model, open_model
from belljar.model.weights import add_weights, remove_weights
from belljar.policy.limits import Tier
from belljar.policy.loaded import with_tier
from belljar.probe.model import Verdict
from belljar.probe.run import probe_cell

pytestmark = [pytest.mark.vm, pytest.mark.anyio]


@pytest.fixture
def anyio_backend() -> str:
    """What a model's cell does is the same under both."""
    return "asyncio"


SERVER = '''
import json, socketserver, sys, time, os
from http.server import BaseHTTPRequestHandler
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def send(self, kind, body, status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.send("application/json", b'{"status": "ok"}')
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        """answer"""
    def log_message(self, *_):
        pass
    def flood(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        while True:
            self.wfile.write(b'data: {"token": "x"}\\n\\n' * 4096)
class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
print("serving", flush=True)
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
'''
ECHO = "self.send('application/json', json.dumps({'got': len(body)}).encode())"
ASK = Question(method="POST", path="/v1/chat/completions", body=b'{"messages": []}')


def policy_of_model(digest: str, server: list[str], **fields: object) -> dict[str, object]:
    model = {"weights": {"sha256": digest}, "server": server, **fields}
    resources = {"memory": "256MiB", "disk": "64MiB"}
    return {"belljar": 1, "name": "m", "risk": "low", "model": model, "resources": resources}


@dataclass
class World:
    """A store, and the policy of a model whose server is a few lines of Python."""

    home: Path
    folder: Path
    run: Path | None = None

    @asynccontextmanager
    async def model(
        self, answering: str = ECHO, *, tier: Tier = Tier.CONTAINER, **fields: object
    ) -> AsyncIterator[ModelCell]:
        program = SERVER.replace('"""answer"""', answering)
        weights = self.folder / "weights.bin"
        weights.write_bytes(b"the weights")
        added = add_weights(weights, home=self.home)
        server = ["python3", "-c", program, "{port}"]
        policy = policy_of_model(added.digest, server, **{"start_timeout": "90s", **fields})
        loaded = with_tier(load_model(policy, home=self.home), tier)
        with start_run("model", "m", [], home=self.home) as run:
            self.run = run.path
            async with open_model(loaded, run=run, home=self.home) as served:
                yield served

    async def asked(self) -> None:
        assert self.run is not None
        ledger = self.run / "ledger.jsonl"
        with anyio.fail_after(PATIENCE_S):
            while b"model.request.started" not in ledger.read_bytes():  # noqa: ASYNC110 - a file
                await anyio.sleep(0.02)

    def events(self, *kinds: Kind) -> list[Line]:
        """Those of the last run, whose ledger must be whole."""
        assert self.run is not None
        assert verify(self.run).problem is None
        return [line for line in read_events(self.run) if line.kind in kinds]


@pytest.fixture
def world(home: Path, belljar: Belljar, tmp_path: Path) -> Iterator[World]:
    """Nothing is left afterwards, and each cell's end is proven."""
    made = World(home, tmp_path)
    yield made
    assert belljar.leftovers() == []
    assert all(line.data["clean"] for line in made.events(Kind.CELL_DESTROYED))


async def ask(served: ModelCell, question: Question = ASK) -> bytes:
    parts = []
    async with served.ask(question) as asked:
        while (part := await asked.next_part()) is not None:
            parts.append(part)
    return b"".join(parts)


async def check_unplanned_weights(cell: Cell) -> None:
    """The probe takes gVisor's file server at /weights for its own in a model's cell alone."""
    plan = cell.plan
    cell.plan = replace(plan, policy=plan.policy.model_copy(update={"model": None}))
    nowhere = SimpleNamespace(record=lambda _event: None)
    report = await probe_cell(cell, which="mounts.served", recorder=nowhere)
    cell.plan = plan
    assert report.verdict is Verdict.BREACHED


@pytest.mark.promise("2.8")
@pytest.mark.parametrize("tier", [Tier.CONTAINER, Tier.GVISOR, Tier.MICROVM])
async def test_weights_are_read_only_and_requests_are_on_record(tier: Tier, world: World) -> None:
    """In every tier: the same bytes at /weights, not writable, no device but the loopback."""
    async with world.model(tier=tier) as served:
        assert json.loads(await ask(served)) == {"got": len(ASK.body)}
        cell = served.cell
        read = await cell.exec(["cat", "/weights/weights.bin"])
        assert read.stdout == b"the weights"
        write = await cell.exec(["sh", "-c", "echo x > /weights/y"], user="root")
        assert write.returncode != 0
        devices = await cell.exec(["ls", "/sys/class/net"])
        assert devices.stdout.split() in ([b"lo"], [])
        if tier is Tier.GVISOR:
            await check_unplanned_weights(served.cell)
    started, completed = world.events(Kind.MODEL_REQUEST_STARTED, Kind.MODEL_REQUEST_COMPLETED)
    assert started.data["bytes"] == len(ASK.body)
    assert started.bodies
    assert completed.data["status"] == 200
    probes = world.events(Kind.PROBE_COMPLETED)
    assert [(each.data["phase"], each.data["verdict"]) for each in probes] == [
        ("start", "contained"),
        ("end", "contained"),
    ]


@pytest.mark.promise("2.8")
async def test_a_violation_ends_the_cell(world: World) -> None:
    """A flood of tokens is on record, and every later request fails at once with the reason."""
    async with world.model("self.flood()", answer="64KiB") as served:
        with pytest.raises(CellError, match="ended"):
            await ask(served)
        with pytest.raises(CellError, match="ended"):
            await ask(served)
        assert served.cell.destruction is not None
    assert world.events(Kind.PROTOCOL_VIOLATION)
    assert world.events(Kind.MODEL_REQUEST_FAILED)


HALF = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"a"'
FAILS = f"""\
if b"never" in body:
            time.sleep(600)
        elif b"half" in body:
            self.wfile.write({HALF!r}); self.close_connection = True
        else:
            {ECHO}"""


async def test_a_request_that_fails_is_one_requests_error(world: World) -> None:
    """Without an answer in its time, with half of one, or given up."""

    def question(body: bytes) -> Question:
        return Question(method="POST", path="/v1/chat/completions", body=body)

    async with world.model(FAILS) as served:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, served, question(b"never"))
            await world.asked()
            tasks.cancel_scope.cancel()
        assert await ask(served)
        served.model = served.model.model_copy(update={"request_timeout": 1.0})
        with pytest.raises(TimeoutError):
            await ask(served, question(b"never"))
        served.model = served.model.model_copy(update={"request_timeout": PATIENCE_S})
        with pytest.raises(BrokenOffError):
            await ask(served, question(b"half"))
        assert await ask(served)
    assert len(world.events(Kind.MODEL_REQUEST_FAILED)) == 3
    looks = [line.data["phase"] for line in world.events(Kind.CELL_CHECKED)]
    assert looks == ["baseline", "call", "call", "end"]


async def strike(served: ModelCell) -> None:
    """The machine dies: the outermost process of its cell is killed."""
    assert served.cell.host_pid is not None
    os.kill(served.cell.host_pid, signal.SIGKILL)


async def end_server(served: ModelCell) -> None:
    await served.command.signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "tier"),
    [
        (strike, Tier.CONTAINER),
        (strike, Tier.GVISOR),
        (strike, Tier.MICROVM),
        (end_server, Tier.CONTAINER),
    ],
)
@pytest.mark.thorough_in("gvisor", "microvm")
async def test_an_end_between_requests_is_the_next_ones_error(
    end: Callable[[ModelCell], Awaitable[None]], tier: Tier, world: World
) -> None:
    """It says what ended, and so does the record."""
    with suppress(CellError):  # a dead cell's block
        async with world.model(tier=tier) as served:
            await end(served)
            with anyio.fail_after(PATIENCE_S), pytest.raises(CellError) as caught:
                await ask(served)
            word = "died" if end is strike else "ended with status"
            assert word in caught.value.what
    deaths = world.events(Kind.CELL_FAILED, Kind.CELL_DESTROYED)
    assert [line.kind for line in deaths] == [Kind.CELL_FAILED] * (end is strike) + [
        Kind.CELL_DESTROYED
    ]


async def test_a_record_of_digests_keeps_no_text(world: World) -> None:
    """`record: digest`: sizes and digests alone, in every event of the run."""
    secret = b"a secret of the operator's"
    async with world.model(record="digest") as served:
        await ask(served, Question(method="POST", path="/v1/x", body=secret))
    assert world.run is not None
    kept = [path.read_bytes() for path in world.run.rglob("*") if path.is_file()]
    assert kept
    assert not any(secret in content for content in kept)


def overwrite(served: ModelCell) -> None:
    """Put other bytes in the place of its weights, and be interrupted."""
    stored = served.policy.weights
    assert stored is not None
    file = stored / "data" / "weights.bin"
    file.unlink()  # it may be a hard link of the test's own file
    file.write_bytes(b"other words")
    raise RuntimeError("interrupted")


@pytest.mark.promise("2.8")
async def test_changed_weights_start_nothing(world: World) -> None:
    """The digest is wrong: no cell is planned."""
    with pytest.raises(HostError, match="changed while the model ran"):
        async with world.model() as served:
            overwrite(served)
    first = world.run
    with pytest.raises(HostError, match="not what was added"):
        async with world.model():
            pass
    assert world.run != first
    assert not world.events(Kind.CELL_PLANNED)
    remove_weights(hashlib.sha256(b"the weights").hexdigest(), home=world.home)
