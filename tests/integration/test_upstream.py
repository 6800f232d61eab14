"""Real upstreams through a real range."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.fakes.real_world import Authority, WebServer, web_server
from tests.integration.range_programs.scene import GATEWAYS, TIMEOUT_S, Cell, Scene, cell, within
from tests.unit.report.stories import line

from belljar.errors import ProtocolViolation
from belljar.ledger.schema import check_data
from belljar.network.owner.dial import Reach
from belljar.network.owner.processes import SERVE
from belljar.plan.network import UpstreamPlan
from belljar.report.left import LeftGatherer, Way

pytestmark = [pytest.mark.root, pytest.mark.slow]
REASON = "the test is about what is real"
BUDGET = 20_000
HOSTS = {
    "good.example": "93.184.215.1", "untrusted.example": "93.184.215.2",
    "misnamed.example": "93.184.215.3", "small.example": "93.184.215.4",
    "private.example": "10.0.0.1", "dead.example": "93.184.215.6",
}  # fmt: skip


def plan_of(host: str, port: int = 443) -> UpstreamPlan:
    return UpstreamPlan(
        host=host,
        ports=(port,),
        methods=("GET", "HEAD", "POST"),
        budget_bytes=BUDGET,
        run_budget_bytes=100 << 20,
        reason=REASON,
    )


@dataclass
class World:
    """The servers by their public addresses, and what was resolved and dialled."""

    servers: dict[str, WebServer]
    authorities: str
    resolved: list[str] = field(default_factory=list)
    dialled: list[tuple[str, int]] = field(default_factory=list)

    def reach(self) -> Reach:
        return Reach(
            resolve=self._resolve, connect=self._connect, read_authorities=lambda: self.authorities
        )

    def _resolve(self, host: str, port: int) -> tuple[str, ...]:
        """The second answer for a name is this host (DNS rebinding)."""
        self.resolved.append(host)
        return (HOSTS[host],) if self.resolved.count(host) == 1 else ("127.0.0.1",)

    def _connect(self, address: str, port: int) -> socket.socket:
        self.dialled.append((address, port))
        if address not in self.servers:
            raise ConnectionRefusedError(111, "Connection refused")
        return self.servers[address].dial()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "store").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path, "Other CA")
    contexts = {
        "good.example": authority.server("good.example"),
        "untrusted.example": other.server("untrusted.example"),
        "misnamed.example": authority.server("good.example"),
        "small.example": authority.server("small.example"),
    }
    with ExitStack() as stack:
        servers = {
            HOSTS[host]: stack.enter_context(web_server(context))
            for host, context in contexts.items()
        }
        yield World(servers=servers, authorities=authority.pem)


def scene_of(directory: Path) -> Scene:
    upstreams = tuple(plan_of(host) for host in HOSTS)
    return Scene(directory / "store", stand_ins=(), upstreams=upstreams)


class Client:
    def __init__(self, scene: Scene, agent: Cell, certificate: Path) -> None:
        self._scene, self._agent, self._certificate = scene, agent, certificate

    def __call__(self, host: str, path: str = "/", *options: str) -> tuple[int, str]:
        argv = ["curl", "-s", "--max-time", "30", "--cacert", str(self._certificate)]
        argv += ["-w", r"\n%{http_code}", *options, f"https://{host}{path}"]
        argv += ["--resolve", f"{host}:443:{self._scene.address(host)}"]
        said = self._agent.run("sh", "-c", '"$@"; true', "sh", *argv)
        body, _, status = said.rpartition("\n")
        return int(status), body


def with_client(
    tmp_path: Path, world: World, act: Callable[[Client], dict[str, Any]]
) -> tuple[Scene, dict[str, Any]]:
    """What `act` saw in a range, which is gone afterwards without a trace."""
    scene = scene_of(tmp_path)

    async def run() -> dict[str, Any]:
        async with scene.open(serve=SERVE, reach=world.reach()) as made:
            with cell(made) as agent:
                await made.attach("agent", agent.pid)
                certificate = tmp_path / "range.pem"
                certificate.write_bytes(made.certificate)
                seen = await anyio.to_thread.run_sync(act, Client(scene, agent, certificate))
            assert made.error is None
        assert made.destruction is not None
        assert made.destruction.clean
        return seen

    seen = anyio.run(run)
    for event in scene.recorder.events:
        check_data(event.kind, dict(event.data))
    return scene, seen


def upstream_events(scene: Scene, host: str) -> list[tuple[str, str]]:
    """Verdict and address of what the owner did for a host."""
    return [
        (str(data["verdict"]), str(data["address"]))
        for data in scene.data("network.upstream")
        if data["host"] == host
    ]


@pytest.mark.promise("2.7")
def test_what_the_policy_names_is_reached_and_all_else_is_not(tmp_path: Path, world: World) -> None:
    """One range: a good upstream, its methods, a name that rebinds, certificates of others, a
    private address, nobody there; each on record."""

    asked: dict[str, tuple[str, ...]] = {
        "good": ("good.example", "/a?b=c", "-d", "sent"),
        "again": ("good.example",),
        "http1": ("good.example", "/", "--http1.1"),
        "head": ("good.example", "/", "--head"),
        "head1": ("good.example", "/", "--head", "--http1.1"),
        "method": ("good.example", "/", "-X", "DELETE"),
        **{name: (f"{name}.example",) for name in ("untrusted", "misnamed", "private", "dead")},
    }

    def act(curl: Client) -> dict[str, Any]:
        return {name: curl(*words) for name, words in asked.items()}

    scene, seen = with_client(tmp_path, world, act)
    good = world.servers[HOSTS["good.example"]]
    told = json.loads(seen["good"][1])
    assert (told["body"], told["path"]) == ("sent", "/a?b=c")
    statuses = [status for status, _ in seen.values()]
    assert statuses == [*[200] * 5, 405, *[502] * 4]
    assert len(good.requests) == 5
    assert all(not server.requests for server in world.servers.values() if server is not good)
    # Rebinding: asked for once, and only public addresses were dialled.
    tried = set(HOSTS) - {"small.example"}
    assert sorted(world.resolved) == sorted(tried)
    assert not {("10.0.0.1", 443), ("127.0.0.1", 443)} & {*world.dialled}
    good_events = [("looked_up", ""), *[("dialled", HOSTS["good.example"])] * 5]
    assert upstream_events(scene, "good.example") == good_events
    assert upstream_events(scene, "private.example") == [("looked_up", ""), ("refused", "")]
    dead = [verdict for verdict, _ in upstream_events(scene, "dead.example")]
    assert dead == ["looked_up", "dialled", "failed"]
    assert {data["reason"] for data in scene.data("network.upstream")} == {REASON}
    requests = scene.data("network.http")
    refused = [
        (each["method"], each["reason"]) for each in requests if each["verdict"] == "refused"
    ]
    assert refused == [("DELETE", "the upstream does not take this method")]
    assert {data["stand_in"] for data in requests} == {f"upstream:{host}" for host in tried}
    answers = scene.data("network.http.answered")
    reasons = {str(data["stand_in"]): str(data.get("reason")) for data in answers}
    assert "Hostname mismatch" in reasons["upstream:misnamed.example"]
    assert "issuer" in reasons["upstream:untrusted.example"]
    # What left is told by host, by the owner's count: of a refused one only the name was looked up.
    gatherer = LeftGatherer()
    for event in scene.recorder.events:
        gatherer.take(line(event.kind, None, **event.data))
    places = gatherer.end().destinations
    sent = {each.name: each.sent_bytes for each in places if each.way is Way.UPSTREAM}
    assert set(sent) == tried - {"private.example"}
    assert {each.name for each in places} == tried
    assert sent["dead.example"] == 0
    assert (sent["good.example"] or 0) > (sent["untrusted.example"] or 0) > 0
    # Nothing was dialled before the request was on record.
    order = [str(event.kind) for event in scene.recorder.events]
    assert order.index("network.http") < order.index("network.upstream")


@pytest.mark.promise("2.7")
def test_the_budget_is_the_range_s(tmp_path: Path, world: World) -> None:
    """An answer larger than it is cut off; then nothing is dialled."""

    def act(curl: Client) -> dict[str, Any]:
        return {
            "large": curl("small.example", "/large", "--max-time", "5"),
            "after": curl("small.example"),
        }

    scene, seen = with_client(tmp_path, world, act)
    assert len(seen["large"][1]) < BUDGET
    assert seen["after"] == (502, "")
    verdicts = [verdict for verdict, _ in upstream_events(scene, "small.example")]
    assert sorted(verdicts) == ["dialled", "looked_up", "refused"]
    assert len(world.dialled) == 1


def test_a_gateway_that_asks_for_what_is_not_planned_ends_the_range(
    tmp_path: Path, world: World
) -> None:
    """Nothing is resolved or dialled; refusal and violation are on record, the gateway is dead."""
    scene = scene_of(tmp_path)

    async def run() -> None:
        async with scene.open(serve=f"{GATEWAYS}:ask_elsewhere", reach=world.reach()) as made:
            await anyio.to_thread.run_sync(scene.died.wait, TIMEOUT_S)
            assert made.error is not None
            assert "no upstream of this range" in made.error.what

    with contextlib.suppress(ProtocolViolation):  # it may ask before the range is up
        anyio.run(run)
    assert [type(error).__name__ for error in scene.deaths] == ["ProtocolViolation"]
    assert [data["verdict"] for data in scene.data("network.upstream")] == ["refused"]
    assert "broke its protocol" in scene.data("range.failed")[0]["reason"]
    assert (world.resolved, world.dialled) == ([], [])
    assert [data["clean"] for data in scene.data("range.destroyed")] == [True]


def test_a_handed_socket_leads_nowhere_else(tmp_path: Path, world: World) -> None:
    """A compromised gateway can't point a relay elsewhere, listen on it, or make one like it."""
    scene = scene_of(tmp_path)

    async def run() -> None:
        async with scene.open(serve=f"{GATEWAYS}:turn", reach=world.reach()):
            await anyio.to_thread.run_sync(within, lambda: bool(scene.data("network.attempt")))

    anyio.run(run)
    (told,) = scene.data("network.attempt")
    assert told["tried"] == {
        "family": "'AF_UNIX'",
        "write": "1",
        "connect": "EPERM",
        "disconnect": "EPERM",
        "fast open": "EPERM",
        "fast open after shutdown": "EPERM",
        "listen": "EINVAL",
        "bind": "EPERM",
        "socket": "EPERM",
        "interfaces": "EPERM",
    }


