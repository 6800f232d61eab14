"""The controller of a container killed at many places of its life: nothing is left.

A *site* is a line of Belljar's own code, in the phase `create`, `exec`, `revert`, `snapshot`,
`fork`, `destroy` or `end`: lives are rehearsed, their sites are noted in order, and then each
chosen one is where an owner kills itself with SIGKILL. So a failing place has a name, and is there
again in the next run. What is common to all tiers is killed here; the other tiers' own code in
`test_crash_points_tiers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.crash_owner import ANY_LINE, PHASES
from tests.integration.crashes import Owners, choose, kill_at, rehearse, root_owners
from tests.integration.remains import cells_of, tables_of
from tests.machine import Templates

from belljar.events import Kind
from belljar.ledger.listing import read_events

pytestmark = [pytest.mark.vm, pytest.mark.slow]
SITES_OF_PHASE = dict(zip(PHASES, (6, 2, 2, 1, 1, 3, 1), strict=True))
MORE = 10  # times as many when thorough


@pytest.fixture(scope="module")
def owners(
    prepared_home: Path, tmp_path_factory: pytest.TempPathFactory, templates: Templates
) -> Iterator[Owners]:
    """A store of containers, in which one is held all along."""
    base = tmp_path_factory.mktemp("crash")
    with root_owners("container", prepared_home, base, templates) as made:
        yield made


@pytest.mark.promise("3.5", "6.2")
def test_killed_anywhere_nothing_is_left(owners: Owners, pytestconfig: pytest.Config) -> None:
    """SIGKILL at 16 places (160 when thorough): nothing left, the ledger verifies, others live."""
    times = MORE if pytestconfig.getoption("thorough") else 1
    wanted = {phase: times * count for phase, count in SITES_OF_PHASE.items()}
    chosen = choose(rehearse(owners), wanted)
    assert len(chosen) == sum(wanted.values())
    cells, faults = kill_at(owners, chosen)
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults)
    assert tables_of(cells) == []


@pytest.mark.promise("6.2")
def test_the_next_start_reaps(owners: Owners) -> None:
    """An owner killed in a command is cleaned up after by the next that opens a cell."""
    owners.watch()
    before = owners.runs()
    died = owners.ask(do="die", site=["exec", "channel/client.py", ANY_LINE, "exec"])
    assert died["signal"] == 9
    cells = {name for run in owners.runs() - before for name in cells_of(run)}
    assert owners.remains.of(cells, [died["pid"]]) != []
    known = owners.runs()
    assert owners.ask(do="rehearse", last="destroy").get("clean")
    assert owners.remains.of(cells, [died["pid"]]) == []
    events = (event for run in owners.runs() - known for event in read_events(run))
    reaped = [
        each for event in events if event.kind is Kind.HOST_REAPED for each in event.data["cells"]
    ]
    assert {cell["cell_id"] for cell in reaped} == cells
    assert all(cell["removed"] and not cell["remaining"] for cell in reaped)
    assert owners.held_answers()
