"""Decoders of what data may hold. Pure."""

from __future__ import annotations

import codecs
import html
import re
import string
import unicodedata
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

from belljar.dataclass import dataclass
from belljar.signals.values import MIN_VALUE_BYTES

Locate = Callable[[int, int], tuple[int, int]]

MIN_RUN: Final = 14  # Base64 of the shortest known value (10 bytes).
WINDOW: Final = 4096  # Context on both sides of an escape: the longest known value.
SMALL: Final = 64 << 10  # Larger data isn't searched for what takes several passes.


@dataclass(frozen=True, slots=True)
class Decoded:
    names: tuple[str, ...]
    data: bytes
    start: int
    end: int
    locate: Locate | None = None  # Maps offsets in `data` outwards; None: to `start:end`.
    whole: bool = True  # No bound was hit.
    reader: zlib._Decompress | None = None  # Of compressed data that goes on.


_LETTERS: Final = string.ascii_letters.encode()
# Base64's alphabets, both of RFC 4648, with padding; hex and base32 are within them.
ENCODED: Final = _LETTERS + b"0123456789+/_-="
# A table for `translate`: `a` for each of them, so that a run is found as a run of `a`.
IS_ENCODED: Final = bytes(97 if byte in ENCODED else 32 for byte in range(256))
ROT13: Final = bytes.maketrans(_LETTERS, codecs.encode(string.ascii_letters, "rot13").encode())


# One character of UTF-8 beyond ASCII.
_WIDE: Final = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
)
# Escapes that name a number, which may be a character or a byte.
_CODE: Final = re.compile(
    rb"&#(?:[xX]([0-9A-Fa-f]{1,6})|([0-9]{1,7}));?|\\u\{?([0-9A-Fa-f]{1,6})\}?"
)
# C0 without tab, line feed and return, DEL, and C1.
_CONTROLS: Final = frozenset((*range(9), 11, 12, *range(14, 32), *range(127, 160)))


def _code(found: re.Match[bytes]) -> int:
    if not (parts := _CODE.fullmatch(found[0])):
        return -1
    return int(parts[2]) if parts[2] else int(parts[1] or parts[3], 16)


def _of_hex(found: re.Match[bytes]) -> bytes:
    return bytes.fromhex(found[1].decode()) if found[1] else b""


def _of_backslash(found: re.Match[bytes]) -> bytes:
    body = found[1]
    if body[:1] in b"uU":
        code = int(body[1:].strip(b"{}"), 16)
        return chr(code).encode(errors="surrogatepass") if code < 0x110000 else b"?"
    if body[:1] == b"x":
        return bytes.fromhex(body[1:].decode())
    if body.isdigit():
        return bytes([int(body, 8) & 255])
    return _CHARACTERS.get(body, body)


# Any other character behind a backslash stands for itself. A line's end is a continuation.
_CHARACTERS: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f"}
_CHARACTERS.update({b"\n": b"", b"\r\n": b""})


class Escape(NamedTuple):
    name: str
    mark: bytes
    pattern: re.Pattern[bytes]
    undo: Callable[[re.Match[bytes]], bytes]


ESCAPES: Final = (
    Escape("url", b"%", re.compile(rb"%([0-9A-Fa-f]{2})"), _of_hex),
    Escape(
        "html",
        b"&",
        re.compile(rb"&(#[0-9]{1,7};?|#[xX][0-9A-Fa-f]{1,6};?|[A-Za-z][A-Za-z0-9]{1,30};)"),
        lambda found: html.unescape(found[0].decode()).encode(errors="replace"),
    ),
    Escape(
        "escape",
        b"\\",
        re.compile(
            rb"\\(u\{[0-9A-Fa-f]{1,6}\}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|x[0-9A-Fa-f]{2}|[0-7]{3}"
            rb"|\r?\n|[^uUx0-9\n])"
        ),
        _of_backslash,
    ),
    Escape("quoted-printable", b"=", re.compile(rb"=(?:([0-9A-F]{2})|[ \t]*\r?\n)"), _of_hex),
    Escape("hex", b"0x", re.compile(rb"0x([0-9A-Fa-f]{2})(?![0-9A-Fa-f])[,; \r\n\t]*"), _of_hex),
)


# Tables for `translate`: 1 for a byte of text, so that a run of text is found by its ones.
_IS_TEXT: Final = bytes(int(byte in b"\t\r\n" or 32 <= byte < 127) for byte in range(256))
_IS_WIDE_TEXT: Final = bytes(int(byte in b"\t\r\n" or (32 <= byte != 127)) for byte in range(256))


