"""What a target cell is made of, and how its health is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from belljar.cell import targets
from belljar.cell.targets import LOGS, serve, target_policy
from belljar.channel import ExecOutput
from belljar.errors import CellError
from belljar.plan.network import StandInPlan, plan_network
from belljar.policy.limits import Tier
from belljar.policy.load import load_policy
from belljar.policy.loaded import LoadedPolicy, with_tier

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


@pytest.mark.promise("2.5")
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


@pytest.mark.promise("2.5")
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


@pytest.fixture(autouse=True)
def _short_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "SETTLE_S", 0.05)


class Running:
    """A program that runs until it is let go, or has ended with a status."""

    def __init__(self, status: int | None) -> None:
        self.status, self.left = status, anyio.Event()

    @property
    def running(self) -> bool:
        """While it has no status and was not let go."""
        return self.status is None and not self.left.is_set()

    async def leave(self) -> None:
        """It runs on."""
        self.left.set()

    async def wait(self) -> ExecOutput:
        """Its end, or that it was let go."""
        if self.status is None:
            await self.left.wait()
        code = self.status or 0
        return ExecOutput(returncode=code, code=code, runs_on=self.status is None)


class Machine:
    """A cell whose commands called `ends` and `ask` end with this status, at once; its program ends
    with each of `ends`, then runs."""

    def __init__(
        self, status: int, says: bytes = b"no such table", ends: Sequence[int] = ()
    ) -> None:
        self.id, self.status, self.says, self.ends = "x", status, says, list(ends)
        self.image_entrypoint, self.image_command = ("/enter",), ("/enter", "serve")
        self.image_health: dict[str, Any] = {}
        self.ran: list[tuple[list[str], float | None]] = []
        self.made: list[tuple[str, int | None, str]] = []
        self.log = b"the log\n"
        self.plan = SimpleNamespace(limits=SimpleNamespace(exec_timeout_s=9.0))

    async def exec(
        self, argv: Sequence[str], *, timeout_s: float | None = None, **_: object
    ) -> ExecOutput:
        """Notes what it was asked."""
        self.ran.append((list(argv), timeout_s))
        code = self.status if argv[0] in ("ends", "ask") else 0
        return ExecOutput(returncode=code, code=code, stdout=b"/log\n", stderr=self.says)

    async def start(
        self, argv: Sequence[str], *, service: bool, timeout_s: float | None
    ) -> Running:
        """Its program."""
        assert service
        self.ran.append((list(argv), timeout_s))
        if argv[0] == "ends":
            return Running(self.status)
        return Running(self.ends.pop(0) if self.ends else None)

    async def make_directory(self, path: str, *, mode: int | None, owner: str) -> None:
        """Notes it."""
        self.made.append((path, mode, owner))

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Its log."""
        if path != LOGS[1]:
            raise FileNotFoundError(path)
        return self.log[:max_bytes]


async def served(
    settings: Mapping[str, Any],
    machine: Machine | None = None,
    *,
    status: int = 0,
    says: bytes = b"no such table",
    ends: Sequence[int] = (),
) -> list[tuple[list[str], float | None]]:
    """What ran in a target cell of these settings, and for how long it might."""
    machine = machine or Machine(status, says, ends)
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
    """Are made before its program runs, with the mode and owner that are asked for."""
    machine = Machine(0)
    await served({"directories": ["/data", "/tmp:mode=1777", "/run/app:mode=700,uid=9"]}, machine)
    assert machine.made == [
        ("/data", None, ""),
        ("/tmp", 0o1777, "0:0"),
        ("/run/app", 0o700, "9:0"),
    ]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("restart", "ends", "starts"),
    [
        ("on-failure", [1, 3], 3),
        ("always", [0], 2),
        ("unless-stopped", [1], 2),
        ("on-failure", [0], 1),
        ("on-failure:1", [1], 2),
    ],
)
async def test_a_program_that_is_started_again(restart: str, ends: list[int], starts: int) -> None:
    """As Docker has it, until it has run for a moment; its checks go on meanwhile."""
    ran = await served({"command": ["mine"], "restart": restart}, ends=ends)
    assert ran == [(["mine"], None)] * starts


@pytest.mark.anyio
async def test_a_program_that_is_not_started_again() -> None:
    """By default never, else as often as is said; the last status and output are named, and an
    empty output is not."""
    for restart, starts in (("no", 1), ("on-failure:1", 2)):
        machine = Machine(0, ends=[7] * 9)
        machine.log = b""
        with pytest.raises(CellError, match="ended with status 7") as caught:
            await served({"command": ["mine"], "restart": restart}, machine)
        assert "its output" not in caught.value.what
        assert len(machine.ran) == starts
    with pytest.raises(CellError, match="status 7; its output ends with: the log"):
        await served({"command": ["mine"]}, ends=[7])


@pytest.mark.anyio
async def test_a_target_that_completes() -> None:
    """Is run to its end before anything else happens; another status than 0 ends the range, with
    what it said."""
    assert await served({"command": ["ends"], "completes": True}) == [(["ends"], 9.0)]
    with pytest.raises(
        CellError, match=r"shop does not serve: its program ended with status 3; its .*: the log"
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
