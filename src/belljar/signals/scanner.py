"""The scanner: known values and patterns, also in encoded data. Pure.

A bound that ends the scan makes its result incomplete.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from belljar.dataclass import dataclass, field
from belljar.signals.decoders import (
    ESCAPES,
    MAGIC,
    REVERSED_MARK,
    ROT13_MARK,
    SMALL,
    WINDOW,
    Decoded,
    compressed,
    deflated,
    escapes,
    promising,
    turned,
)
from belljar.signals.known import KnownValues
from belljar.signals.patterns import WEAK, Patterns
from belljar.signals.prefilter import Held, Prefilter, literal
from belljar.signals.runs import GROUP_HINTS, GROUPS_OF_LARGE, decode_run, runs
from belljar.signals.values import Hit, Scanned, ScanSpec

if TYPE_CHECKING:
    from belljar.signals.decoders import Locate

FROM_BYTES: Final = 256 << 10  # Compiling takes a quarter of a second.
_MAGIC: Final = {magic.hex(): literal(magic) for _, magic in MAGIC}
# Hyperscan knows no lookahead: it gets what stands before it.
_ESCAPES: Final = {escape.name: escape.pattern.pattern.partition(b"(?!")[0] for escape in ESCAPES}
# Hyperscan spells the end of data `\z`, as PCRE does; Python `\Z`.
_OF_SMALL: Final = {
    "reversed": REVERSED_MARK.pattern.replace(rb"\Z", rb"\z"),
    "rot13": ROT13_MARK.pattern,
}
# Fewer expressions for large data, of which the rarer groups aren't looked for.
_LARGE_GROUPS: Final = {name: GROUP_HINTS[name] for name in GROUPS_OF_LARGE}
_large = Prefilter(_LARGE_GROUPS | _MAGIC | _ESCAPES, places=frozenset((*_LARGE_GROUPS, *_MAGIC)))
_small = Prefilter(
    GROUP_HINTS | _MAGIC | _ESCAPES | _OF_SMALL,
    places=frozenset((*GROUP_HINTS, *_MAGIC)),
    from_bytes=FROM_BYTES,
)


def marks(data: bytes) -> Held:
    """What data may hold → where it ends."""
    return (_small if len(data) <= SMALL else _large).look(data)


def prepare_marks() -> None:
    """Compile what `marks` uses."""
    _small.prepare()
    _large.prepare()


MAX_HITS: Final = 10_000  # Of one scan.
# Headers repeat: so many pieces in which nothing was found are remembered. A scan of one takes some
# 0.4 ms, to know it again some µs.
MEMO: Final = 512
# Of one of them, so that all take 1 MiB at most.
MEMO_BYTES: Final = 2048
# An agent prints the same file again and again: so many runs that look encoded are remembered, too.
MEMO_RUNS: Final = 4096
# Of one of them: a longer one is decoded again each time.
MEMO_RUN_BYTES: Final = 1024
_NOTHING: Final = Scanned()
# Deeper than any view: of a run that was not looked at before.
MAX_DEPTH: Final = 99
MIN_DECODED: Final = 8  # Less holds no value, and no more encoding of one.
BATCH: Final = 1024
BATCH_BYTES: Final = 256 << 10  # Small decoded pieces are searched together.
_TURNED: Final = frozenset({"reversed", "rot13"})
SEPARATOR: Final = b"\xff\xfe\xff"  # In no text, so in no value.
SLICE: Final = 1 << 20  # How much is searched between two looks at the clock.
# A scan has a limit of processor time; by the clock it may take so many times as long, as the host
# may be busy.
WALL_FACTOR: Final = 15


@dataclass(frozen=True, slots=True)
class _View:
    """Data to search, maybe decoded from another."""

    data: bytes
    names: tuple[str, ...] = ()
    depth: int = 0
    parent: _View | None = None
    start: int = 0
    end: int = 0
    locate: Locate | None = None
    known: list[tuple[int, int]] = field(default_factory=list)  # Spans of known values.

    def outermost(self, start: int, end: int) -> tuple[int, int]:
        view: _View = self
        while view.parent is not None:
            start, end = view.locate(start, end) if view.locate else (view.start, view.end)
            view = view.parent
        return start, end


class _ExceededError(Exception):
    """A bound was hit."""


class Scanner:
    """Searches data. Thread-safe. Raises ValueError, MemoryError."""

    def __init__(self, spec: ScanSpec) -> None:
        self.spec = spec
        self._known = KnownValues(spec)
        self._patterns = Patterns(spec.classes)
        self._clean: set[bytes] = set()
        self._clean_runs: dict[bytes, int] = {}

    def __repr__(self) -> str:
        return f"Scanner({len(self.spec.values)} known values)"

    def scan(self, data: bytes) -> Scanned:
        """Find what the spec names."""
        data = bytes(data)
        if data in self._clean:
            return _NOTHING
        scan = _Scan(self.spec, self._known, self._patterns, self._clean_runs)
        result = scan.run(data)
        if result == _NOTHING:
            if len(data) <= MEMO_BYTES:
                if len(self._clean) >= MEMO:
                    self._clean.clear()
                self._clean.add(data)
            if len(self._clean_runs) >= MEMO_RUNS:
                self._clean_runs.clear()
            for run, depth in scan.decoded_runs.items():
                self._clean_runs[run] = min(depth, self._clean_runs.get(run, depth))
        return result

    def prepare(self) -> None:
        """Compile now, for a process that can't later."""
        prepare_marks()
        self._patterns.prepare()
        self._known.prepare()

    def replace(self, data: bytes, hits: Iterable[Hit], by: bytes) -> bytes:
        """Replace each hit's span; overlapping ones as one."""
        out, at = bytearray(), 0
        for start, end in sorted((hit.start, hit.end) for hit in hits):
            if start >= at:
                out += data[at:start] + by
            at = max(at, end)
        return bytes(out + data[at:])