def escapes(data: bytes) -> Iterator[Decoded]:
    wide = _is_text(data)
    text = data.translate(_IS_WIDE_TEXT if wide else _IS_TEXT)
    unicode = Escape("unicode", b"", _WIDE, lambda found: _ascii(found[0]))
    for escape in (*ESCAPES, *((unicode,) if wide else ())):
        if escape.mark not in data:
            continue
        at = text.find(_TEXT_RUN)
        while at >= 0:
            end = text.find(b"\0", at)
            end = len(text) if end < 0 else end
            window: list[re.Match[bytes]] = []
            for found in escape.pattern.finditer(data, at, end):
                if window and found.start() - window[-1].end() >= WINDOW:
                    yield _unescaped(escape, data, window, at, end)
                    window = []
                window.append(found)
            if window:
                yield _unescaped(escape, data, window, at, end)
            at = text.find(_TEXT_RUN, end)


_TEXT_RUN: Final = b"\1" * MIN_VALUE_BYTES  # An escape only makes a value longer.


def _unescaped(
    escape: Escape, data: bytes, window: list[re.Match[bytes]], start: int, end: int
) -> Decoded:
    start = max(start, window[0].start() - WINDOW)
    end = min(end, window[-1].end() + WINDOW)
    out: list[bytes] = []
    inner: list[int] = []  # where each decoded text begins inside
    marks: list[tuple[int, int, int]] = []  # its size; its escape's beginning and end outside
    at, inside = start, 0
    # Control characters are in no text: then each code stands for a byte of binary data.
    octets = any(_code(found) in _CONTROLS for found in window)
    for found in window:
        is_byte = octets and 0 <= _code(found) < 256
        text = bytes([_code(found)]) if is_byte else escape.undo(found)
        inside += found.start() - at
        inner.append(inside)
        marks.append((len(text), found.start(), found.end()))
        out += (data[at : found.start()], text)
        inside += len(text)
        at = found.end()
    out.append(data[at:end])

    def outside(offset: int) -> tuple[int, int]:
        index = bisect_right(inner, offset) - 1
        if index < 0:
            return start + offset, start + offset + 1
        size, left, right = marks[index]
        over = offset - inner[index] - size
        return (left, right) if over < 0 else (right + over, right + over + 1)

    def locate(left: int, right: int) -> tuple[int, int]:
        return outside(left)[0], outside(max(left, right - 1))[1]

    return Decoded((escape.name,), b"".join(out), start, end, locate)


# RFC 1952, RFC 1950 with the usual window, RFC 8878, and a zip's local header.
MAGIC: Final[tuple[tuple[str, bytes], ...]] = (
    ("gzip", b"\x1f\x8b\x08"),
    *(("zlib", b"\x78" + level) for level in (b"\x9c", b"\x01", b"\xda", b"\x5e")),
    ("zstd", b"\x28\xb5\x2f\xfd"),
    ("zip", b"PK\x03\x04"),
)
CHUNK: Final = 64 << 10  # A small file may expand a thousandfold.


def compressed(data: bytes, allowed: Callable[[], int]) -> Iterator[Decoded]:
    """Expand every compressed member, as far as `allowed`."""
    for name, magic in MAGIC:
        at = data.find(magic)
        while at >= 0:
            following = at + 2
            if (found := _expanded(name, data, at, allowed())) is not None:
                yield found
                # Where a frame of zstd ends isn't known: it is looked for within it, too.
                following = following if name == "zstd" else max(found.end, following)
            at = data.find(magic, following)
    if found := deflated(data, allowed()):
        yield found


def deflated(data: bytes, most: int) -> Decoded | None:
    """Return whole raw deflate data, which has no mark."""
    if not data or _PRINTABLE_START.match(data):
        return None
    return _inflated("deflate", data, 0, 0, -15, most)


# Eight bytes of ASCII are taken for text: raw deflate hardly begins so.
_PRINTABLE_START: Final = re.compile(rb"[\t\r\n -~]{8}")


def _expanded(name: str, data: bytes, at: int, most: int) -> Decoded | None:
    if name == "zstd":
        return _zstd(data, at, most)
    if name == "zip":
        # Only method 8, deflate: a stored member stands there as it is.
        if data[at + 8 : at + 10] != b"\x08\x00":
            return None
        # The local header has 30 bytes, whose last four are the lengths of name and extra field.
        lengths = (data[at + 26 : at + 28], data[at + 28 : at + 30])
        skip = 30 + sum(int.from_bytes(length, "little") for length in lengths)
        return _inflated(name, data, at, skip, -15, most)
    return _inflated(name, data, at, 0, 31 if name == "gzip" else 15, most)


