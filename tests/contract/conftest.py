"""What carries the contract: a cell of each tier.

A cell is shared by a module's tests of one carrier: each must leave it usable, which is part of the contract. Run by an ordinary user the cells are that user's:
`tests/integration/test_contract_as_user.py` does that with these same modules.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fakes.asking import sh
from tests.machine import parted

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.channel import ExecRequest, GuestClient
from belljar.policy.load import load_policy

POLICY = """\
belljar: 1
risk: low
tier: {tier}
user: root
resources: {{memory: 512MiB, disk: 256MiB, processes: 512, exec_timeout: 120s, lifetime: 30m}}
"""
CARRIERS = ("container-trio", "gvisor-asyncio", "microvm-asyncio")
OF_THE_AGENT = {
    "microvm": "commands streams terminals connect endings files programs exec_as_docker",
    "gvisor": "commands streams terminals programs",
}
"""The agent's program is the same in each tier, so a container shows these modules; gVisor those
that its kernel could change. These tests show that each tier's own link carries all of it."""
ON_EACH_LINK = ("test_to_a_port_and_back", "test_much_both_ways_at_once")
CHOSEN = os.environ["CONTRACT_CARRIERS"].split() if "CONTRACT_CARRIERS" in os.environ else CARRIERS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a container shows for all tiers is left out in the others, unless all is asked for."""
    if CHOSEN is CARRIERS and not config.getoption("thorough"):
        items[:], left_out = parted(items, lambda item: not _is_shown_elsewhere(item))
        config.hook.pytest_deselected(items=left_out)


def _is_shown_elsewhere(item: pytest.Item) -> bool:
    spec = getattr(item, "callspec", None)
    where = str(spec.params.get("carrier", "")).partition("-")[0] if spec is not None else ""
    name = item.path.stem.removeprefix("test_").removeprefix("channel_")
    return name in OF_THE_AGENT.get(where, "").split() and not item.name.startswith(ON_EACH_LINK)


@pytest.fixture(scope="module", params=CHOSEN)
def carrier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def anyio_backend(carrier: str) -> str:
    return carrier.partition("-")[2]


@pytest.fixture(scope="module")
def tier(carrier: str) -> str:
    return carrier.partition("-")[0]


@pytest.fixture(scope="module")
async def cell(
    tier: str, anyio_backend: str, vm_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cell]:
    policy = tmp_path_factory.mktemp("contract") / "policy.yaml"
    policy.write_text(POLICY.format(tier=tier))
    async with open_cell(load_policy(policy), home=vm_home) as cell:
        yield cell


@pytest.fixture
def client(cell: Cell) -> GuestClient:
    return cell._live.client


@pytest.fixture
async def folder(client: GuestClient) -> AsyncIterator[str]:
    """A directory in the guest that everyone may use; removed afterwards."""
    made = (
        await client.exec(sh('dir=$(mktemp -d) && chmod 1777 "$dir" && printf %s "$dir"'))
    ).stdout.decode()
    yield made
    await client.exec(ExecRequest(argv=["rm", "-rf", "--", made]))
