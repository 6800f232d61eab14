"""Who listens hears of each read of the host's, by its whole path."""

from __future__ import annotations

import pytest

from belljar.channel.operations import OwnReads


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


@pytest.mark.promise("5.6")
@pytest.mark.anyio
async def test_what_is_queued_before_a_read_is_taken_in_before_it() -> None:
    """A sensor settles what the guest did until then, and hears of the host's read after it."""
    reads, order = OwnReads(), list[str]()
    reads.settlers.append(lambda: order.append("settled"))
    reads.listeners.append(lambda path, phase: order.append(f"{path} {phase}"))
    async with reads.of("a", "/tmp"):
        order.append("read")
    assert order == ["settled", "/tmp/a begins", "read", "/tmp/a ended"]
