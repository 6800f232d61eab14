"""What a piece of data may hold that a decoder would find, told in one pass, so that only those
look that may find something. Each expression here matches wherever its decoder does, and perhaps
elsewhere.
"""

from __future__ import annotations

from typing import Final

from belljar.signals.decoders import MAGIC, REVERSED_MARK, ROT13_MARK, SMALL
from belljar.signals.prefilter import Held, Prefilter, literal
from belljar.signals.runs import GROUPS, GROUPS_OF_LARGE, group_name

FROM_BYTES: Final = 256 << 10
"""Compiling takes a quarter of a second."""
_INSIDE: Final = (rb"[A-Za-z0-9+/=]", rb"[A-Za-z0-9+/=_-]")
_OUTSIDE: Final = (rb"[^A-Za-z0-9+/=]", rb"[^A-Za-z0-9+/=_-]")


def _group(size: int, gap: int, times: int) -> bytes:
    urlsafe = gap < 0
    return rb"(?:%s{%d}%s{%d}){%d}" % (_INSIDE[urlsafe], size, _OUTSIDE[urlsafe], abs(gap), times)


_GROUPS: Final = {group_name(size, gap): _group(size, gap, times) for size, gap, times in GROUPS}
_MAGIC: Final = {magic.hex(): literal(magic) for _, magic in MAGIC}
_ESCAPES: Final = {
    "url": rb"%[0-9A-Fa-f]{2}",
    "html": rb"&(?:#[0-9]|#[xX][0-9A-Fa-f]|[A-Za-z][A-Za-z0-9]{1,30};)",
    "escape": rb"\\(?:u|U|x|[0-7]{3}|\r?\n|[^uUx0-9\n])",
    "quoted-printable": rb"=(?:[0-9A-F]{2}|[ \t]*\r?\n)",
    "hex": rb"0x[0-9A-Fa-f]{2}",
}
_OF_SMALL: Final = {
    "reversed": REVERSED_MARK.pattern.replace(rb"\Z", rb"\z"),
    "rot13": ROT13_MARK.pattern,
}
_LARGE_GROUPS: Final = {name: text for name, text in _GROUPS.items() if name in GROUPS_OF_LARGE}
_large = Prefilter(_LARGE_GROUPS | _MAGIC | _ESCAPES, places=frozenset((*_LARGE_GROUPS, *_MAGIC)))
_small = Prefilter(
    _GROUPS | _MAGIC | _ESCAPES | _OF_SMALL,
    places=frozenset((*_GROUPS, *_MAGIC)),
    from_bytes=FROM_BYTES,
)


def marks(data: bytes) -> Held:
    """What it may hold → where that ends; None: not known."""
    return (_small if len(data) <= SMALL else _large).look(data)


def prepare_marks() -> None:
    """Compile what `marks` uses, where it can be."""
    _small.prepare()
    _large.prepare()