LINKS = """
ip link add here type veth peer name there
ip link set lo up; ip link set here up; ip link set there up
ip address add 93.184.215.1/24 dev here; ip -6 address add 2606:2800:21f::1/48 dev here nodad
ip route add 8.8.0.0/16 via 93.184.215.9; ip route add default via 93.184.215.9; ip route add 0.0.0.0/1 dev here
ip route add 7.7.7.0/24 dev here table 77; ip route add local 0.0.0.0/0 dev lo table 78
"$@"
"""


def test_the_networks_that_a_host_is_on_are_the_kernel_s() -> None:
    """Those of its addresses and of routes without a gateway, in every table."""
    read = "from belljar.network.owner.dial import networks_near; print(*networks_near())"
    argv = ["unshare", "--net", "sh", "-ec", LINKS, "sh", sys.executable, "-c", read]
    found = set(
        subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    )
    assert {"93.184.215.0/24", "2606:2800:21f::/48", "7.7.7.0/24"} <= found
    assert {"93.184.215.1/32", "2606:2800:21f::1/128"} <= found
    assert all(net.startswith(("93.", "2606:", "7.", "fe80:", "127.", "::1/")) for net in found)


RESOLVER = """
for file in resolv.conf nsswitch.conf hosts; do mount --bind "$0/$file" "/etc/$file"; done
ip link set lo up
"$@"
"""


@pytest.mark.promise("2.7")
def test_an_upstreams_name_is_absolute(tmp_path: Path) -> None:
    """A search domain is put behind no name, whatever `ndots` says."""
    (tmp_path / "resolv.conf").write_text(
        "nameserver 127.0.0.1\nsearch corp.test\noptions ndots:5 attempts:1\n"
    )
    (tmp_path / "nsswitch.conf").write_text("hosts: files dns\n")
    (tmp_path / "hosts").write_text("8.8.4.4 listed.example\n8.8.8.8 dotted.example.\n")
    names = ["srv", "real.example", "listed.example", "dotted.example"]
    program = [sys.executable, str(Path(__file__).with_name("resolver_world.py")), *names]
    argv = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    argv += ["sh", "-ec", RESOLVER, str(tmp_path), *program]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    seen = json.loads(done.stdout)
    assert seen["found"] == {
        "srv": ["gaierror"],
        "real.example": ["1.0.0.1"],
        "listed.example": ["gaierror"],
        "dotted.example": ["8.8.8.8"],
    }
    assert set(seen["asked"]) == {"srv", "real.example", "listed.example"}
