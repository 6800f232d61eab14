"""Finds credentials, personal data and seed phrases."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Final

from belljar.signals.detectors import CREDENTIALS, personal_detectors
from belljar.signals.prefilter import FROM_BYTES, Prefilter, literal

_SEED: Final = re.compile(
    rb"(?<![A-Za-z])(?:[A-Za-z]{3,8}+[^A-Za-z]{1,6}+)++(?:[A-Za-z]{3,8}(?![A-Za-z]))?"
)
_SEED_SHAPE: Final = rb"(?:[A-Za-z]{3,8}[^A-Za-z]{1,6}){11}[A-Za-z]{3}"
_WORD: Final = re.compile(rb"[A-Za-z]+")
_PHRASE: Final = "a phrase"
MIN_PHRASE: Final = 12 * 4 - 1
# From the first of eleven words to the third letter of the next.
MAX_WORDS: Final = 3 + 11 * (8 + 6)


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
        self._prefilter = Prefilter(
            literals | {_PHRASE: _SEED_SHAPE},
            places=frozenset({*literals, _PHRASE}),
            from_bytes=FROM_BYTES,
        )

    def prepare(self) -> None:
        """Compile the prefilter now."""
        self._prefilter.prepare()

    def find(self, data: bytes) -> Iterator[tuple[int, int, str]]:
        """Start, end, class."""
        held = self._prefilter.look(data)
        taken: dict[tuple[int, int], str] = {}
        covered = bytearray()
        for detector, names in self._detectors:
            if held is not None and names and names.isdisjoint(held):
                continue
            for found in detector.matches(data, held):
                start, end = found.span(1) if found.re.groups else found.span()
                if detector.cls in WEAK and covered.find(1, start, end) >= 0:
                    continue
                again = taken.get((start, end)) == detector.cls
                if not again and (detector.check is None or detector.check(data[start:end])):
                    taken[start, end] = detector.cls
                    covered = covered or bytearray(len(data))
                    covered[start:end] = b"\1" * (end - start)
                    yield start, end, detector.cls
        if len(data) >= MIN_PHRASE and (
            held is None or _may_be_phrase(data, held.get(_PHRASE, ()))
        ):
            for found in _SEED.finditer(data):
                if found.end() - found.start() >= MIN_PHRASE:
                    yield from _phrases(data, *found.span())


# Named only where nothing more precise was found.
WEAK: Final = frozenset({"secret", "url_password"})


def _may_be_phrase(data: bytes, ends: Iterable[int]) -> bool:
    """Whether twelve listed words end there."""
    known, skip_to = _word_numbers(), 0
    for end in ends:
        if end < skip_to:
            continue
        word = _WORD.match(data, end - 3)
        if word is None or word[0].lower().decode() not in known:
            skip_to = end + MIN_PHRASE
            continue
        words = _WORD.findall(data, max(0, end - MAX_WORDS), word.end())[-12:]
        if all(word.lower().decode() in known for word in words[1:]):
            return True
    return False


def _phrases(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, str]]:
    """BIP-39 phrases with a right checksum."""
    known = _word_numbers()
    numbers = [
        known.get(word.decode(), -1) for word in re.findall(rb"[a-z]+", data[start:end].lower())
    ]
    if "\x01" * 12 not in "".join("\0" if number < 0 else "\x01" for number in numbers):
        return
    words = [
        (found.start() + start, found.end() + start)
        for found in re.finditer(rb"[A-Za-z]+", data[start:end])
    ]
    at = 0
    while at + 12 <= len(numbers):
        if -1 in numbers[at : at + 12]:
            at += 12 - numbers[at : at + 12][::-1].index(-1)
            continue
        for count in (24, 21, 18, 15, 12):
            chosen = numbers[at : at + count]
            if len(set(chosen)) < count - 2 or len(chosen) != count or -1 in chosen:
                continue
            if _is_listed(data, words[at : at + count]) and _checksum_holds(chosen):
                yield words[at][0], words[at + count - 1][1], "seed_phrase"
                at += count - 1
                break
        at += 1


def _is_listed(data: bytes, words: list[tuple[int, int]]) -> bool:
    """Whether words have one separator; sentences have several."""
    between = [data[a[1] : b[0]].translate(None, b"0123456789 \t\r\n") for a, b in pairwise(words)]
    marks = [mark for mark in between if mark]
    return len(set(marks)) <= 1 and (not marks or len(marks) * 2 > len(between))


def _checksum_holds(numbers: list[int]) -> bool:
    bits = 0
    for number in numbers:
        bits = bits << 11 | number
    check_bits = len(numbers) // 3
    entropy_bytes = (bits >> check_bits).to_bytes(check_bits * 4)
    return hashlib.sha256(entropy_bytes).digest()[0] >> (8 - check_bits) == bits & (
        (1 << check_bits) - 1
    )


@cache
def _word_numbers() -> dict[str, int]:
    """BIP-39's English list."""
    from mnemonic import Mnemonic

    return {word: number for number, word in enumerate(Mnemonic("english").wordlist)}
