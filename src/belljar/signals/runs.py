"""Base64, base32 and hex, in one piece or cut."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from belljar.dataclass import dataclass
from belljar.signals.decoders import ENCODED, IS_ENCODED, MIN_RUN, ROT13, SMALL, Decoded

# Between two pieces of one encoded value: a line's end with its indent or quotes.
MAX_GAP: Final = 8
# Ten bytes; shorter ones are words in capitals.
MIN_BASE32: Final = 16
# Ten bytes; shorter ones are numbers and colours.
MIN_HEX: Final = 20
# RFC 4648, 5, as RFC 4648, 4: one decoder does for both.
_URLSAFE: Final = bytes.maketrans(b"-_", b"+/")
# Both cases in one run: tools write either, and none is lost by taking both.
_HEX_RUN: Final = re.compile(rb"[0-9a-fA-F]{%d,}" % MIN_HEX)
# One case at a time: in mixed case it is base64, or words.
_BASE32_RUN: Final = re.compile(rb"[A-Z2-7]{%d,}|[a-z2-7]{%d,}" % (MIN_BASE32, MIN_BASE32))


@dataclass(frozen=True, slots=True)
class Run:
    """Encoded text from pieces: (offset outside, length) each."""

    text: bytes
    pieces: tuple[tuple[int, int], ...]
    split: bool = False

    def locate(self, start: int, end: int) -> tuple[int, int]:
        """Offsets in `text` as offsets outside."""
        if len(self.pieces) == 1:
            return self.pieces[0][0] + start, self.pieces[0][0] + end
        return self._outside(start), self._outside(max(start, end - 1)) + 1

    def _outside(self, offset: int) -> int:
        for place, length in self.pieces:
            if offset < length:
                return place + offset
            offset -= length
        place, length = self.pieces[-1]
        return place + length


def runs(data: bytes) -> Iterator[Run]:
    """Possibly encoded data, also across small gaps and in groups."""
    marks = data.translate(IS_ENCODED)
    pieces: list[tuple[int, int]] = []
    at, needle = marks.find(b"a" * MIN_RUN), b"a" * MIN_RUN
    while at >= 0:
        end = marks.find(b" ", at)
        end = len(marks) if end < 0 else end
        if pieces and at - sum(pieces[-1]) > MAX_GAP:
            yield _joined(data, pieces)
            pieces = []
        pieces.append((at, end - at))
        at = marks.find(needle, end)
    if pieces:
        yield _joined(data, pieces)
    yield from _groups(data)


# A last line is shorter than a run, and would be lost with the value's end.
_REST: Final = re.compile(
    rb"[^A-Za-z0-9+/_=-]{1,%d}([A-Za-z0-9+/_=-]{1,%d})" % (MAX_GAP, MIN_RUN - 1)
)


def _joined(data: bytes, pieces: list[tuple[int, int]]) -> Run:
    """Return the run of these pieces, with a short last line."""
    end = sum(pieces[-1])
    rest = _REST.match(data, end)
    if rest and b"\n" in data[end : rest.start(1)]:
        pieces = [*pieces, (rest.start(1), len(rest[1]))]
    return Run(b"".join(data[start : start + length] for start, length in pieces), tuple(pieces))


# Characters of a group, and how many groups must follow each other, with one character between
# them: single characters, hex pairs, base64's groups of four and short lines.
_SIZES: Final = {1: 7, 2: 5, 3: 4, 4: 4}
# The marks to look for, and what is read from there on.
_GROUPS: Final = [
    (
        (b"a" * size + b" ") * times,
        re.compile(
            rb"[A-Za-z0-9+/=]{%d}([^A-Za-z0-9+/=]{1,8})(?:[A-Za-z0-9+/=]{%d,%d}(?:\1|[\r\n]+)){2,}"
            rb"[A-Za-z0-9+/=]{0,%d}" % (size, max(1, size - 1), size, size)
        ),
    )
    for size, times in _SIZES.items()
]
# As `IS_ENCODED`, but `-` and `_` stand between groups.
_PLAIN: Final = bytes(97 if byte in ENCODED and byte not in b"-_" else 32 for byte in range(256))
_TOKEN: Final = re.compile(rb"[A-Za-z0-9+/=]+")
# Short words look like groups: those in one case, or with a capital first, are prose.
_PROSE: Final = re.compile(
    rb"(?=[A-Za-z]{2})(?:(?:[A-Z]?[a-z]+|[A-Z]+)[^A-Za-z0-9+/=]+)*(?:[A-Z]?[a-z]+|[A-Z]+)?"
)


def _groups(data: bytes) -> Iterator[Run]:
    """Groups with one short separator (`QU tJ`, `41:4b`)."""
    marks = data.translate(_PLAIN)
    for needle, pattern in _GROUPS:
        at = marks.find(needle)
        while at >= 0:
            found = pattern.match(data, at)
            end = found.end() if found else at + 1
            is_prose = end - at < 256 and _PROSE.fullmatch(data, at, end)
            if end - at >= MIN_RUN and not is_prose:
                words = list(_TOKEN.finditer(data, at, end))
                pieces = tuple((word.start(), len(word[0])) for word in words)
                yield Run(b"".join(word[0] for word in words), pieces, split=True)
            at = marks.find(needle, end)


def decode_run(run: Run) -> Iterator[Decoded]:
    """Decode a run: forwards, backwards, plain, rot13."""
    split = ("split",) if run.split else ()
    size = len(run.text)
    if size < MIN_HEX and run.text.isdigit():
        return
    start, end = run.locate(0, size)
    for names, text in (((), run.text), (("reversed",), run.text[::-1])):
        for more, readable in (((), text), (("rot13",), text.translate(ROT13))):
            if more and readable == text:  # digits alone
                continue
            for name, data, place, per in _decodings(readable):
                locate = partial(_within, run, place, per, -1 if names else 1)
                yield Decoded((*split, *names, *more, name), data, start, end, locate)
        # Backwards only small ones: each view costs as much as the first.
        if size > SMALL:
            break


def _within(run: Run, place: int, per: float, step: int, start: int, end: int) -> tuple[int, int]:
    """Return enclosing decoded offsets, with padding. `step` -1: backwards."""
    text = run.text[::step]
    size = len(text)
    left, right = min(size, place + int(start * per)), min(size, place + int(end * per + 0.999))
    while text[right : right + 1] == b"=":
        right += 1
    return run.locate(*((size - right, size - left) if step < 0 else (left, right)))


def _decodings(text: bytes) -> Iterator[tuple[str, bytes, int, float]]:
    """Name, decoded bytes, their offset, characters a byte."""
    for found in _HEX_RUN.finditer(text):
        for skip in (0, 1):
            digits = found[0][skip:]
            yield "hex", bytes.fromhex(digits[: len(digits) & ~1].decode()), found.start() + skip, 2
    if text.isdigit():  # so much of base32 or base64 has letters, too
        return
    for found in _BASE32_RUN.finditer(text):
        # A run may begin with other text, so each alignment of a group is tried.
        for skip in range(8):
            yield "base32", _base32(found[0][skip:]), found.start() + skip, 8 / 5
    at = 0
    for piece in text.translate(_URLSAFE).split(b"="):
        if len(piece) >= MIN_RUN:
            for skip in range(4):
                # Of a last group of one character no byte is known
                whole = piece[skip : len(piece) - ((len(piece) - skip) % 4 == 1)]
                decoded = binascii.a2b_base64(whole + b"=" * (-len(whole) % 4))
                yield "base64", decoded, at + skip, 4 / 3
        at += len(piece) + 1


# To the digits of `int(…, 32)`: the standard library's decoder wants whole groups, in capitals.
_BASE32_VALUES: Final = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567abcdefghijklmnopqrstuvwxyz",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUV0123456789ABCDEFGHIJKLMNOP",
)


def _base32(text: bytes) -> bytes:
    """Decoded in pieces: `int`'s cost is square."""
    digits = text.translate(_BASE32_VALUES)[: len(text) // 8 * 8 + _WHOLE[len(text) % 8]]
    out = bytearray()
    for at in range(0, len(digits), 512):
        piece = digits[at : at + 512]
        bits = len(piece) * 5
        out += (int(piece, 32) >> (bits % 8)).to_bytes(bits // 8)
    return bytes(out)


# How many of so many last characters of base32 make whole bytes.
_WHOLE: Final = (0, 0, 2, 2, 4, 5, 5, 7)
