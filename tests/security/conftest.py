"""One real cell for the attacks of a module: root of its container unless a test says otherwise."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.as_user import copy_package
from tests.machine import public_folder

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.channel import ExecOutput
from belljar.policy.load import parse_policy
from belljar.policy.loaded import LoadedPolicy

POLICY = """\
belljar: 1
risk: high
user: root
resources: {cpus: 1, memory: 256MiB, disk: 64MiB, processes: 64, exec_timeout: 120s}
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The walls do not depend on the host's event loop: one is enough here."""
    return "asyncio"


def policy_of(text: str) -> LoadedPolicy:
    return parse_policy(text.encode(), source="policy.yaml", base=None)


@pytest.fixture(scope="session")
def readable_package() -> Iterator[Path]:
    """The package where any user can read it: a checkout may be its owner's alone."""
    with tempfile.TemporaryDirectory(prefix="package-", dir=public_folder()) as folder:
        Path(folder).chmod(0o755)
        yield copy_package(Path(folder) / "site")


class Attacker:
    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    async def exec(self, argv: Sequence[str], **options: Any) -> ExecOutput:  # noqa: ANN401 - as Cell.exec takes them
        """Run a command as root of the container, or as `user`."""
        return await self.cell.exec(argv, **options)


@pytest.fixture(scope="module")
async def cell(anyio_backend: str, vm_home: Path) -> AsyncIterator[Attacker]:
    """A cell for the module; each test must leave it usable, which is a property of its own."""
    async with open_cell(policy_of(POLICY), home=vm_home) as opened:
        yield Attacker(opened)
