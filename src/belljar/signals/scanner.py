"""The scanner of known values and patterns. Pure."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import compress
from operator import attrgetter
from typing import Any, Final, NamedTuple

import ahocorasick  # type: ignore[import-not-found] # a compiled module without stubs

from belljar.dataclass import dataclass, field
from belljar.signals import decoders
from belljar.signals.decoders import ROT13, Decoded, Locate
from belljar.signals.detectors import WEAK, Patterns
from belljar.signals.runs import decode_run, runs
from belljar.signals.values import Hit, KnownValue, Scanned, ScanSpec

# One automaton over letters and digits in lower case finds values in other case, cut, turned.

# Letters, digits and all beyond ASCII: what is left of a value that was split or quoted.
_KEPT: Final = bytes(byte for byte in range(256) if byte > 127 or chr(byte).isalnum())
_DROPPED: Final = bytes(byte for byte in range(256) if byte not in _KEPT)
_LOWER: Final = bytes(range(256)).lower()  # Bytes beyond ASCII are parts of characters.
# A table for `translate` and `compress`: they find each kept byte's place.
_IS_KEPT: Final = bytes(int(byte in _KEPT) for byte in range(256))
MIN_FOLDED: Final = 8  # A value with fewer letters and digits is looked for as it is, only.
MAX_SEPARATOR: Final = 16
MAX_SEPARATORS: Final = 3  # Different ones in one value, beside its own punctuation.
OVERLAP: Final = 64 << 10  # A value of 4,096 bytes, cut by separators.


class _Form(NamedTuple):
    value: KnownValue
    text: bytes
    names: tuple[str, ...]


def fold(data: bytes) -> bytes:
    return data.translate(_LOWER, _DROPPED)


class KnownValues:
    def __init__(self, spec: ScanSpec) -> None:
        all_folded, all_exact = dict[bytes, list[_Form]](), dict[bytes, list[_Form]]()
        for value in spec.values:
            plain = value.text.encode(errors="surrogatepass")
            rotated, normal = plain.translate(ROT13), decoders.normalised(plain)
            read: dict[tuple[str, ...], bytes] = {(): plain, ("reversed",): plain[::-1]}
            read |= {("rot13",): rotated, ("reversed", "rot13"): rotated[::-1]}
            read |= {("unicode",): normal} if normal != plain else {}
            for names, text in read.items():
                folded = fold(text)
                is_long = len(folded) >= MIN_FOLDED
                needle, forms = (folded, all_folded) if is_long else (text, all_exact)
                forms.setdefault(needle, []).append(_Form(value, text, names))
        self._folded, self._exact = _automaton(all_folded), _automaton(all_exact)

    def find(
        self, data: bytes, start: int, end: int
    ) -> Iterator[tuple[_Form, tuple[int, int], tuple[str, ...]]]:
        """Yield form, place and undone steps of values."""
        begin = max(0, start - OVERLAP)
        piece = data[begin:end]
        for last, form in _matches(self._exact, piece):
            at = begin + last + 1 - len(form.text)
            # A find that ends before `start` was reported with the slice before.
            if begin + last >= start:
                yield form, (at, begin + last + 1), form.names
        places: array[int] | None = None
        for last, form in _matches(self._folded, fold(piece)):
            if places is None:  # the offset of each kept byte
                places = array("I", compress(range(len(piece)), piece.translate(_IS_KEPT)))
            left = places[last + 1 - len(fold(form.text))]
            right = places[last] + 1
            if begin + right <= start:
                continue
            names = _how(form, piece[left:right])
            if names is None:
                continue
            if names == form.names:  # as it is: with the punctuation around it
                left -= len(form.text) - len(form.text.lstrip(_DROPPED))
                right = left + len(form.text)
            yield form, (begin + left, begin + right), names


def _how(form: _Form, piece: bytes) -> tuple[str, ...] | None:
    inner = form.text.strip(_DROPPED)
    if piece == inner:
        return form.names
    same_case = not form.value.case_sensitive
    if piece.lower() == inner.lower():
        return form.names if same_case else (*form.names, "case")
    own = b"".join(_gaps(inner))  # The value's own punctuation is no separator, wherever it stands.
    gaps = {gap.translate(None, own) for gap in _gaps(piece)} - {b""}
    if len(gaps) > MAX_SEPARATORS or any(len(gap) > MAX_SEPARATOR for gap in gaps):
        return None
    if same_case or piece.translate(None, _DROPPED) == inner.translate(None, _DROPPED):
        return (*form.names, "split")
    return (*form.names, "split", "case")


def _gaps(piece: bytes) -> set[bytes]:
    # 0x80 stands for any kept byte; itself kept, it is no separator.
    marked = bytes(0x80 if byte in _KEPT else byte for byte in piece)
    return set(marked.split(b"\x80")) - {b""}


def _automaton(forms: dict[bytes, list[_Form]]) -> Any:  # noqa: ANN401 - it has no stubs
    made = ahocorasick.Automaton()
    for needle, of_needle in forms.items():
        made.add_word(needle.decode("latin-1"), of_needle)
    if forms:
        made.make_automaton()
    return made


def _matches(automaton: Any, data: bytes) -> Iterator[tuple[int, _Form]]:  # noqa: ANN401
    for last, forms in automaton.iter(data.decode("latin-1")) if len(automaton) else ():
        for form in forms:
            yield last, form


MAX_HITS: Final = 10_000  # Of one scan.
MIN_DECODED: Final = 8  # Less holds no value, and no more encoding of one.
_TURNED: Final = frozenset({"reversed", "rot13"})
SLICE: Final = 1 << 20  # How much is searched between two looks at the clock.
WALL_FACTOR: Final = 15  # Times the processor time, as the host may be busy.


@dataclass(frozen=True, slots=True)
class _View:
    data: bytes
    outermost: Locate  # Maps offsets in `data` to those in what is scanned.
    names: tuple[str, ...] = ()
    depth: int = 0
    known: list[tuple[int, int]] = field(default_factory=list)  # Spans of known values.


class _ExceededError(Exception):
    """A bound was hit."""


class Scanner:
    """Searches data, from any thread. Raises `ValueError`, `MemoryError`."""

    def __init__(self, spec: ScanSpec) -> None:
        self.spec, self.known, self.patterns = spec, KnownValues(spec), Patterns(spec.classes)

    def scan(self, data: bytes) -> Scanned:
        return _Scan(self).run(bytes(data))

    def replace(self, data: bytes, hits: Iterable[Hit], by: bytes) -> bytes:
        """Replace each hit's span; overlapping ones as one."""
        out, at = bytearray(), 0
        for start, end in sorted((hit.start, hit.end) for hit in hits):
            if start >= at:
                out += data[at:start] + by
            at = max(at, end)
        return bytes(out + data[at:])


