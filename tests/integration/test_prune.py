"""What a living cell was made from can't be pruned, in any tier; afterwards it can."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from belljar.cell.open import open_cell
from belljar.image.kernel import current_kernel
from belljar.isolation.prune import unneeded
from belljar.policy.load import resolve_policy
from belljar.policy.loaded import with_tier
from belljar.store.locks import in_use

pytestmark = [pytest.mark.anyio, pytest.mark.vm, pytest.mark.root]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def unused(home: Path, kind: str) -> int:
    return sum(part.kind == kind for part in unneeded(home, 0.0))


@pytest.mark.promise("6.5")
@pytest.mark.parametrize(
    ("tier", "kinds"), [("container", ("tree", "root")), ("microvm", ("template", "root"))]
)
async def test_a_living_cell_holds_what_it_was_made_from(
    tier: str, kinds: Sequence[str], vm_home: Path
) -> None:
    """Template, tree, root and kernel are in use until it is destroyed."""
    kernel = current_kernel(vm_home).vmlinuz.parent
    async with open_cell(with_tier(resolve_policy("low"), tier), home=vm_home):
        during = [unused(vm_home, kind) for kind in kinds]
        assert in_use(kernel) == (tier == "microvm")
    assert [unused(vm_home, kind) for kind in kinds] == [count + 1 for count in during]
    assert not in_use(kernel)
