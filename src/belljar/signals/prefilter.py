"""Finds in one fast pass what data can't hold (hyperscan).

Without it, or while another thread uses it, everything may be there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

# What data may hold → where it ends there; None: anything, anywhere.
Held = Mapping[str, Sequence[int]] | None

MIN_BYTES: Final = 64  # Less is searched as fast without.
FROM_BYTES: Final = 64 << 10  # Before so much was looked at, compiling costs more than it saves.
MAX_PREPARED: Final = 8192  # Expressions. Some 150 ms.
MAX_PLACES: Final = 1 << 16  # Where there are more, they aren't worth listing.


class Prefilter:
    """Searches for expressions (hyperscan's syntax) by name.

    Compiled after `from_bytes` of use. `places`: find every one.
    """

    def __init__(
        self,
        expressions: Mapping[str, bytes],
        *,
        places: frozenset[str] = frozenset(),
        from_bytes: int = 0,
    ) -> None:
        self._names = list(expressions)
        self._expressions = list(expressions.values())
        self._places = places
        self._wait_bytes = from_bytes
        self._database: Any = None
        self._tried = False
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Compile now; too many are never compiled."""
        with self._lock:
            if not self._tried:
                self._tried, self._wait_bytes = True, 0
                self._database = (
                    self._compiled() if len(self._expressions) <= MAX_PREPARED else None
                )

    def look(self, data: bytes) -> Held:
        """What data may hold, and where it ends."""
        if self._wait_bytes > 0:
            self._wait_bytes -= len(data)
            return None
        # Its scratch memory is for one scan at a time; without it everything may be there, which is
        # right.
        if len(data) < MIN_BYTES or not self._lock.acquire(blocking=False):
            return None
        try:
            if not self._tried:
                self._tried = True
                self._database = self._compiled()
            return None if self._database is None else self._search(data)
        finally:
            self._lock.release()

    def _search(self, data: bytes) -> Held:
        events: list[tuple[int, int]] = []

        def note(number: int, _start: int, end: int, *_: object) -> bool:
            events.append((end, number))
            # A true value ends the scan, which then raises.
            return len(events) > MAX_PLACES

        try:
            self._database.scan(data, match_event_handler=note)
        except Exception as error:
            if not _is_its_own(error):
                raise
            # Not ended by `note`: a prefilter that fails once is not trusted again.
            if len(events) <= MAX_PLACES:
                self._database = None
            return None
        if len(events) > MAX_PLACES:
            return None
        held: dict[str, list[int]] = {}
        for end, number in sorted(events):
            held.setdefault(self._names[number], []).append(end)
        return held

    def _compiled(self) -> Any:  # noqa: ANN401 - a package without types
        if not self._expressions:
            return None
        try:
            import hyperscan
        except ImportError:
            return None
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        once = hyperscan.HS_FLAG_SINGLEMATCH | hyperscan.HS_FLAG_DOTALL
        try:
            database.compile(
                expressions=self._expressions,
                ids=list(range(len(self._expressions))),
                elements=len(self._expressions),
                flags=[
                    hyperscan.HS_FLAG_DOTALL if name in self._places else once
                    for name in self._names
                ],
            )
        except Exception as error:
            if not _is_its_own(error):
                raise
            return None
        return database


def _is_its_own(error: Exception) -> bool:
    """Whether hyperscan raised it."""
    return type(error).__module__.partition(".")[0] in {"hyperscan", "_hyperscan"}


def literal(text: bytes) -> bytes:
    """The expression for a text."""
    return b"".join(b"\\x%02x" % byte for byte in text)


def places(data: bytes, needle: bytes, held: Held, name: str) -> Iterator[int]:
    """Where a needle begins."""
    if held is not None:
        yield from (end - len(needle) for end in held.get(name, ()))
        return
    at = data.find(needle)
    while at >= 0:
        yield at
        at = data.find(needle, at + 1)
