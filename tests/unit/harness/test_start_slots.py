"""How many cells of a store start at a time, apart from how many live."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from belljar.errors import HostError
from belljar.harness.source import MAX_STARTS, start_slot


def test_no_more_cells_of_a_store_start_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third waits until one of two has started; another store's don't count, and without the
    variable there is no limit."""
    monkeypatch.setenv(MAX_STARTS, "2")

    async def may_start(home: Path) -> bool:
        with anyio.move_on_after(0.3):
            async with start_slot(home):
                return True
        return False

    async def main() -> None:
        async with AsyncExitStack() as first, start_slot(tmp_path):
            await first.enter_async_context(start_slot(tmp_path))
            assert not await may_start(tmp_path)
            assert await may_start(tmp_path / "other")
            monkeypatch.delenv(MAX_STARTS)
            assert await may_start(tmp_path)
            monkeypatch.setenv(MAX_STARTS, "2")
            await first.aclose()
            assert await may_start(tmp_path)
        monkeypatch.setenv(MAX_STARTS, "few")  # is not taken for none
        with pytest.raises(HostError):
            await may_start(tmp_path)

    anyio.run(main)
