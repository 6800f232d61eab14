"""What a range's gateway asks its owner, and who answers.

The owner may be known only after the range is made (a cell made ahead).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Answerer: TypeAlias = Callable[[str, bytes], bytes]
"""Of a question its kind and body; called in a thread of the range's.

Raises `ValueError` to refuse.
"""


class Questions:
    """The place of whoever answers.

    Until there is one, and when the range ends, every question is refused.

    `on_close` is called then, in the event loop that ends the range: what is being asked is no
    longer wanted.
    """

    def __init__(self) -> None:
        self.answerer: Answerer | None = None
        self.on_close: Callable[[], None] | None = None
        self._closed = False

    def __call__(self, kind: str, body: bytes) -> bytes:
        """Have it answered. Raises `ValueError`."""
        if self._closed:
            raise ValueError("the range has ended")
        if self.answerer is None:
            raise ValueError(
                "nobody here answers questions to a model: run the cell under `belljar run`"
            )
        return self.answerer(kind, body)

    def close(self) -> None:
        """The range ends."""
        self._closed = True
        if self.on_close is not None:
            self.on_close()