class _Scan:
    """One scan's state."""

    def __init__(
        self, spec: ScanSpec, known: KnownValues, patterns: Patterns, clean_runs: dict[bytes, int]
    ) -> None:
        self._spec = spec
        self._clean_runs = clean_runs
        # By depth: if nothing is found at all, nothing is in any of them.
        self.decoded_runs: dict[bytes, int] = {}
        self._known = known
        self._patterns = patterns
        self._hits: dict[tuple[str, str, int, int], Hit] = {}
        self._deadline = time.thread_time() + spec.bounds.time_s
        self._wall_deadline = time.monotonic() + spec.bounds.time_s * WALL_FACTOR
        self._left = spec.bounds.decoded_bytes
        self._seen: set[bytes] = set()
        self._runs: set[bytes] = set()
        self._views: deque[_View] = deque()
        self._problem = ""

    def run(self, data: bytes) -> Scanned:
        """Breadth first: the least encoded comes first."""
        try:
            self._views.append(_View(data))
            self._search([data], [self._views[0]].__getitem__)
            while self._views:
                view = self._views.popleft()
                if _TURNED.isdisjoint(view.names):
                    for start, end, cls in self._patterns.find(view.data, self._tick):
                        if cls in WEAK and any(
                            start < right and left < end for left, right in view.known
                        ):
                            continue  # it is that value, in its context
                        text = view.data[start:end]
                        self._add(view, (start, end), (), cls, "", "pattern", text)
                    self._tick()
                self._decode(view)
        except _ExceededError as bound:
            self._problem = self._problem or str(bound)
        # A guest chose the data: a search that it exhausts is reported as incomplete.
        except (MemoryError, RecursionError):
            self._problem = "memory"
        hits = sorted(
            self._hits.values(), key=lambda hit: (hit.start, hit.end, hit.cls, hit.value_id)
        )
        return Scanned(hits=tuple(hits), complete=not self._problem, problem=self._problem)

    def _tick(self) -> None:
        if time.thread_time() > self._deadline or time.monotonic() > self._wall_deadline:
            raise _ExceededError("time")

    def _search(self, pieces: list[bytes], view_of: Callable[[int], _View]) -> None:
        """Find known values, in many pieces at once."""
        self._tick()
        data = pieces[0] if len(pieces) == 1 else SEPARATOR.join(pieces)
        starts: list[int] = []
        for at in range(0, max(1, len(data)), SLICE):
            for found in self._known.find(data, at, at + SLICE):
                starts = starts or list(
                    accumulate((len(one) + len(SEPARATOR) for one in pieces[:-1]), initial=0)
                )
                index = bisect_right(starts, found.start) - 1
                view, start, value = view_of(index), starts[index], found.value
                place = (found.start - start, found.end - start)
                view.known.append(place)
                self._add(
                    view, place, found.names, value.cls, value.id, value.source.value, found.text
                )
            self._tick()

    def _decode(self, view: _View) -> None:
        """Search what a view may encode."""
        batch: list[Decoded] = []
        size = 0
        for decoded in self._decoded(view):
            if not self._is_new(view, decoded):
                continue
            batch.append(decoded)
            size += len(decoded.data)
            if size > BATCH_BYTES or len(batch) >= BATCH:
                self._finish(view, batch)
                batch, size = [], 0
        if batch:
            self._finish(view, batch)

    def _finish(self, parent: _View, batch: list[Decoded]) -> None:
        views: dict[int, _View] = {}

        def view_of(index: int) -> _View:
            if index not in views:
                views[index] = _inner(parent, batch[index])
            return views[index]

        self._search([decoded.data for decoded in batch], view_of)
        for index, decoded in enumerate(batch):
            if promising(decoded.data):
                self._views.append(view_of(index))
                continue
            # Raw deflate has no mark: it is tried on what else is garbage.
            names = parent.names + decoded.names
            if _TURNED.isdisjoint(names) and _depth(parent, decoded) < self._spec.bounds.depth:
                found = deflated(decoded.data, self._left)
                if found and self._is_new(view_of(index), found):
                    child = _inner(view_of(index), found)
                    self._search([child.data], [child].__getitem__)
                    self._views.append(child)

    def _add(
        self,
        view: _View,
        place: tuple[int, int],
        names: tuple[str, ...],
        cls: str,
        value_id: str,
        source: str,
        text: bytes,
    ) -> None:
        left, right = view.outermost(*place)
        key = (cls, value_id, left, right)
        decoding = view.names + names
        if key in self._hits and len(self._hits[key].decoding) <= len(decoding):
            return
        if len(self._hits) >= MAX_HITS:
            raise _ExceededError("hits")
        self._hits[key] = Hit(
            cls=cls,
            value_id=value_id,
            source=source,
            start=left,
            end=right,
            decoding=decoding,
            digest=self._spec.digest(text),
        )

    def _decoded(self, view: _View) -> Iterator[Decoded]:
        if view.depth >= self._spec.bounds.depth:
            return
        held = marks(view.data)
        for run in runs(view.data, held):
            if run.text in self._runs or self._clean_runs.get(run.text, MAX_DEPTH) <= view.depth:
                continue
            self._runs.add(run.text)
            if len(run.text) <= MEMO_RUN_BYTES and len(self.decoded_runs) < MEMO_RUNS:
                self.decoded_runs[run.text] = view.depth
            yield from decode_run(run)
        yield from escapes(view.data, held)
        # These multiply whatever else is undone: in a larger text once, below one encoding at most.
        is_first = view.depth <= 1 and _TURNED.isdisjoint(view.names)
        if is_first or len(view.data) <= WINDOW:
            yield from turned(view.data, held)
        yield from compressed(view.data, self._room, held)

    def _room(self) -> int:
        """How many bytes may be expanded now: asked at each mark, of which data may be full."""
        self._tick()
        return self._left

    def _is_new(self, view: _View, decoded: Decoded) -> bool:
        """Whether decoded data is new and within bounds."""
        if not decoded.whole:
            self._problem = self._problem or "decoded_bytes"
        data = decoded.data
        size = len(data)
        if (
            size < MIN_DECODED
            or data in self._seen
            or _depth(view, decoded) > self._spec.bounds.depth
        ):
            return False
        if size > self._left:
            self._problem = self._problem or "decoded_bytes"
            return False
        self._left -= size
        # Larger ones are too much to keep: the budget of decoded bytes bounds how often they are
        # searched.
        if size < SLICE:
            self._seen.add(data)
        return True


def _depth(view: _View, decoded: Decoded) -> int:
    names = decoded.names
    return view.depth + len(names) - ("split" in names and len(names) > 1)


def _inner(parent: _View, decoded: Decoded) -> _View:
    names = parent.names + decoded.names
    return _View(
        decoded.data,
        names,
        _depth(parent, decoded),
        parent,
        decoded.start,
        decoded.end,
        decoded.locate,
    )
