"""Requests to the evaluated model that a range's gateway passes to its owner, and their handler.

The handler may be known only after the range is made (a cell made ahead).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Handler: TypeAlias = Callable[[str, bytes], bytes]
"""Kind and body of a request to its answer; called in a thread of the range.

Raises `ValueError` to refuse.
"""


class ModelRequests:
    """Passes requests to `handler`. Without one, and when the range has ended, all are refused.

    `on_close` is called at that end, in the event loop that ends the range: open requests are no
    longer wanted.
    """

    def __init__(self) -> None:
        self.handler: Handler | None = None
        self.on_close: Callable[[], None] | None = None
        self._closed = False

    def __call__(self, kind: str, body: bytes) -> bytes:
        """The answer. Raises `ValueError`."""
        if self._closed:
            raise ValueError("the range has ended")
        if self.handler is None:
            raise ValueError(
                "nobody here answers questions to a model: run the cell under `belljar run`"
            )
        return self.handler(kind, body)

    def close(self) -> None:
        """The range ends."""
        self._closed = True
        if self.on_close is not None:
            self.on_close()
