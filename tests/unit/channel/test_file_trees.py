"""Operations on directories over a fake guest: errors that are named, lies that end the cell."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from tests.fakes.talking import talking

from belljar.channel import FileTooLargeError, trees
from belljar.channel.trees import TreeRecord
from belljar.errors import ProtocolViolation

pytestmark = pytest.mark.anyio
WALK, REMOVE = 5, 7


async def take(items: Iterator[TreeRecord | bytes]) -> None:
    """All of it."""
    list(items)


@pytest.mark.parametrize(
    ("number", "expected", "text"),
    [
        (errno.EFBIG, FileTooLargeError, "10 may be read"),
        (errno.E2BIG, OSError, "more than 5"),
        (errno.ELOOP, OSError, "in each other"),
        (errno.EACCES, PermissionError, "/x"),
    ],
)
async def test_the_guests_errors(number: int, expected: type[OSError], text: str) -> None:
    """Each bound that is passed says which; others are Python's own."""
    async with talking() as (guest, client):
        guest.errors[WALK] = number
        with pytest.raises(expected, match=text):
            await trees.walk(
                client, "/x", take, user="", cwd="/", depth=9, max_entries=5, max_bytes=10
            )


async def test_a_guest_that_lies() -> None:
    """A walk without an entry and a count of another size are violations."""
    async with talking() as (guest, client):
        guest.answers[REMOVE] = b"123"
        with pytest.raises(ProtocolViolation):
            await trees.walk(client, "/x", take, user="", cwd="/", depth=0, max_entries=1)
        for answer in (b"123", b"\xff" * 8):
            guest.answers[REMOVE] = answer
            with pytest.raises(ProtocolViolation):
                await trees.remove(client, "/x", user="", cwd="/", recursive=False)
