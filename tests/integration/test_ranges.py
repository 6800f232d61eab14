"""Ranges with real cells."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.integration.processes import wait_for
from tests.machine import PATIENCE_S

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell, open_range
from belljar.cell.parts import start_run
from belljar.cell.range import Range
from belljar.cell.ranges import RANGES
from belljar.channel import ExecOutput
from belljar.errors import BelljarError, ContainmentBreach
from belljar.events import Kind
from belljar.harness.bridge import ModelBridge
from belljar.ledger.listing import read_events
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.schema import Line
from belljar.ledger.verification import verify
from belljar.policy.load import load_policy
from belljar.policy.loaded import LoadedPolicy
from belljar.probe.judge import Router
from belljar.probe.model import ProbeReport, Verdict, Witness
from belljar.probe.run import probe_cell

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.root, pytest.mark.anyio]
TIERS = ("container", "gvisor", "microvm")
REFUSED, NO_SUCH_NAME = 7, 6
"""curl's words for a RST and for NXDOMAIN; it has `_TIMEOUT` for anything else."""
_TIMEOUT = ("--max-time", "240")

HEAD = """\
belljar: 1
risk: low
tier: {tier}
resources: {{cpus: 1, memory: 256MiB, disk: 64MiB, processes: 64, lifetime: 10m}}
network:
"""
SHOP = """\
    shop:
      kind: http
      names: [shop.example]
      routes: [{path: /, body: hello from the shop}]
"""
MODEL = "    model: {kind: openai, names: [api.example], ports: [80]}\n"
DEPOT = """\
    depot:
      kind: cell
      names: [depot.example]
      ports: [8080/http]
      user: root
      env: {COLOUR: a shade of green}
      files: [{source: greeting.txt, target: /srv/depot/greeting.txt}]
      command: [sh, -c, 'cd /srv/depot; printf "%s" "$COLOUR" > colour; python3 -m http.server 9090 & exec python3 -m http.server 8080']
      health: {http: /greeting.txt, port: 8080, interval: 200ms, retries: 100}
"""
OWN = "  own_cell: {names: [me.example], ports: [7000]}\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def policy_of(
    folder: Path, *stand_ins: str, tier: str = "container", more: str = ""
) -> LoadedPolicy:
    """A policy with these stand-ins, beside the files that they name."""
    (folder / "greeting.txt").write_text("good morning")
    path = folder / "policy.yaml"
    path.write_text(HEAD.format(tier=tier) + more + "  stand_ins:\n" + "".join(stand_ins))
    return load_policy(path)


@asynccontextmanager
async def recorded(name: str) -> AsyncIterator[RunDirectory]:
    """A run whose record verifies strictly, with a clean destruction of each thing in it."""
    with start_run("test", name, []) as run:
        yield run
    assert verify(run.path).ok(strict=True)
    lines = list(read_events(run.path))
    for begun, ended in (
        (Kind.CELL_PLANNED, Kind.CELL_DESTROYED),
        (Kind.RANGE_OPENING, Kind.RANGE_DESTROYED),
    ):
        proofs = [line.data for line in lines if line.kind is ended]
        assert [proof["clean"] for proof in proofs] == [True] * len(of(lines, begun)), proofs


def of(lines: list[Line], kind: Kind, **data: object) -> list[Line]:
    """The lines of a kind that have this in their data."""
    return [
        line
        for line in lines
        if line.kind is kind and all(line.data.get(key) == data[key] for key in data)
    ]


async def curl(cell: Cell, *words: str) -> ExecOutput:
    return await cell.exec(["curl", "-sS", *_TIMEOUT, *words], timeout_s=PATIENCE_S)


async def text(cell: Cell, *words: str) -> str:
    output = await curl(cell, *words)
    assert output.returncode == 0, output.stderr
    return output.stdout.decode()


def supervisor_of(home: Path, range_id: str) -> int:
    entry: Mapping[str, Any] = json.loads((home / "journal" / f"{range_id}.json").read_text())
    return int(entry["processes"][0]["pid"])


def within(pid: int, *argv: str) -> str:
    """A command in the network namespace of a process, by hand."""
    done = subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def until_dead(cell: Cell) -> BelljarError:
    await anyio.to_thread.run_sync(wait_for, lambda: " dead" in repr(cell), "the cell's end")
    with pytest.raises(BelljarError) as caught:
        await cell.exec(["true"])
    return caught.value


HEADERS = ("-H", "Authorization: Bearer x", "-H", "Content-Type: application/json")
ASK = (*HEADERS, "http://api.example/v1/chat/completions")
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "?"}]}


