"""The touch sensor of a microVM: its guest agent, outside of the workload's container. A guest's
word: bounded by the wire, and never believed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import anyio

from belljar.channel import GuestClient
from belljar.channel.messages import Touched
from belljar.errors import CellError, HostError
from belljar.events import Trust
from belljar.isolation.touches import Access, AccessLimit, FileWatch, OnAccess, OnEnd
from belljar.units import printable

_MAX_TOUCHES: Final = 1 << 20
"""What a guest may report in its life: at its own rate (at most 256 a second) an hour's flood."""
_MAX_EARLY: Final = 1024
_MAX_NAME: Final = 64


class GuestWatch:
    """As `isolation.touches.FileWatch`."""

    sensor = "guest-fanotify"
    trust = Trust.GUEST_REPORTED

    def __init__(self, client: GuestClient, paths: Sequence[str]) -> None:
        self.missing: Mapping[str, str] = {}
        self._client = client
        self._paths = tuple(paths)
        self._limit = AccessLimit()
        self._reported = 0
        self._early: list[Touched] = []
        self._on_access: OnAccess | None = None
        self._on_end: OnEnd | None = None
        self._has_ended = self._is_closed = False

    async def start(self) -> None:
        """Raises `HostError` or `CellError`."""
        watched = await self._client.watch_files(
            self._paths, self._on_touched, max_touches=_MAX_TOUCHES
        )
        if watched.errno:
            why = os.strerror(watched.errno)
            raise HostError(f"its guest agent can't watch files: {why}", where=self.sensor)
        errors = zip(self._paths, watched.errors, strict=True)
        self.missing = {path: os.strerror(error) for path, error in errors if error}

    def begin(self, on_access: OnAccess, on_end: OnEnd) -> None:
        """As `FileWatch.begin`."""
        self._on_access, self._on_end = on_access, on_end
        early, self._early = self._early, []
        for touched in early:
            self._on_touched(touched)

    async def aclose(self) -> None:
        """As `FileWatch.aclose`. A cell that is dead has said what it had to say."""
        if self._is_closed:
            return
        self._is_closed = True
        with anyio.CancelScope(shield=True), suppress(CellError):
            await self._client.watch_files(())
        self._report(self._limit.due(time.monotonic(), everything=True))

    def _on_touched(self, touched: Touched) -> None:
        if self._on_access is None:
            if len(self._early) < _MAX_EARLY:
                self._early.append(touched)
            return
        self._reported += 1
        access = Access(
            path=self._paths[touched.index],
            operation="open" if touched.operation == 1 else "read",
            process=printable(touched.process, max_chars=_MAX_NAME),
            pid=touched.pid or None,
            count=touched.count,
        )
        now_s = time.monotonic()
        first = self._limit.add(access, now_s)
        self._report([*([] if first is None else [first]), *self._limit.due(now_s)])
        if self._reported == _MAX_TOUCHES:
            self._end("its guest agent has reported as many touches as it may")

    def _report(self, accesses: Sequence[Access]) -> None:
        try:
            for access in accesses:
                if self._on_access is not None and not self._has_ended:
                    self._on_access(access)
        except Exception as error:  # noqa: BLE001 - the channel's reader must go on
            self._end(f"{type(error).__name__}: {error}")

    def _end(self, reason: str) -> None:
        self._has_ended = True
        with suppress(Exception):
            if self._on_end is not None:
                self._on_end(reason)


async def watch_guest(client: GuestClient, paths: Sequence[str]) -> FileWatch:
    """Have the guest agent watch the files. Raises `HostError` or `CellError`."""
    watch = GuestWatch(client, paths)
    await watch.start()
    return watch
