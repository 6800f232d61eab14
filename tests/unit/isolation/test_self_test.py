"""The kill switch's own test, on a real jail."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.isolation import self_test
from belljar.isolation.hold import hold
from belljar.isolation.self_test import test_switch as try_switch
from belljar.store.journal import Journal

pytestmark = pytest.mark.anyio


@pytest.mark.promise("6.3")
async def test_it_halts_a_jail_and_leaves_nothing(tmp_path: Path) -> None:
    """Also while the store is held."""
    hold(tmp_path)
    found = await try_switch(tmp_path)
    assert (found.ok, found.reason) == (True, "")
    assert list((tmp_path / "journal").iterdir()) == []


@pytest.mark.promise("6.3")
async def test_a_switch_that_halts_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so; its jail is ended all the same."""
    monkeypatch.setattr(self_test, "halt", lambda *_: {})
    found = await try_switch(tmp_path)
    assert (found.ok, found.is_made) == (False, True)
    assert "not halted" in found.reason
    assert Journal(tmp_path).entries() == ()


async def test_a_host_that_makes_no_jail_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No alarm about the switch itself, but no test either."""
    monkeypatch.setattr("belljar.package.PROGRAMS_DIR", tmp_path)
    found = await try_switch(tmp_path)
    assert (found.ok, found.is_made) == (False, False)
