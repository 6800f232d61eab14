"""Known values: one automaton over letters and digits in lower case.

One pass finds a value as it is, in other case, cut, backwards and by rot13.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import compress
from typing import Any, Final

import ahocorasick  # type: ignore[import-not-found] # a compiled module without stubs

from belljar.dataclass import dataclass
from belljar.signals.decoders import ROT13, normalised
from belljar.signals.values import KnownValue, ScanSpec

# Letters, digits and all beyond ASCII: what is left of a value that was split, quoted or
# reformatted.
_KEPT: Final = bytes(byte for byte in range(256) if byte > 127 or chr(byte).isalnum())
# The rest: punctuation, blanks and controls, which split or reformat a value and aren't part of it.
_DROPPED: Final = bytes(byte for byte in range(256) if byte not in _KEPT)
# ASCII alone: bytes beyond it are parts of characters, not letters.
_LOWER: Final = bytes(range(256)).lower()
# A table for `translate` and `compress`: they find each kept byte's place.
_IS_KEPT: Final = bytes(int(byte in _KEPT) for byte in range(256))
MIN_FOLDED: Final = 8  # A value with fewer letters and digits is looked for as it is, only.
MAX_SEPARATOR: Final = 16
# Different ones within one value that was cut, beside its own punctuation.
MAX_SEPARATORS: Final = 3
# Searched again at a slice's border: a value of 4,096 bytes, cut by separators.
OVERLAP: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Found:
    """A known value. `names`: what was undone."""

    value: KnownValue
    start: int
    end: int
    names: tuple[str, ...]
    text: bytes


@dataclass(frozen=True, slots=True)
class _Form:
    """A value as it is, backwards or by rot13.

    `inner`: without outer punctuation. `size`: folded.
    """

    value: KnownValue
    plain: bytes
    text: bytes
    names: tuple[str, ...]
    inner: bytes
    size: int


def fold(data: bytes) -> bytes:
    """Lower-case letters, digits and non-ASCII bytes."""
    return data.translate(_LOWER, _DROPPED)


class KnownValues:
    """Finds a spec's values. Raises MemoryError."""

    def __init__(self, spec: ScanSpec) -> None:
        self._folded = _Automaton()
        self._exact = _Automaton()
        for value in spec.values:
            for form in _forms(value):
                folded = fold(form.text)
                if len(folded) >= MIN_FOLDED:
                    self._folded.add(folded, form)
                else:
                    self._exact.add(form.text, form)
        self._folded.make()
        self._exact.make()

    def find(self, data: bytes, start: int, end: int) -> Iterator[Found]:
        """Values that end in `data[start:end]`."""
        begin = max(0, start - OVERLAP)
        piece = data[begin:end]
        if self._exact:
            for last, form in self._exact.matches(piece):
                at = begin + last + 1 - len(form.text)
                # A find that ends before `start` was reported with the slice before.
                if begin + last >= start:
                    yield Found(form.value, at, begin + last + 1, form.names, form.plain)
        if not self._folded:
            return
        places: array[int] | None = None
        for last, form in self._folded.matches(fold(piece)):
            if places is None:  # the offset of each kept byte
                places = array("I", compress(range(len(piece)), piece.translate(_IS_KEPT)))
            left = places[last + 1 - form.size]
            right = places[last] + 1
            if begin + right <= start:
                continue
            names = _how(form, piece[left:right])
            if names is None:
                continue
            if names == form.names:  # as it is: with the punctuation around it
                left -= form.text.find(form.inner)
                right = left + len(form.text)
            yield Found(form.value, begin + left, begin + right, names, form.plain)


def _forms(value: KnownValue) -> Iterator[_Form]:
    plain = value.text.encode(errors="surrogatepass")
    rotated, normal = plain.translate(ROT13), normalised(plain)
    read: list[tuple[bytes, tuple[str, ...]]] = [
        (plain, ()),
        (plain[::-1], ("reversed",)),
        (rotated, ("rot13",)),
        (rotated[::-1], ("reversed", "rot13")),
    ]
    if normal != plain:
        read.append((normal, ("unicode",)))
    for text, names in read:
        yield _Form(value, plain, text, names, text.strip(_DROPPED), len(fold(text)))


def _how(form: _Form, piece: bytes) -> tuple[str, ...] | None:
    """What was undone; None: other text of these letters."""
    inner = form.inner
    if piece == inner:
        return form.names
    same_case = not form.value.case_sensitive
    if piece.lower() == inner.lower():
        return form.names if same_case else (*form.names, "case")
    # The value's own punctuation is no separator, wherever it stands.
    own = b"".join(_gaps(inner))
    gaps = {gap.translate(None, own) for gap in _gaps(piece)} - {b""}
    if len(gaps) > MAX_SEPARATORS or any(len(gap) > MAX_SEPARATOR for gap in gaps):
        return None
    if same_case or piece.translate(None, _DROPPED) == inner.translate(None, _DROPPED):
        return (*form.names, "split")
    return (*form.names, "split", "case")


def _gaps(piece: bytes) -> set[bytes]:
    marked = bytes(_MARK if byte in _KEPT else byte for byte in piece)
    return set(marked.split(bytes([_MARK]))) - {b""}


_MARK: Final = 0x80  # Stands for any kept byte; itself kept, so no separator.


class _Automaton:
    """Aho-Corasick over bytes, as characters of Latin-1."""

    def __init__(self) -> None:
        self._automaton: Any = ahocorasick.Automaton()
        self._forms: dict[bytes, list[_Form]] = {}

    def __bool__(self) -> bool:
        return bool(self._forms)

    def add(self, needle: bytes, form: _Form) -> None:
        self._forms.setdefault(needle, []).append(form)

    def make(self) -> None:
        for needle, forms in self._forms.items():
            # Latin-1 maps each byte to one character, so that offsets stay offsets of bytes.
            self._automaton.add_word(needle.decode("latin-1"), tuple(forms))
        if self._forms:
            self._automaton.make_automaton()

    def matches(self, data: bytes) -> Iterator[tuple[int, _Form]]:
        for last, forms in self._automaton.iter(data.decode("latin-1")):
            for form in forms:
                yield last, form