def _inflated(name: str, data: bytes, at: int, skip: int, window: int, most: int) -> Decoded | None:
    reader, out, begin = zlib.decompressobj(window), bytearray(), at + skip
    feed = memoryview(data)[begin : begin + CHUNK]
    used = begin
    try:
        while feed and not reader.eof and len(out) <= most:
            out += reader.decompress(bytes(feed), min(CHUNK << 4, most + 1 - len(out)))
            if reader.unconsumed_tail:
                feed = memoryview(reader.unconsumed_tail)
                continue
            used += CHUNK
            feed = memoryview(data)[used : used + CHUNK]
    except zlib.error:
        if len(out) < MIN_RUN:
            return None
        used = -1  # what follows isn't its rest
    if not out or (name == "deflate" and not reader.eof):
        return None
    end = min(len(data), used) - len(reader.unused_data) if reader.eof else len(data)
    is_open = not reader.eof and used >= len(data) and not reader.unconsumed_tail
    kept, end = bytes(out[:most]), max(at + 1, end)
    unfinished = reader if is_open else None
    return Decoded((name,), kept, at, end, whole=len(out) <= most, reader=unfinished)


def _zstd(data: bytes, at: int, most: int) -> Decoded | None:
    import zstandard  # where it is needed: few scans meet any

    # A frame may ask for gigabytes of window; tools write 8 MiB at most unless they are told.
    reader = zstandard.ZstdDecompressor(max_window_size=8 << 20).stream_reader(
        memoryview(data)[at:]
    )
    out = bytearray()
    with suppress(zstandard.ZstdError):  # what came out before the damage is searched
        while len(out) <= most and (part := reader.read(min(CHUNK << 2, most + 1 - len(out)))):
            out += part
    whole = len(out) <= most
    return Decoded(("zstd",), bytes(out[:most]), at, len(data), whole=whole) if out else None


def is_plain(data: bytes) -> bool:
    return not data.translate(None, _TEXT)


# Deleted by `translate`: what is left is no plain text.
_TEXT: Final = bytes(byte for byte in range(256) if _IS_TEXT[byte])


def promising(data: bytes) -> bool:
    odd = len(data) - data.translate(_IS_TEXT).count(1)
    if odd * 8 < len(data) or b"a" * MIN_RUN in data.translate(IS_ENCODED):
        return True
    if _ZLIB.search(data, 0, WINDOW) or _STARTS.search(data):
        return True
    try:
        return data.decode().isprintable()
    except UnicodeDecodeError:
        return False


# Two bytes, which any longer data has somewhere by chance: looked for near the beginning only.
_ZLIB: Final = re.compile(b"|".join(re.escape(magic) for name, magic in MAGIC if name == "zlib"))
# Three or four bytes: rare enough to be looked for anywhere.
_STARTS: Final = re.compile(b"|".join(re.escape(magic) for name, magic in MAGIC if name != "zlib"))


# Mostly Cyrillic, Greek and phonetic letters, which NFKD doesn't make Latin ones.
_CONFUSABLES: Final = str.maketrans(
    "АВЕКМНОРСТХУаеорсухіјѕԁԛԝһӏΑΒΕΖΗΙΚΜΝΟΡΤΥΧαεικνορτυχⅼɑɡɩ",
    "ABEKMHOPCTXYaeopcyxijsdqwhlABEZHIKMNOPTYXaeiknoptuxlagi",
)


# Invisible tag characters: U+E0000 and the code of an ASCII character.
_TAGS: Final = {0xE0000 + code: chr(code) for code in range(32, 127)}


@cache
def _ascii(character: bytes) -> bytes:
    out = ""
    text = character.decode("utf-8", "replace").translate(_TAGS)
    for part in unicodedata.normalize("NFKD", text):
        category = unicodedata.category(part)
        if category in {"Mn", "Cf"}:
            continue
        out += {"Pd": "-", "Zs": " "}.get(category, part).translate(_CONFUSABLES)
    return out.encode("utf-8", "replace")


def normalised(text: bytes) -> bytes:
    return _WIDE.sub(lambda found: _ascii(found[0]), text)


def _is_text(data: bytes) -> bool:
    if data.isascii() or len(data) <= SMALL:
        return not data.isascii()  # else there are no look-alikes to undo
    try:
        data.decode()
    except UnicodeDecodeError as error:
        # A character that was cut at the end is no sign of binary data.
        return error.start >= len(data) - 3
    return True
