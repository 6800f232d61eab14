"""What a living cell was made from can't be pruned, in any tier; afterwards it can."""

from __future__ import annotations

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
    """A lock does not depend on the event loop."""
    return "asyncio"


def uses(home: Path, kind: str) -> list[str]:
    """Whether the parts of this kind are in use, asked for everything that no cell uses."""
    return [part.state for part in unneeded(home, 0.0) if part.kind == kind]


@pytest.mark.promise("6.5")
@pytest.mark.parametrize(
    ("tier", "kind"),
    [
        ("container", "tree"),
        ("container", "root"),
        ("gvisor", "root"),
        ("microvm", "template"),
        ("microvm", "root"),
    ],
)
async def test_a_living_cell_holds_what_it_was_made_from(
    tier: str, kind: str, vm_home: Path
) -> None:
    """Its template, unpacked image or program's root is in use as long as it lives, and free when it is
    destroyed."""
    async with open_cell(with_tier(resolve_policy("low"), tier), home=vm_home) as cell:
        assert (await cell.exec(["true"])).returncode == 0
        assert uses(vm_home, kind).count("in use") == 1
    assert "in use" not in uses(vm_home, kind)


@pytest.mark.promise("6.5")
async def test_a_living_machine_holds_its_kernel(vm_home: Path) -> None:
    """Also when another one is the current kernel by then: a snapshot of it needs its parts."""
    kernel = current_kernel(vm_home).vmlinuz.parent
    async with open_cell(with_tier(resolve_policy("low"), "microvm"), home=vm_home):
        assert in_use(kernel)
    assert not in_use(kernel)
