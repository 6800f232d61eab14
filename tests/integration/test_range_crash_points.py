"""The owner of a range killed at many places of its life: processes, namespaces and links of the
range end by themselves or by the next reaping, and its entry goes.

As `test_crash_points`, but only lines that make, use or end the range's network are chosen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import copy_store
from tests.integration.crash_owner import Site
from tests.integration.crashes import OWNER, POLICY, Owners, kill_at, owners_of, spread
from tests.machine import Templates

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.root]
_NETWORK = """\
network:
  stand_ins:
    site: {{kind: http, names: [shop.example], ports: [80], routes: [{{path: /, body: hello}}]}}
"""
_FILES = (
    "network/owner/range.py",
    "network/owner/making.py",
    "network/owner/processes.py",
    "network/owner/watch.py",
    "cell/ranges.py",
)
SITES_OF_PHASE = {"create": 12, "destroy": 8}


@pytest.fixture(scope="module")
def owners(
    prepared_home: Path, tmp_path_factory: pytest.TempPathFactory, templates: Templates
) -> Iterator[Owners]:
    """A store in which one range is held all along."""
    home = copy_store(prepared_home, tmp_path_factory.mktemp("crash-range") / "store")
    with (
        templates.serving(home),
        owners_of(
            home,
            "container",
            (sys.executable, str(OWNER)),
            os.environ,
            policy_text=POLICY + _NETWORK,
        ) as made,
    ):
        yield made


@pytest.mark.promise("2.6")
def test_killed_anywhere_nothing_of_the_range_is_left(
    owners: Owners, pytestconfig: pytest.Config
) -> None:
    """SIGKILL at 20 places of making and ending a range (60 when thorough): nothing is left, the
    ledger verifies, the other owner's cell answers."""
    rehearsed = owners.ask(do="rehearse")
    assert rehearsed.get("clean"), rehearsed
    owners.watch()
    sites: list[Site] = [
        (str(a), str(b), int(c), str(d)) for a, b, c, d in rehearsed["sites"] if b in _FILES
    ]
    more = 3 if pytestconfig.getoption("thorough") else 1
    chosen = [
        site
        for phase, count in SITES_OF_PHASE.items()
        for site in spread([one for one in sites if one[0] == phase], more * count)
    ]
    for file in set(_FILES) - {site[1] for site in chosen}:
        chosen += spread([one for one in sites if one[1] == file], 1)
    assert {site[1] for site in chosen} == set(_FILES)
    killed, _, faults = kill_at(owners, chosen)
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults)
    assert killed >= 0.9 * len(chosen), f"only {killed} of {len(chosen)} sites were reached again"
    assert len(chosen) >= 20
