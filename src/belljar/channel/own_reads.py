"""What the host itself reads in a guest through the guest agent, for sensors that would see it."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import anyio.to_thread

Phase: TypeAlias = Literal["begins", "ended"]
Listener: TypeAlias = Callable[[str, Phase], None]
"""Called with the path before it is read, and afterwards."""


class OwnReads:
    """The host's reads of one guest.

    Attributes:
        listeners: called for each read, in the event loop's thread.
        settlers: called in a worker thread before each read: what a sensor has queued by then was
            the guest's doing. Each bounds its time.
    """

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.settlers: list[Callable[[], None]] = []

    @asynccontextmanager
    async def of(self, path: str, cwd: str) -> AsyncIterator[None]:
        """This file, or everything in this directory, is read in the block."""
        whole = posixpath.normpath(posixpath.join("/", cwd, path))
        for settle in list(self.settlers):
            await anyio.to_thread.run_sync(settle)
        heard = list(self.listeners)
        for listener in heard:
            listener(whole, "begins")
        try:
            yield
        finally:
            for listener in heard:
                listener(whole, "ended")
