"""Finds credentials and personal data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from belljar.signals.detectors import CREDENTIALS, personal_detectors
from belljar.signals.prefilter import FROM_BYTES, Prefilter, literal

# Named only where nothing more precise was found.
WEAK: Final = frozenset({"secret", "url_password"})


class Patterns:
    """Finds credentials and the classes asked for."""

    def __init__(self, classes: Iterable[str]) -> None:
        self._detectors = [
            (detector, frozenset(text.decode() for text in detector.literals))
            for detector in (*CREDENTIALS, *personal_detectors(classes))
        ]
        literals = {
            text.decode(): literal(text) for one, _ in self._detectors for text in one.literals
        }
        self._prefilter = Prefilter(literals, places=frozenset(literals), from_bytes=FROM_BYTES)

    def prepare(self) -> None:
        """Compile the prefilter now."""
        self._prefilter.prepare()

    def find(self, data: bytes, tick: Callable[[], None]) -> Iterator[tuple[int, int, str]]:
        """Start, end, class. `tick` raises when time is up."""
        held = self._prefilter.look(data)
        taken: dict[tuple[int, int], str] = {}
        # Made with the first find: most data has none.
        covered = bytearray()
        for detector, names in self._detectors:
            if held is not None and names and names.isdisjoint(held):
                continue
            for found in detector.matches(data, held, tick):
                start, end = found.span(1) if found.re.groups else found.span()
                if detector.cls in WEAK and covered.find(1, start, end) >= 0:
                    continue
                again = taken.get((start, end)) == detector.cls
                if not again and (detector.check is None or detector.check(data[start:end])):
                    taken[start, end] = detector.cls
                    covered = covered or bytearray(len(data))
                    covered[start:end] = b"\1" * (end - start)
                    yield start, end, detector.cls
