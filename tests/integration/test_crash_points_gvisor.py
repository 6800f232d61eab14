"""The controller of a gVisor cell killed in each file of the tier's own code, and the cell's runtime
killed under it: nothing is left, as in `test_crash_points`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.crashes import (
    Owners,
    check_process_killed,
    choose_in,
    kill_at,
    rehearse,
    root_owners,
)
from tests.machine import Templates

pytestmark = [pytest.mark.vm, pytest.mark.slow]


@pytest.fixture(scope="module")
def owners(
    prepared_home: Path, tmp_path_factory: pytest.TempPathFactory, templates: Templates
) -> Iterator[Owners]:
    """A store of gVisor cells, in which one is held all along."""
    base = tmp_path_factory.mktemp("crash")
    with root_owners("gvisor", prepared_home, base, templates) as made:
        yield made


@pytest.mark.promise("3.5", "6.2")
def test_killed_anywhere_nothing_is_left(owners: Owners, pytestconfig: pytest.Config) -> None:
    """SIGKILL at ten places of the tier's own code (60 when thorough), one of each file at
    least."""
    count = 60 if pytestconfig.getoption("thorough") else 10
    chosen = choose_in(rehearse(owners), "isolation/oci/", count)
    assert len(chosen) == count
    _, faults = kill_at(owners, chosen)
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults)


@pytest.mark.promise("6.2")
def test_a_process_of_the_cell_killed_in_mid_start(owners: Owners) -> None:
    """Its runtime."""
    check_process_killed(owners, "runtime")
