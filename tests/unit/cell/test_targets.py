"""What a target cell is made of, and how its health is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from belljar.cell.output import ExecOutput
from belljar.cell.targets import health_command, serve, target_policy
from belljar.errors import CellError
from belljar.plan.network import StandInPlan, plan_network
from belljar.policy import LoadedPolicy, Tier, load_policy, with_tier

POLICY = """\
belljar: 1
risk: low
image: agents
user: agent
env: {SECRET: agent}
network:
  stand_ins:
    shop:
      kind: cell
      names: [shop.example]
      ports: [80]
      image: shops
      tier: gvisor
      env: {COLOUR: green}
      files: [{source: a.txt, target: /srv/a.txt}]
      resources: {memory: 128MiB}
    app: {kind: python, names: [app.example], ports: [80], app: "main:app", files: app}
    page: {kind: http, names: [page.example], routes: [{path: /, body: x}]}
"""


def loaded_of(folder: Path) -> tuple[LoadedPolicy, dict[str, StandInPlan]]:
    """The policy, and its stand-ins by id."""
    (folder / "a.txt").write_text("a")
    (folder / "app").mkdir(exist_ok=True)
    (folder / "policy.yaml").write_text(POLICY)
    loaded = load_policy(folder / "policy.yaml")
    if loaded.policy.network is None:
        raise ValueError("no network")
    return loaded, {item.id: item for item in plan_network(loaded.policy.network, folder).stand_ins}


def test_a_target_has_its_own_and_nothing_of_the_agents(tmp_path: Path) -> None:
    """Image, environment, files and limits are the stand-in's; the risk is the range's; it has no
    network of its own."""
    loaded, plans = loaded_of(tmp_path)
    policy = target_policy(loaded, plans["shop"]).policy
    assert (policy.image, policy.env, policy.user) == ("shops", {"COLOUR": "green"}, None)
    assert policy.risk is loaded.policy.risk
    assert policy.network is None
    assert policy.resources.memory_bytes == 128 << 20
    assert [file.target for file in policy.files] == ["/srv/a.txt"]


def test_the_tier_is_at_least_the_ranges(tmp_path: Path) -> None:
    """Raised by the stand-in; whoever raises the range's raises every target's."""
    loaded, plans = loaded_of(tmp_path)
    assert target_policy(loaded, plans["shop"]).policy.tier is Tier.GVISOR
    assert target_policy(loaded, plans["app"]).policy.tier is Tier.CONTAINER
    raised = with_tier(loaded, "microvm")
    assert {target_policy(raised, plans[name]).policy.tier for name in ("shop", "app")} == {
        Tier.MICROVM
    }


def test_an_apps_directory_is_no_file_to_copy(tmp_path: Path) -> None:
    """It goes in as an archive."""
    loaded, plans = loaded_of(tmp_path)
    assert target_policy(loaded, plans["app"]).policy.files == ()


class Machine:
    """A cell in which only programs called `ends` and `ask` come to an end, with this status."""

    def __init__(self, status: int, says: bytes = b"no such table") -> None:
        self.id, self.status, self.says = "x", status, says
        self.image_entrypoint, self.image_command = ("/enter",), ("/enter", "serve")
        self.image_health: dict[str, Any] = {}
        self.ran: list[tuple[list[str], float | None]] = []

    async def exec(
        self, argv: Sequence[str], *, timeout_s: float | None = None, **_: object
    ) -> ExecOutput:
        """Notes what it was asked."""
        words = list(argv[4:] if argv[:2] == ["/bin/sh", "-c"] else argv)
        self.ran.append((words, timeout_s))
        code = self.status if words[0] in ("ends", "ask") else 0
        return ExecOutput(returncode=code, code=code, stdout=b"/log\n", stderr=self.says)


async def served(
    settings: Mapping[str, Any], *, status: int = 0, says: bytes = b"no such table"
) -> list[tuple[list[str], float | None]]:
    """What ran in a target cell of these settings, and for how long it might."""
    machine = Machine(status, says)
    await serve(machine, StandInPlan(id="shop", kind="cell", names=(), ports=(), settings=settings))  # type: ignore[arg-type]
    return machine.ran


@pytest.mark.anyio
async def test_what_a_target_runs() -> None:
    """Its command; the image's entrypoint and its arguments; the image's command."""
    for settings, words in (
        ({"command": ["mine"]}, ["mine"]),
        ({"arguments": ["a", "b"]}, ["/enter", "a", "b"]),
        ({"arguments": []}, ["/enter"]),
        ({}, ["/enter", "serve"]),
    ):
        assert [ran for ran, _ in await served(settings)] == [words]


@pytest.mark.anyio
async def test_a_targets_directories() -> None:
    """Are made before its program runs."""
    ran = await served({"command": ["mine"], "directories": ["/data", "/cache"]})
    assert [words for words, _ in ran] == [["mkdir", "-p", "--", "/data", "/cache"], ["mine"]]


@pytest.mark.anyio
async def test_a_target_that_completes() -> None:
    """Is run to its end before anything else happens; another status than 0 ends the range, with
    what it said."""
    assert await served({"command": ["ends"], "completes": True}) == [(["ends"], None)]
    with pytest.raises(
        CellError, match="shop does not serve: its program did not end well: no such table"
    ):
        await served({"command": ["ends"], "completes": True}, status=3)


@pytest.mark.anyio
async def test_tries_within_a_time() -> None:
    """Whatever their number: each is cut to what is left of it, and no further begins."""
    health = {
        "command": ["ask"],
        "interval": 0.2,
        "timeout": 300.0,
        "retries": 1000,
        "within": 200.0,
    }
    asked, timeout_s = (await served({"command": ["mine"], "health": health}))[1]
    assert asked == ["ask"]
    assert timeout_s is not None
    assert timeout_s <= 200.0
    with pytest.raises(CellError, match=r"healthy in \d tries: no such table"):
        await served({"command": ["mine"], "health": {**health, "within": 0.3}}, status=1)


@pytest.mark.anyio
async def test_what_an_unhealthy_target_s_check_said() -> None:
    """Its last line alone, before the end of what the program wrote: a client's progress meter
    would take the place of both."""
    health = {"command": ["ask"], "interval": 0.0, "timeout": 1.0, "retries": 2}
    says = b"  % Total    % Received\r\n  0     0    0\r  0     0    0\rcurl: (7) nobody listens\n"
    with pytest.raises(
        CellError, match=r"2 tries: curl: \(7\) nobody listens; its output ends with: /log"
    ):
        await served({"command": ["mine"], "health": health}, status=1, says=says)
    with pytest.raises(CellError, match="2 tries: /log; its"):
        await served({"command": ["mine"], "health": health}, status=1, says=b"\n")


def test_only_a_target_has_a_cell(tmp_path: Path) -> None:
    """What the gateway answers has none: to ask is a fault of ours."""
    loaded, plans = loaded_of(tmp_path)
    with pytest.raises(TypeError, match="page"):
        target_policy(loaded, plans["page"])


class _Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/fine" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Somebody who is fine at one path."""
    with HTTPServer(("127.0.0.1", 0), _Health) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("client", ["curl", "wget", "python3"])
def test_health_by_http_with_whatever_client_there_is(
    client: str, port: int, tmp_path: Path
) -> None:
    """Success is an answer below 400; anything else is a failure."""
    program = sys.executable if client == "python3" else shutil.which(client)
    if program is None:
        pytest.skip(f"{client} is not installed")
    (tmp_path / client).symlink_to(os.path.realpath(program))
    for path, is_fine in (("/fine", True), ("/ill", False)):
        argv = health_command({"http": path, "port": port})
        done = subprocess.run(argv, env={"PATH": str(tmp_path)}, capture_output=True, check=False)
        assert (done.returncode == 0) is is_fine, done.stderr


def test_health_by_command() -> None:
    """As it is written."""
    assert health_command({"command": ["pg_isready", "-q"], "retries": 3}) == ["pg_isready", "-q"]
