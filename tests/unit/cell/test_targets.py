"""What a target cell is made of, and how its health is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
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
    """A cell whose program ends with each of `ends`, then runs."""

    def __init__(self, ends: Sequence[int] = ()) -> None:
        self.id, self.ends = "x", list(ends)
        self.image_entrypoint, self.image_command = ("/enter",), ("/enter", "serve")
        self.image_health: dict[str, Any] = {}
        self.ran: list[list[str]] = []

    async def start(self, argv: Sequence[str], **_: object) -> Running:
        """Its program."""
        self.ran.append(list(argv))
        return Running(self.ends.pop(0) if self.ends else None)

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Its log."""
        if path != LOGS[1]:
            raise FileNotFoundError(path)
        return b"the log\n"[:max_bytes]


async def served(settings: Mapping[str, Any], machine: Machine) -> list[list[str]]:
    """What ran in a target cell of these settings."""
    await serve(machine, StandInPlan(id="shop", kind="cell", names=(), ports=(), settings=settings))  # type: ignore[arg-type]
    return machine.ran


@pytest.mark.anyio
async def test_a_program_that_is_started_again() -> None:
    """As Docker has it, until it has run for a moment; its checks go on meanwhile."""
    for restart, ends, starts in (
        ("on-failure", [1, 3], 3),
        ("always", [0], 2),
        ("unless-stopped", [1], 2),
        ("on-failure", [0], 1),
        ("on-failure:1", [1], 2),
    ):
        ran = await served({"command": ["mine"], "restart": restart}, Machine(ends))
        assert len(ran) == starts, (restart, ends)


@pytest.mark.anyio
@pytest.mark.parametrize(("restart", "starts"), [("no", 1), ("on-failure:1", 2)])
async def test_a_program_that_is_not_started_again(restart: str, starts: int) -> None:
    """By default never, else as often as is said; the last status and output are named."""
    machine = Machine([7] * 9)
    with pytest.raises(CellError, match=r"ended with status 7.*; its output ends with: the log"):
        await served({"command": ["mine"], "restart": restart}, machine)
    assert len(machine.ran) == starts
