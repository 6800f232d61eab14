"""The control groups of a range's own processes, as root and as an ordinary user who was handed
some."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration import test_range as ranges
from tests.integration.handed_groups import handed_groups
from tests.integration.range_programs.groups import controllers
from tests.integration.test_range import Who, installed, who

from belljar.isolation.reap import reap_now

__all__ = ["installed", "who"]
pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def grouped(who: Who) -> Iterator[Who]:
    """Who has control groups: root as this host has them, a user those that root hands out."""
    if who.user is None:
        if set(controllers()) < {"cpu", "memory"}:
            pytest.skip("root can make no control groups here")
        yield who
        return
    with handed_groups(f"r{who.user.uid}-{os.getpid()}", who.user.uid, who.user.gid) as groups:
        yield Who(replace(who.user, groups=groups), who.home)


@pytest.mark.promise("2.6")
def test_a_range_s_processes_are_in_groups_of_its_own(grouped: Who) -> None:
    """Supervisor and gateway, and nobody else, in each; a gateway that burns the processor is kept
    waiting, its supervisor answers, and the groups go with the range."""
    seen = grouped.run("grouped")
    ranges.assert_gone(seen)
    assert seen["groups"]
    assert seen["members"]
    assert seen["throttled"]
    assert seen["left"] == []
    assert seen["deaths"] == []


@pytest.mark.promise("2.6")
def test_a_gateway_that_takes_all_memory_ends_its_range(grouped: Who) -> None:
    """The kernel ends it at the group's limit; the range ends, and its record says how."""
    seen = grouped.run("hoarded")
    ranges.assert_gone(seen)
    assert seen["told"]
    assert [error for error, _ in seen["deaths"]] == ["CellError"]
    assert seen["counters"]["oom_kills"] >= 1
    assert seen["counters"]["memory_peak_bytes"] <= 97 << 20
    assert seen["left"] == []


@pytest.mark.promise("2.6")
def test_a_plan_that_counts_on_groups_is_held_to_it(who: Who) -> None:
    """Where the host has them no longer, no range is made."""
    assert who.run("no_groups") == {"error": "HostError", "journal": []}


def test_a_gateway_that_writes_without_end_ends_its_range(tmp_path: Path) -> None:
    """To its standard error: its owner goes on watching, and little of it is in the error."""
    (tmp_path / "store").mkdir()
    seen = Who(None, tmp_path / "store").run("shouted")
    assert seen["told"]
    ((error, what),) = seen["deaths"]
    assert error == "CellError"
    assert len(what) < 10_000
    assert seen["clean"]


@pytest.mark.promise("2.6")
def test_groups_of_a_range_whose_owner_was_killed_are_reaped(tmp_path: Path) -> None:
    """As a cell's: the journal names them before they are made."""
    if "memory" not in controllers():
        pytest.skip("root can make no control groups here")
    store = tmp_path / "store"
    store.mkdir()
    with Who(None, store).start("held_groups") as process:
        assert process.stdout is not None
        groups = [Path(line) for line in process.stdout.readline().decode().split()]
        assert groups
        assert all(group.is_dir() for group in groups)
        process.kill()
    (reaped,) = reap_now(store)
    assert not reaped.remaining
    assert not any(group.exists() for group in groups)
