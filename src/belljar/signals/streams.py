"""Scans of flows that come in pieces."""

from __future__ import annotations

import json
import re
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final
from urllib.parse import unquote_to_bytes

from belljar.signals.decoders import compressed, is_plain
from belljar.signals.scanner import Scanner
from belljar.signals.values import MAX_VALUE_BYTES, Channel, Hit, Scanned

MIN_TAIL: Final = 512  # Looked at again with the next piece: a value may be cut in two.
MAX_TAIL: Final = 8 * MAX_VALUE_BYTES  # URL encoding of base32 takes eight characters a byte.
MAX_FLOW_BYTES: Final = 1 << 20
MAX_BYTES: Final = 64 << 20  # Of all tails: the flow that was quiet for longest is dropped.
MAX_FLOWS: Final = 10_000  # Likewise; a connection may be a flow of its own.
MAX_PARTS: Final = 512  # Of one flow: names of parameters and headers are the sender's.
MAX_JOINED: Final = 64 << 10  # Larger JSON isn't taken apart for joining its strings.
MAX_REPORTED: Final = 10_000  # Finds of one part whose ends are remembered.
REMEMBERED_BYTES: Final = 256  # What one of them takes.
MAX_FIELDS: Final = 64  # Of one request, that are joined with those of the next ones.
MAX_REPEATED: Final = 3  # No value has four bytes twice in a row.
JOINED: Final = "joined"  # The first decoding of a find that no single piece holds.
_SCANS_A_FEED: Final = 4  # Of a part: alone, over its border, and joined.


class _Part:
    def __init__(self) -> None:
        self.tail = b""
        self.last = b""  # A field's piece.
        # Of compressed data that goes on, by its encoding.
        self.reader: tuple[str, zlib._Decompress] | None = None
        # Of finds, counted from the tail's end: where they began, and where each last ended.
        self.starts: frozenset[tuple[int, str]] = frozenset()
        self.ends: dict[tuple[str, str], int] = {}

    @property
    def remembered(self) -> int:
        return REMEMBERED_BYTES * (len(self.ends) + len(self.starts))

    def keep_ends(self, hits: Iterable[Hit], size: int, added: int, tail: int) -> None:
        """Remember where finds ended, seen from the text's end, as far as `tail` reaches."""
        ends = {key: at + added for key, at in self.ends.items()}
        for hit in hits:
            key = (hit.cls, hit.digest)
            ends[key] = min(size - hit.end, ends.get(key, size))
        near = [(key, at) for key, at in ends.items() if at <= tail]
        self.ends = dict(near[-MAX_REPORTED:])


class _Parts:
    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Part] = OrderedDict()

    def get(self, name: str) -> _Part:
        found = self._kept.setdefault(name, _Part())
        self._kept.move_to_end(name)
        while len(self._kept) > MAX_PARTS or (self.size > MAX_FLOW_BYTES and len(self._kept) > 1):
            self._kept.popitem(last=False)
        return found

    def has(self, name: str, piece: bytes) -> bool:
        return name in self._kept and self._kept[name].last == piece

    @property
    def size(self) -> int:
        return sum(len(part.tail) for part in self._kept.values())

    @property
    def remembered(self) -> int:
        return sum(part.remembered for part in self._kept.values())


class _Flow:
    def __init__(self) -> None:
        # Apart: names of fields are the sender's, and no part gives way to them.
        self.parts, self.fields = _Parts(), _Parts()
        self.border = _Part()  # Whatever part came last.
        self.counted = 0  # Its size, when it was last fed.

    @property
    def size(self) -> int:
        held = self.parts.remembered + self.fields.remembered + self.border.remembered
        return len(self.border.tail) + self.parts.size + self.fields.size + held


