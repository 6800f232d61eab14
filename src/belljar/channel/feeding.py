"""What a command reads on standard input, sent while its output is received; and what a failed file
operation raises.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import anyio

from belljar.channel.frames import Outcome
from belljar.channel.operations import (
    Operation,
)
from belljar.channel.outcomes import file_error
from belljar.units import format_duration

Contents: TypeAlias = bytes | AsyncIterable[bytes]


_SMALL_INPUT_BYTES: Final = 64 << 10


@asynccontextmanager
async def _feeding(operation: Operation, contents: Contents) -> AsyncIterator[None]:
    """Send standard input while the block reads output.

    A small input is sent first: it fits the window and needs no second task.
    """
    if isinstance(contents, bytes) and len(contents) <= _SMALL_INPUT_BYTES:
        await operation.send_stdin(contents)
        await operation.close_stdin()
        yield
        return
    trouble: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed, operation, contents)
            yield
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        trouble = _first(group)
    if trouble is not None:
        raise trouble


async def feed(operation: Operation, contents: Contents) -> None:
    """Send all of the contents, then the end."""
    if isinstance(contents, bytes):
        await operation.send_stdin(contents)
    else:
        await _feed_pieces(operation, contents)
    await operation.close_stdin()


async def _feed_pieces(operation: Operation, contents: AsyncIterable[bytes]) -> None:
    """Send the pieces as they come, while anyone is there to take them.

    A generator is closed in any case: nobody else will.
    """
    try:
        async for piece in contents:
            if not await operation.send_stdin(piece):
                return
    finally:
        if isinstance(contents, AsyncGenerator):
            await contents.aclose()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error that a person is told (the group is our own doing): a real one rather than a
    cancellation.
    """
    leaves: list[BaseException] = []
    groups: list[BaseException] = [group]
    while groups:
        error = groups.pop()
        if isinstance(error, BaseExceptionGroup):
            groups += error.exceptions
        else:
            leaves.append(error)
    return next((leaf for leaf in leaves if isinstance(leaf, Exception)), leaves[0])


def judge(operation: Operation, path: str, timeout_s: float | None) -> None:
    """Return for a success, raise what a failed file operation means."""
    result = operation.ended()
    if result.outcome is Outcome.EXITED:
        return
    if operation.overdue:
        raise TimeoutError(
            f"the guest took longer than {format_duration(timeout_s or 0)} for {path!r}"
        )
    raise file_error(result, path)
