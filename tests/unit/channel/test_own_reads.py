"""Who listens hears of each read of the host's, by its whole path."""

from __future__ import annotations

from contextlib import suppress

import pytest

from belljar.channel.operations import OwnReads


@pytest.mark.promise("5.6")
@pytest.mark.anyio
async def test_a_read_is_told_before_and_after() -> None:
    """What is queued before it is taken in first. Relative paths and dots are resolved; a read that
    fails has ended, too."""
    own, order = OwnReads(), list[str]()
    own.settlers.append(lambda: order.append("settled"))
    own.listeners.append(lambda path, phase: order.append(f"{path} {phase}"))
    with suppress(FileNotFoundError):
        async with own.of("../b/./c", "/a"):
            order.append("read")
            raise FileNotFoundError("gone")
    assert order == ["settled", "/b/c begins", "read", "/b/c ended"]
