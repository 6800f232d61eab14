"""The owner of a range killed at many places of its life."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.crashes import POLICY, Owners, choose, kill_at, rehearse, root_owners, spread
from tests.machine import Templates

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.root]
_NETWORK = """\
network:
  stand_ins:
    site: {{kind: http, names: [shop.example], ports: [80], routes: [{{path: /, body: hello}}]}}
"""
_FILES = (
    "network/owner/range.py",
    "network/owner/processes.py",
    "network/owner/watch.py",
    "cell/ranges.py",
)
SITES_OF_PHASE = {"create": 6, "destroy": 3}
MORE = 4  # times as many when thorough


@pytest.fixture(scope="module")
def owners(
    prepared_home: Path, tmp_path_factory: pytest.TempPathFactory, templates: Templates
) -> Iterator[Owners]:
    """A store in which one range is held all along."""
    base = tmp_path_factory.mktemp("crash-range")
    with root_owners("container", prepared_home, base, templates, POLICY + _NETWORK) as made:
        yield made


@pytest.mark.promise("2.6")
def test_killed_anywhere_nothing_of_the_range_is_left(
    owners: Owners, pytestconfig: pytest.Config
) -> None:
    """SIGKILL at 9 places of making and ending a range."""
    sites = [site for site in rehearse(owners) if site[1] in _FILES]
    times = MORE if pytestconfig.getoption("thorough") else 1
    wanted = {phase: times * count for phase, count in SITES_OF_PHASE.items()}
    chosen = choose(sites, wanted)
    assert len(chosen) == sum(wanted.values())
    for file in set(_FILES) - {site[1] for site in chosen}:
        chosen += spread([one for one in sites if one[1] == file], 1)
    assert {site[1] for site in chosen} == set(_FILES)
    _, faults = kill_at(owners, chosen)
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults)
