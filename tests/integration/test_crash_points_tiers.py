"""The controller of a gVisor cell or a microVM killed in the tier's own code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.crashes import Owners, choose_in, kill_at, rehearse, root_owners, spread
from tests.machine import Templates

pytestmark = [pytest.mark.vm, pytest.mark.slow]
TIERS = {"gvisor": "isolation/oci/", "microvm": "isolation/microvm/"}


@pytest.fixture(scope="module", params=TIERS)
def tier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def owners(
    tier: str, prepared_home: Path, tmp_path_factory: pytest.TempPathFactory, templates: Templates
) -> Iterator[Owners]:
    """A store of such cells, in which one is held all along."""
    base = tmp_path_factory.mktemp("crash")
    with root_owners(tier, prepared_home, base, templates) as made:
        yield made


@pytest.mark.promise("3.5", "6.2")
def test_killed_anywhere_nothing_is_left(
    tier: str, owners: Owners, pytestconfig: pytest.Config
) -> None:
    """SIGKILL at three places (60 when thorough, one of each file at least)."""
    thorough = pytestconfig.getoption("thorough")
    sites = rehearse(owners, lives=["end" if thorough else "destroy"])
    chosen = choose_in(sites, TIERS[tier], 60)
    chosen = chosen if thorough else spread(chosen, 3)
    assert len(chosen) >= (60 if thorough else 3)
    _, faults = kill_at(owners, chosen)
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults)