class _Scan:
    def __init__(self, scanner: Scanner) -> None:
        self._spec, bounds = scanner.spec, scanner.spec.bounds
        self._known, self._patterns = scanner.known, scanner.patterns
        self._hits: dict[tuple[str, str, int, int], Hit] = {}
        self._deadline = time.thread_time() + bounds.time_s
        self._wall_deadline = time.monotonic() + bounds.time_s * WALL_FACTOR
        self._left = bounds.decoded_bytes
        self._seen: dict[bytes, int] = {}  # What was looked at, and how: see `_is_new`.
        self._runs: dict[bytes, int] = {}
        self._views: deque[_View] = deque()
        self._problem = ""

    def run(self, data: bytes) -> Scanned:
        """Search breadth first: the least encoded comes first."""
        try:
            self._views.append(_View(data, lambda start, end: (start, end)))
            self._search(self._views[0])
            while self._views:
                view = self._views.popleft()
                if _TURNED.isdisjoint(view.names):
                    for start, end, cls in self._patterns.find(view.data, self._tick):
                        if cls in WEAK and any(
                            start < right and left < end for left, right in view.known
                        ):
                            continue  # it is that value, in its context
                        text, about = view.data[start:end], {"source": "pattern", "value_id": ""}
                        self._add(view, (start, end), (), text, cls=cls, **about)
                    self._tick()
                self._decode(view)
        except _ExceededError as bound:
            self._problem = self._problem or str(bound)
        # A guest chose the data: a search that it exhausts is reported as incomplete.
        except (MemoryError, RecursionError):
            self._problem = "memory"
        hits = sorted(self._hits.values(), key=attrgetter("start", "end", "cls", "value_id"))
        return Scanned(hits=tuple(hits), problem=self._problem)

    def _tick(self) -> None:
        if time.thread_time() > self._deadline or time.monotonic() > self._wall_deadline:
            raise _ExceededError("time")

    def _search(self, view: _View) -> None:
        for at in range(0, max(1, len(view.data)), SLICE):
            self._tick()
            for form, place, names in self._known.find(view.data, at, at + SLICE):
                view.known.append(place)
                about = {"value_id": form.value.id, "source": form.value.source.value}
                plain = form.value.text.encode(errors="surrogatepass")
                self._add(view, place, names, plain, cls=form.value.cls, **about)

    def _decode(self, view: _View) -> None:
        for decoded in self._decoded(view):
            if (inner := self._within(view, decoded)) is None:
                continue
            self._search(inner)
            if decoders.promising(decoded.data):
                self._views.append(inner)
            # Raw deflate has no mark: it is tried on what else is garbage.
            elif _TURNED.isdisjoint(inner.names) and inner.depth < self._spec.bounds.depth:
                found = decoders.deflated(decoded.data, self._left)
                if found and (unpacked := self._within(inner, found)):
                    self._search(unpacked)
                    self._views.append(unpacked)

    def _add(
        self, view: _View, place: tuple[int, int], names: tuple[str, ...], text: bytes, **about: str
    ) -> None:
        left, right = view.outermost(*place)
        key = (about["cls"], about["value_id"], left, right)
        decoding = view.names + names
        if key in self._hits and len(self._hits[key].decoding) <= len(decoding):
            return
        if len(self._hits) >= MAX_HITS:
            raise _ExceededError("hits")
        digest = self._spec.digest(text)
        self._hits[key] = Hit(start=left, end=right, decoding=decoding, digest=digest, **about)

    def _decoded(self, view: _View) -> Iterator[Decoded]:
        if view.depth >= self._spec.bounds.depth:
            return
        for run in runs(view.data):
            if _is_new(self._runs, run.text, view.depth, view.names):
                yield from decode_run(run)
        yield from decoders.escapes(view.data)
        yield from decoders.compressed(view.data, self._room)

    def _room(self) -> int:
        self._tick()
        return self._left

    def _within(self, parent: _View, decoded: Decoded) -> _View | None:
        if not decoded.whole:
            self._problem = self._problem or "decoded_bytes"
        size, names = len(decoded.data), decoded.names
        depth = parent.depth + len(names) - ("split" in names and len(names) > 1)
        if size < MIN_DECODED or depth > self._spec.bounds.depth:
            return None
        # Larger ones are too much to keep; the budget of decoded bytes bounds their searches.
        names = parent.names + names
        if size < SLICE and not _is_new(self._seen, decoded.data, depth, names):
            return None
        if size > self._left:
            self._problem = self._problem or "decoded_bytes"
            return None
        self._left -= size

        def outermost(start: int, end: int) -> tuple[int, int]:
            at = decoded.locate(start, end) if decoded.locate else (decoded.start, decoded.end)
            return parent.outermost(*at)

        return _View(decoded.data, outermost, names, depth)


def _is_new(seen: dict[bytes, int], data: bytes, depth: int, names: tuple[str, ...]) -> bool:
    """Return True if it is less deep than before, or turned no more.

    `seen` has a bit for each depth, and one for each where it is reversed or rotated.
    """
    is_turned, known = not _TURNED.isdisjoint(names), seen.get(data, 0)
    as_much = (4 << 2 * depth) - 1
    if known & (as_much if is_turned else as_much & 0x5555_5555):
        return False
    seen[data] = known | (1 + is_turned) << 2 * depth
    return True
