"""What has come of a request's body and its application has not read: pieces in the queue that
hypercorn has for each of its streams.
"""

from __future__ import annotations

import asyncio
from typing import Any


def make_room(stream: Any) -> None:  # noqa: ANN401 - one of hypercorn's streams, or None
    """Drops what a closing stream's application has not read: hypercorn would wait for room to tell
    it of the end, for ever if it reads no more.
    """
    put = getattr(stream, "app_put", None)
    if put is not None:
        queue: asyncio.Queue[Any] = put.__self__
        while queue.full():
            queue.get_nowait()


def keep_unread(stream: Any) -> None:  # noqa: ANN401 - one of hypercorn's streams, or None
    """Has room for the word of the end behind what the application has not read.

    Call it where nobody waits for room.
    """
    put = getattr(stream, "app_put", None)
    if put is not None:
        put.__self__._maxsize = 0
