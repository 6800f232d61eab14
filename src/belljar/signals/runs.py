"""Base64, base32 and hex, in one piece or cut."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from belljar.signals.decoders import ENCODED, IS_ENCODED, MIN_RUN, ROT13, SMALL, Decoded

# Between two pieces of one encoded value: a line's end with its indent or quotes.
MAX_GAP: Final = 8
MIN_BASE32: Final = 16  # Ten bytes; shorter ones are words in capitals.
MIN_HEX: Final = 20  # Ten bytes; shorter ones are numbers and colours.
# RFC 4648, 5, as RFC 4648, 4: one decoder does for both.
_URLSAFE: Final = bytes.maketrans(b"-_", b"+/")
# Both cases in one run: tools write either, and none is lost by taking both.
_HEX_RUN: Final = re.compile(rb"[0-9a-fA-F]{%d,}" % MIN_HEX)
# One case at a time: in mixed case it is base64, or words.
_BASE32_RUN: Final = re.compile(rb"[A-Z2-7]{%d,}|[a-z2-7]{%d,}" % (MIN_BASE32, MIN_BASE32))


class Run(NamedTuple):
    text: bytes
    start: int
    end: int
    split: bool = False


def runs(data: bytes) -> Iterator[Run]:
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
    end = sum(pieces[-1])
    rest = _REST.match(data, end)
    if rest and b"\n" in data[end : rest.start(1)]:
        pieces = [*pieces, (rest.start(1), len(rest[1]))]
    text = b"".join(data[start : start + length] for start, length in pieces)
    return Run(text, pieces[0][0], sum(pieces[-1]))


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
    """Yield groups with one short separator (`QU tJ`, `41:4b`)."""
    marks = data.translate(_PLAIN)
    for needle, pattern in _GROUPS:
        at = marks.find(needle)
        while at >= 0:
            found = pattern.match(data, at)
            end = found.end() if found else at + 1
            is_prose = end - at < 256 and _PROSE.fullmatch(data, at, end)
            if end - at >= MIN_RUN and not is_prose:
                yield Run(b"".join(_TOKEN.findall(data, at, end)), at, end, split=True)
            at = marks.find(needle, end)


def decode_run(run: Run) -> Iterator[Decoded]:
    """Decode a run: forwards, backwards, plain, rot13."""
    split = ("split",) if run.split else ()
    if len(run.text) < MIN_HEX and run.text.isdigit():
        return
    for names, text in (((), run.text), (("reversed",), run.text[::-1])):
        for more, readable in (((), text), (("rot13",), text.translate(ROT13))):
            if more and readable == text:  # digits alone
                continue
            for name, data, at in _decodings(readable):
                # Of one piece it is known which part was decoded: a name may stand before it.
                start = run.start + (0 if names or run.end - run.start > len(text) else at)
                yield Decoded((*split, *names, *more, name), data, start, run.end)
        # Backwards only small ones: each view costs as much as the first.
        if len(run.text) > SMALL:
            break


def _decodings(text: bytes) -> Iterator[tuple[str, bytes, int]]:
    for found in _HEX_RUN.finditer(text):
        for digits in (found[0], found[0][1:]):
            yield "hex", bytes.fromhex(digits[: len(digits) & ~1].decode()), found.start()
    if text.isdigit():  # so much of base32 or base64 has letters, too
        return
    for found in _BASE32_RUN.finditer(text):
        # A run may begin with other text, so each alignment of a group is tried.
        for skip in range(8):
            yield "base32", _base32(found[0][skip:]), found.start()
    at = 0
    for piece in text.translate(_URLSAFE).split(b"="):
        for skip in range(4) if len(piece) >= MIN_RUN else ():
            # Of a last group of one character no byte is known
            whole = piece[skip : len(piece) - ((len(piece) - skip) % 4 == 1)]
            yield "base64", binascii.a2b_base64(whole + b"=" * (-len(whole) % 4)), at
        at += len(piece) + 1


# To the digits of `int(…, 32)`: the standard library's decoder wants whole groups, in capitals.
_BASE32_VALUES: Final = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567abcdefghijklmnopqrstuvwxyz",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUV0123456789ABCDEFGHIJKLMNOP",
)


def _base32(text: bytes) -> bytes:
    """Decode in pieces: `int`'s cost is square."""
    digits = text.translate(_BASE32_VALUES)[: len(text) // 8 * 8 + _WHOLE[len(text) % 8]]
    out = bytearray()
    for at in range(0, len(digits), 512):
        piece = digits[at : at + 512]
        bits = len(piece) * 5
        out += (int(piece, 32) >> (bits % 8)).to_bytes(bits // 8)
    return bytes(out)


# How many of so many last characters of base32 make whole bytes.
_WHOLE: Final = (0, 0, 2, 2, 4, 5, 5, 7)