@pytest.mark.promise("5.4")
async def test_no_question_to_the_model_outlives_its_range(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program waits for the model, and the range ends: the question is cancelled with it."""
    begun, cancelled = anyio.Event(), anyio.Event()

    async def never(_request: object) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    monkeypatch.setattr("belljar.harness.bridge._answer", never)
    async with recorded("question") as run, anyio.create_task_group() as tasks:
        async with open_range(policy_of(tmp_path, MODEL), run=run) as opened:
            requests, bridge = opened.model_requests, ModelBridge()
            assert requests is not None
            requests.handler, requests.on_close = bridge, bridge.close
            tasks.start_soon(asked_in, opened.cell)
            with anyio.fail_after(PATIENCE_S):
                await begun.wait()
        assert cancelled.is_set()
    (answered,) = of(list(read_events(run.path)), Kind.NETWORK_HTTP_ANSWERED)
    assert (answered.data["status"], answered.data["stand_in"]) != (200, "model")


async def probed(opened: Range, **options: Any) -> ProbeReport:  # noqa: ANN401 - `probe_cell`'s
    """The range's own cell, with the router that its port leads to."""
    cell = opened.cell
    return await probe_cell(cell, router=opened.routers[cell.id], **options)


async def asked_in(cell: Cell) -> None:
    with contextlib.suppress(BelljarError):  # the cell ends
        await curl(cell, *ASK, "-d", json.dumps(QUESTION))


async def test_a_blow_between_two_cells_of_a_range(home: Path, tmp_path: Path) -> None:
    """A route is changed when the first cell runs and the second does not."""

    async def strike(_cell: Cell, _router: Router | None) -> None:
        (entry,) = (home / "journal").glob("r-*.json")
        blow = ("ip", "route", "add", "default", "dev", "lo")
        await anyio.to_thread.run_sync(within, supervisor_of(home, entry.stem), *blow)

    async with recorded("blow") as run:
        with pytest.raises(ContainmentBreach, match="the range's network was changed"):
            async with open_range(policy_of(tmp_path, DEPOT), run=run, on_target=strike):
                pytest.fail("it has been opened")
    lines = list(read_events(run.path))
    assert [line.data["error"] for line in of(lines, Kind.RANGE_FAILED)] == ["ContainmentBreach"]
    (first,) = of(lines, Kind.CELL_PLANNED, name="depot")
    assert {line.cell for line in of(lines, Kind.EXEC_STARTED)} <= {first.cell}


@pytest.mark.promise("2.5", "5.4")
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.thorough_in("microvm")
async def test_what_a_cell_reaches(tier: str, home: Path, tmp_path: Path) -> None:
    """Stand-ins by name, with TLS that curl and Python trust."""
    policy = policy_of(tmp_path, SHOP, DEPOT, tier=tier, more=OWN)
    async with recorded(tier) as run, open_range(policy, run=run) as opened:
        cell, depot = opened.cell, opened.targets["depot"]
        await is_contained(opened, run, "quick", "start")
        await names_lead_to_what_the_policy_has(cell, depot)
        await the_own_cell_is_reached(cell, depot)
        await is_contained(opened, run, "all", "end")
    lines = list(read_events(run.path))
    asked = of(lines, Kind.NETWORK_HTTP, stand_in="shop", cell="default")
    assert {line.data["url"] for line in asked} == {"http://shop.example/", "https://shop.example/"}
    between = {"stand_in": "depot", "cell": "default", "between_cells": True}
    assert len(of(lines, Kind.NETWORK_STREAM, phase="closed", **between)) == 2
    assert not of(lines, Kind.LIMIT_HIT)
    assert of(lines, Kind.NETWORK_DNS, name="nobody.example", answer="NXDOMAIN")
    assert of(lines, Kind.NETWORK_FLOW, address="192.0.2.1", verdict="refused")
    files = json.loads((run.path / "manifest.json").read_text())["files"]
    assert [name.endswith("/packets.pcapng") for name in files if RANGES in name] == [True]


async def is_contained(opened: Range, run: RunDirectory, which: str, phase: str) -> None:
    """As any user of it probes; the router is among those who look."""
    report = await probed(opened, which=which, recorder=run.recorder, phase=phase)
    found = [f"{each.name}: {each.seen} {each.detail}" for each in report.of(Verdict.BREACHED)]
    assert report.verdict is Verdict.CONTAINED, (report.problem, found)
    as_planned = "the range's rules are the plan's"
    assert any(as_planned in each.seen for each in report.findings), Witness.ROUTER


async def names_lead_to_what_the_policy_has(cell: Cell, depot: Cell) -> None:
    script = "import urllib.request as u; print(u.urlopen('https://shop.example/').read().decode())"
    for url in ("http://shop.example/", "https://shop.example/"):
        assert await text(cell, url) == "hello from the shop"
    done = await cell.exec(["python3", "-c", script], timeout_s=PATIENCE_S)
    assert done.stdout == b"hello from the shop\n"
    assert await text(cell, "http://depot.example:8080/greeting.txt") == "good morning"
    assert await text(cell, "http://depot.example:8080/colour") == "a shade of green"
    assert await text(depot, "http://127.0.0.1:9090/colour") == "a shade of green"
    for url, status in {
        "http://depot.example:9090/colour": REFUSED,
        "http://shop.example:81/": REFUSED,
        "http://192.0.2.1/": REFUSED,
        "http://nobody.example/": NO_SUCH_NAME,
        "http://depot/": NO_SUCH_NAME,
    }.items():
        assert (await curl(cell, url)).returncode == status, url


async def the_own_cell_is_reached(cell: Cell, target: Cell) -> None:
    """From a target, by its name, on its named port alone."""
    serve = (
        "cd /tmp && echo mine > mine; for p in 7000 7001; do python3 -m http.server $p > /dev/null"
        " 2>&1 & done"
    )
    await cell.exec(["sh", "-c", serve])
    for port in (7000, 7001):
        retry = ("--retry", "60", "--retry-connrefused", "--retry-delay", "1")
        await text(cell, *retry, f"http://127.0.0.1:{port}/mine")
    assert await text(target, "http://me.example:7000/mine") == "mine\n"
    assert (await curl(target, "http://me.example:7001/mine")).returncode == REFUSED


@pytest.mark.promise("2.5")
async def test_an_app_of_the_authors(home: Path, tmp_path: Path) -> None:
    """A stand-in of kind `python`."""
    (tmp_path / "app" / "inner").mkdir(parents=True)
    (tmp_path / "app" / "inner" / "words.txt").write_text("from a file")
    (tmp_path / "app" / "main.py").write_text(
        "import pathlib, socket\nasync def app(scope, receive, send):\n    if scope['type'] !="
        " 'http':\n        return\n    body = (pathlib.Path(__file__).parent /"
        " 'inner/words.txt').read_bytes() + b' on ' + socket.gethostname().encode()\n    await"
        " send({'type': 'http.response.start', 'status': 200, 'headers': [(b'content-length', b'%d'"
        " % len(body))]})\n    await send({'type': 'http.response.body', 'body': body})\n"
    )
    app = """\
    app:
      kind: python
      app: main:app
      files: app
      names: [app.example]
      ports: [80, 8000]
      user: root
      health: {http: /, port: 80, interval: 200ms, retries: 100}
"""
    async with recorded("python") as run, open_range(policy_of(tmp_path, app), run=run) as opened:
        cell = opened.cell
        where = (await opened.targets["app"].exec(["hostname"])).stdout.decode().strip()
        for url in ("http://app.example/", "http://app.example:8000/x"):
            assert await text(cell, url) == f"from a file on {where}"


@pytest.mark.promise("2.5")
async def test_a_network_that_is_meddled_with_is_a_breach(home: Path, tmp_path: Path) -> None:
    """A device whose other end may be put anywhere."""
    uplink = "ip link add leak0 type veth peer name leak1 && ip link set leak0 up"

    async def meddle(opened: Range) -> None:
        assert opened.network is not None
        within(supervisor_of(home, opened.network.id), "sh", "-c", uplink)
        report = await probed(opened, recorder=run.recorder, phase="end")
        assert report.verdict is Verdict.BREACHED
        assert any("not as planned" in found.seen for found in report.of(Verdict.BREACHED))
        assert isinstance(await until_dead(opened.cell), ContainmentBreach)

    async with recorded("meddled") as run:
        with pytest.raises(ContainmentBreach):
            async with open_range(policy_of(tmp_path, SHOP), run=run) as opened:
                await meddle(opened)
    assert of(list(read_events(run.path)), Kind.RANGE_FAILED, error="ContainmentBreach")


@pytest.mark.promise("2.5")
async def test_what_the_policy_wants_is_no_breach(home: Path, tmp_path: Path) -> None:
    """A sink that takes every port, names that are simulated, a metadata service."""
    cloud = "    cloud: {kind: metadata}\n"
    policy = policy_of(
        tmp_path, SHOP, DEPOT, cloud, more="  default: simulate\n  sink: true\n" + OWN
    )
    async with recorded("open") as run, open_range(policy, run=run) as opened:
        assert (await curl(opened.cell, "http://anything.example/")).returncode == 0
        report = await probed(opened, which="all", recorder=run.recorder)
        assert [(each.name, each.seen, each.detail) for each in report.of(Verdict.BREACHED)] == []
        assert report.verdict is Verdict.CONTAINED, report.problem
        known = {each.name: each.known for each in report.findings if each.known}
        assert "sink" in known["network.tcp4"]
        assert "stand-in" in known["network.metadata"]


async def test_the_guides_example(home: Path, tmp_path: Path) -> None:
    """The policy that docs/ranges.md begins with does what stands below it."""
    page = (Path(__file__).parents[2] / "docs" / "ranges.md").read_text()
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "policy.yaml").write_text(example)
    async with recorded("guide") as run, open_cell(tmp_path / "policy.yaml", run=run) as cell:
        assert json.loads(await text(cell, "https://api.example/")) == {"status": "fine"}
        assert "<title>Directory listing" in await text(cell, "http://shop.example:8000/")
        assert (await curl(cell, "https://example.org/")).returncode == NO_SUCH_NAME