class StreamScanner:
    """Searches a range's flows, in one thread."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        longest = max((len(value.text.encode()) for value in scanner.spec.values), default=0)
        self._tail = min(MAX_TAIL, max(MIN_TAIL, 8 * longest))
        self._flows: OrderedDict[str, _Flow] = OrderedDict()
        self._bytes = 0
        self._until = 0.0

    def feed(self, flow: str, channel: Channel, part: str, data: bytes) -> Scanned:
        """Return new finds; an offset is in `data`, or 0 where it began earlier.

        `part` is `url`, `header`, `body`, `label` (DNS), `message` or another.
        """
        self._until = time.thread_time() + _SCANS_A_FEED * self._scanner.spec.bounds.time_s
        state = self._flows.setdefault(flow, _Flow())
        self._flows.move_to_end(flow)
        results = [self._follow(state, part, data), self._border(state, data)]
        fed = state.parts.get(part)
        state.border.starts = fed.starts
        state.border.ends |= {key: at for key, at in fed.ends.items() if at < len(data)}
        for field in _fields(state.fields, channel, part, data, self._tail):
            results.append(self._join(*field, len(data)))
        self._bytes -= state.counted
        state.counted = state.size
        self._bytes += state.counted
        # The flow that was just fed stays: it is the last.
        while len(self._flows) > MAX_FLOWS or (self._bytes > MAX_BYTES and len(self._flows) > 1):
            self._bytes -= self._flows.popitem(last=False)[1].counted
            results.append(Scanned(problem="flows"))
        return _together(results)

    def end(self, flow: str) -> None:
        if (gone := self._flows.pop(flow, None)) is not None:
            self._bytes -= gone.counted

    def _scan(self, data: bytes, start: int = 0, end: int | None = None) -> Scanned:
        if time.thread_time() > self._until:
            return Scanned(problem="time")
        result = self._scanner.scan(data[start:end])
        return replace(result, hits=_moved(result.hits, start, len(data)))

    def _follow(self, state: _Flow, name: str, data: bytes) -> Scanned:
        part = state.parts.get(name)
        before, text = len(part.tail), part.tail + data
        part.tail = text[-self._tail :]
        result = self._scan(text)
        news = self._news(part, text, before, result, is_whole=True)
        part.keep_ends(news.hits, len(text), len(data), self._tail)
        begun = ((len(text) - hit.start, hit.value_id) for hit in result.hits)
        part.starts = frozenset(start for start in begun if start[0] <= self._tail)
        results = [replace(news, hits=_moved(news.hits, -before, len(data)))]
        inner = f"{name} unpacked"
        if part.reader is not None:
            results.append(self._inflate(state, part, inner, data))
        elif not is_plain(data):
            try:
                for found in compressed(data, self._room):
                    if found.reader is not None:
                        part.reader = found.names[0], found.reader
                        state.parts.get(inner).tail = found.data[-self._tail :]
            except TimeoutError:
                results.append(Scanned(problem="time"))
        return _together(results)

    def _news(
        self, part: _Part, text: bytes, before: int, result: Scanned, *, is_whole: bool
    ) -> Scanned:
        """Return finds across `before`, and behind it if `is_whole`, unless they only grew.

        A scan finds encoded data once, joined with what stands beside it.
        So what follows the finds in the tail is looked at without them.
        """
        known = {key: before - at for key, at in part.ends.items() if at <= before}
        news = tuple(
            hit
            for hit in result.hits
            if hit.start >= known.get((hit.cls, hit.digest), 0)
            and not _has_grown(hit, before, part.starts)
        )
        results = [replace(result, hits=news)]
        ended = (hit.end for hit in result.hits if hit.end <= before)
        cut = max((*known.values(), *ended), default=0)
        if cut and is_whole:
            results.append(self._scan(text, before))
        while 0 < cut < before:
            results.append(again := self._scan(text, cut, before + self._tail))
            cut = max((hit.end for hit in again.hits if hit.end <= before), default=0)
        found = _together(results)
        hits = tuple(
            hit for hit in found.hits if hit.end > before and (is_whole or hit.start < before)
        )
        return replace(found, hits=hits)

    def _room(self) -> int:
        if time.thread_time() > self._until:
            raise TimeoutError
        return self._scanner.spec.bounds.decoded_bytes

    def _inflate(self, state: _Flow, part: _Part, inner: str, data: bytes) -> Scanned:
        if part.reader is None:
            return Scanned()
        (name, reader), part.reader = part.reader, None
        try:
            out = reader.decompress(data, self._scanner.spec.bounds.decoded_bytes)
        except zlib.error:
            return Scanned()
        result = self._follow(state, inner, out)
        if reader.unconsumed_tail:
            result = replace(result, problem=result.problem or "decoded_bytes")
        elif not reader.eof:
            part.reader = name, reader
        return replace(result, hits=_all_of(result.hits, len(data), name))

    def _border(self, state: _Flow, data: bytes) -> Scanned:
        end, border = state.border.tail, state.border
        border.tail = (end + data)[-self._tail :]
        if not end or not data:
            border.keep_ends((), 0, len(data), self._tail)
            return Scanned()
        text = end + data[: self._tail]
        news = self._news(border, text, len(end), self._scan(text), is_whole=False)
        border.keep_ends(news.hits, len(end) + len(data), len(data), self._tail)
        return replace(news, hits=_moved(news.hits, -len(end), len(data), JOINED))

    def _join(self, name: str, field: _Part, before: bytes, piece: bytes, size: int) -> Scanned:
        alone = name.startswith("labels")  # Such a piece is joined itself.
        if not before and not alone:
            field.keep_ends((), 0, len(piece), self._tail)
            return Scanned()
        text = before + (piece if alone else piece[: self._tail])
        result = self._scan(text)
        if any(hit.start < len(before) < hit.end for hit in result.hits):
            # What a piece has as a whole was found with its request.
            field.keep_ends(self._scan(before).hits, len(before), 0, self._tail)
        news = self._news(field, text, len(before), result, is_whole=alone)
        field.keep_ends(news.hits, len(before) + len(piece), len(piece), self._tail)
        return replace(news, hits=_all_of(news.hits, size, JOINED))


def _has_grown(hit: Hit, before: int, starts: frozenset[tuple[int, str]]) -> bool:
    """Return True if it was reported before."""
    if not hit.start < before < hit.end:
        return False
    offset = before - hit.start
    if hit.value_id:
        return (offset, hit.value_id) in starts
    return any(start == offset for start, _ in starts)


def _moved(hits: Iterable[Hit], by: int, size: int, *names: str) -> tuple[Hit, ...]:
    places = ((max(0, hit.start + by), min(size, hit.end + by), hit) for hit in hits)
    return tuple(
        replace(hit, start=start, end=max(start, end), decoding=(*names, *hit.decoding))
        for start, end, hit in places
    )


def _all_of(hits: Iterable[Hit], size: int, name: str) -> tuple[Hit, ...]:
    return tuple(replace(hit, start=0, end=size, decoding=(name, *hit.decoding)) for hit in hits)


def _together(results: Iterable[Scanned]) -> Scanned:
    hits: list[Hit] = []
    seen: dict[tuple[str, str], list[Hit]] = {}
    problem = ""
    for result in results:
        problem = problem or result.problem
        for hit in result.hits:
            same = seen.setdefault((hit.cls, hit.digest), [])
            if not any(h.start < hit.end and hit.start < h.end for h in same):
                same.append(hit)
                hits.append(hit)
    return Scanned(hits=tuple(hits), problem=problem)


def _fields(
    fields: _Parts, channel: Channel, part: str, data: bytes, tail: int
) -> Iterator[tuple[str, _Part, bytes, bytes]]:
    left = MAX_FIELDS
    for name, piece in _pieces(channel, part, data):
        # A resolver asks for each name twice, and a field may never change.
        is_old = fields.has(name, piece)
        if not piece or (is_old and len(piece) > MAX_REPEATED):
            continue
        if not left:
            break
        left -= 1
        field = fields.get(name)
        field.last = piece
        before, field.tail = field.tail, (field.tail + piece)[-tail:]
        yield name, field, before, piece
        if not is_old and not (piece.isdigit() and len(piece) < 8):
            once = fields.get(f"{name}, once")  # The field without what repeats or counts.
            others, once.tail = once.tail, (once.tail + piece)[-tail:]
            if others != before:
                yield name, once, others, piece


# `1-QUJD`, `part02_QUJD`, `QUJD-7`
_INDEX: Final = re.compile(rb"^[A-Za-z]{0,6}[0-9]{1,4}[-_]|[-_][A-Za-z]{0,6}[0-9]{1,4}$")


def _pieces(channel: Channel, part: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    if channel is Channel.DNS or part == "label":
        labels = [label for label in data.strip(b".\r\n ").split(b".") if label]
        if len(labels) < 2:
            return
        # What may be its sender's: all but the domain, which has two or three labels
        payload = labels[:-2] or labels[:1]
        yield "labels", b"".join(payload)
        if len(payload) > 1:
            # A domain may have three labels, and a counter stands behind its piece.
            yield "labels of three", b"".join(payload[:-1])
            yield "labels, first", payload[0]
            yield "labels without counters", b"".join(label for label in payload if len(label) > 3)
        yield "label, longest", max(payload, key=len)
        # Only labels with a number: the others are the domain's.
        bare = [_INDEX.subn(b"", label, count=1) for label in payload]
        yield "labels without index", b"".join(label for label, changes in bare if changes)
    elif part == "url":
        path, _, query = data.partition(b"?")
        segments = [segment for segment in path.split(b"/") if segment]
        if segments:
            yield "path", unquote_to_bytes(segments[-1])
        yield from _parameters(query)
    elif part in {"header", "headers"}:
        for line in data.splitlines():
            name, _, value = line.partition(b":")
            field = f"header {name.lower()[:64]!r}"
            yield field, value.strip()
            for attribute in re.split(rb"[;,]", value)[:MAX_FIELDS]:
                key, sign, piece = attribute.strip().partition(b"=")
                if sign:
                    yield f"{field} {key[:64]!r}", piece.strip(b'"')
    elif len(data) <= MAX_JOINED:
        if data.lstrip()[:1] in {b"{", b"["}:
            with suppress(ValueError, RecursionError):
                yield from _strings(json.loads(data), "json", 0)
        elif b"=" in data and b"\n" not in data.strip():
            yield from _parameters(data)


def _parameters(query: bytes) -> Iterator[tuple[str, bytes]]:
    for parameter in query.split(b"&")[:MAX_FIELDS]:
        name, sign, value = parameter.partition(b"=")
        piece = unquote_to_bytes((value if sign else name).replace(b"+", b" "))
        if sign:
            yield f"parameter {name[:64]!r}", piece
        if len(piece) > 2:  # shorter ones count or switch
            yield "parameters", piece


def _strings(value: object, name: str, depth: int) -> Iterator[tuple[str, bytes]]:
    if isinstance(value, str):
        piece = value.encode(errors="replace")
        yield name, piece
        if len(piece) > 2:
            yield "json strings", piece
    elif isinstance(value, dict) and depth < 8:
        for key, inner in value.items():
            yield from _strings(inner, f"{name}.{key[:64]}", depth + 1)
    elif isinstance(value, list) and depth < 8:
        for inner in value:
            yield from _strings(inner, name, depth + 1)
