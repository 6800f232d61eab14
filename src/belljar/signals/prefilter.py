"""Tells in one fast pass which patterns data can't hold, with hyperscan (the extra `guard`).

Without it, or where it is busy in another thread, everything may be there: slower, never blind.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

MIN_BYTES: Final = 2048
"""Less is searched as fast without."""


class Prefilter:
    """Of expressions (hyperscan's syntax), each by its index. Compiled when it is first used."""

    def __init__(self, expressions: Sequence[bytes]) -> None:
        self._expressions = list(expressions)
        self._database: Any = None
        self._tried = False
        self._lock = threading.Lock()

    def possible(self, data: bytes) -> set[int] | None:
        """Which expressions are in data; None: not known."""
        if len(data) < MIN_BYTES or not self._expressions or not self._lock.acquire(blocking=False):
            return None
        try:
            if not self._tried:
                self._tried = True
                self._database = _compiled(self._expressions)
            if self._database is None:
                return None
            found: set[int] = set()
            self._database.scan(data, match_event_handler=lambda number, *_: found.add(number))
        except Exception as error:  # hyperscan's own kinds; anything else is a defect of ours
            if type(error).__module__.partition(".")[0] not in {"hyperscan", "_hyperscan"}:
                raise
            self._database = None
            return None
        else:
            return found
        finally:
            self._lock.release()


def _compiled(expressions: list[bytes]) -> Any:  # noqa: ANN401 - a package without types
    try:
        import hyperscan
    except ImportError:
        return None
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    flags = hyperscan.HS_FLAG_SINGLEMATCH | hyperscan.HS_FLAG_DOTALL
    database.compile(
        expressions=expressions,
        ids=list(range(len(expressions))),
        elements=len(expressions),
        flags=[flags] * len(expressions),
    )
    return database
