"""Who listens hears of each read of the host's, by its whole path."""

from __future__ import annotations

import pytest

from belljar.channel.own_reads import OwnReads


async def failing_read(own: OwnReads) -> None:
    """A read of a file that isn't there."""
    async with own.of("../b/./c", "/a"):
        raise FileNotFoundError("gone")


@pytest.mark.anyio
async def test_a_read_is_told_before_and_after() -> None:
    """Relative paths and dots are resolved; one that fails has ended too."""
    own, heard = OwnReads(), list[tuple[str, str]]()
    own.listeners.append(lambda path, phase: heard.append((path, phase)))
    with pytest.raises(FileNotFoundError):
        await failing_read(own)
    assert heard == [("/b/c", "begins"), ("/b/c", "ended")]
