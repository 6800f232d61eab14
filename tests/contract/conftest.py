"""What carries the contract: the real agent on a socket pair of this host (both event loops), and a
cell of each tier.

A cell is shared by a module's tests of one carrier: each must leave it usable, which is part of the contract. Run by an ordinary user the cells are that user's:
`tests/integration/test_contract_as_user.py` does that with these same modules.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.fakes.asking import renew, sh
from tests.machine import PATIENCE_S, parted

import belljar
from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.channel import ExecRequest, GuestClient
from belljar.policy.load import load_policy

LONGEST_TEST_S = 500
AGENT = Path(belljar.__file__).parent / "_bin" / f"agent-{platform.machine()}"
POLICY = """\
belljar: 1
risk: low
tier: {tier}
user: root
resources: {{memory: 512MiB, disk: 256MiB, processes: 512, exec_timeout: 120s, lifetime: 30m}}
"""
CARRIERS = (
    "native-asyncio",
    pytest.param("native-trio", marks=pytest.mark.thorough),  # the container's loop shows it
    "container-trio",
    "gvisor-asyncio",
    "microvm-asyncio",
)
SAME_EVERYWHERE = ("commands", "connection", "streams", "terminals", "connect")
"""The agent's program is the same in each tier, so a container's and gVisor's show them. In a
microVM endings, files and these tests show that its own link carries them."""
ON_EACH_LINK = (
    "test_head_is_kept_and_the_rest_counted",
    "test_to_a_port_and_back",
    "test_much_both_ways_at_once",
)
# An ordinary user's run takes the tiers only.
CHOSEN = os.environ["CONTRACT_CARRIERS"].split() if "CONTRACT_CARRIERS" in os.environ else CARRIERS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The bare agent is no cell: what asks for a cell or its tier isn't a test of it, so there is
    nothing to skip."""
    items[:], left_out = parted(items, lambda item: not _is_no_test(item, config))
    config.hook.pytest_deselected(items=left_out)


def _is_no_test(item: pytest.Item, config: pytest.Config) -> bool:
    spec = getattr(item, "callspec", None)
    where = str(spec.params.get("carrier", "")).partition("-")[0] if spec is not None else ""
    if where == "native":
        return bool({"cell", "tier"} & set(getattr(item, "fixturenames", ())))
    shown = item.path.stem.removeprefix("test_").removeprefix("channel_") in SAME_EVERYWHERE
    is_kept = item.name.startswith(ON_EACH_LINK) or config.getoption("thorough")
    return where == "microvm" and CHOSEN is CARRIERS and shown and not is_kept


@pytest.fixture(scope="module", params=CHOSEN)
def carrier(request: pytest.FixtureRequest) -> str:
    """`where-loop`."""
    return str(request.param)


@pytest.fixture(scope="module")
def anyio_backend(carrier: str) -> str:
    """The carrier's event loop."""
    return carrier.partition("-")[2]


@pytest.fixture(scope="module")
def tier(carrier: str) -> str:
    """The carrier's tier."""
    return carrier.partition("-")[0]


@pytest.fixture
def root_inside(carrier: str) -> None:
    """For what needs root in the guest: a cell has one of its own, whoever runs it; the bare agent
    is who the tests are."""
    if carrier.startswith("native") and os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def agent_process() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The agent in native mode and the host's end of its channel."""
    if not AGENT.exists():
        pytest.fail(f"{AGENT.name} is not built: run `python hatch_build.py`", pytrace=False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [AGENT, "--serve", str(theirs.fileno())], pass_fds=[theirs.fileno()], env={}
        )
        theirs.close()
        watchdog = threading.Timer(
            LONGEST_TEST_S, process.kill
        )  # a test that would hang fails with a dead cell
        watchdog.start()
        try:
            yield process, ours
        finally:
            watchdog.cancel()
            ours.close()
            process.wait(timeout=PATIENCE_S)


@pytest.fixture
def agent_socket(agent_process: tuple[subprocess.Popen[bytes], socket.socket]) -> socket.socket:
    """The host's end of a channel to a real agent that has said READY."""
    return agent_process[1]


@pytest.fixture(scope="module")
async def cell_or_none(
    carrier: str, anyio_backend: str, vm_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cell | None]:
    """The carrier's cell; None for the bare agent. A module's, no longer: anyio's plugin keeps an
    event loop for as long as an async fixture lives, and every test that begins meanwhile, in
    whatever directory, would run in that loop.
    """
    where = carrier.partition("-")[0]
    if where == "native":
        yield None
        return
    policy = tmp_path_factory.mktemp("contract") / "policy.yaml"
    policy.write_text(POLICY.format(tier=where))
    async with open_cell(load_policy(policy), home=vm_home) as cell:
        yield cell


@pytest.fixture
def cell(cell_or_none: Cell | None) -> Cell:
    """The carrier's cell."""
    if cell_or_none is None:
        raise RuntimeError("the bare agent is no cell: this test should not have been collected")
    return cell_or_none


@pytest.fixture
async def client(
    cell_or_none: Cell | None, request: pytest.FixtureRequest
) -> AsyncIterator[GuestClient]:
    """A client of a renewed guest."""
    if cell_or_none is not None:
        yield cell_or_none._live.client
        return
    async with GuestClient(request.getfixturevalue("agent_socket")) as made:
        await made.wait_ready(timeout_s=PATIENCE_S)
        await made.hello()
        await renew(made)
        yield made


@pytest.fixture
async def folder(client: GuestClient) -> AsyncIterator[str]:
    """A directory in the guest that everyone may use; removed afterwards."""
    made = (
        await client.exec(sh('dir=$(mktemp -d) && chmod 1777 "$dir" && printf %s "$dir"'))
    ).stdout.decode()
    yield made
    await client.exec(ExecRequest(argv=["rm", "-rf", "--", made]))
