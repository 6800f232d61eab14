"""Detectors of credentials and personal data, excluding documented examples."""

from __future__ import annotations

import binascii
import hashlib
import math
import re
import tomllib
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import dataclass

Check = Callable[[bytes], bool]

MIN_ENTROPY: Final = 3.2  # Bits a character of a secret in context; English words have less.

_LOOKS_A_TICK: Final = 64  # A text of literals alone takes seconds a mebibyte.
_RULES: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_EXAMPLES: Final = _RULES["examples"]


@dataclass(frozen=True, slots=True)
class Detector:
    """Group 1 of `pattern`, if any, is the value."""

    cls: str
    literals: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    check: Check | None = None
    before: int = 0
    within: int = 20_000

    def matches(self, data: bytes, tick: Callable[[], None]) -> Iterator[re.Match[bytes]]:
        """Search around literals for speed; `tick` raises on timeout."""
        if not self.literals:
            yield from self.pattern.finditer(data)
            return
        look = _near(self.pattern, self.before) if self.before else self.pattern
        for text in self.literals:
            last, at, looks = 0, data.find(text), 0
            while at >= 0:
                looks += 1
                if not looks % _LOOKS_A_TICK:
                    tick()
                found = look.match(data, max(last, at - self.before), at + self.within)
                if found:
                    last = found.end()
                    yield found
                at = data.find(text, max(last, at + 1))


@cache
def _near(pattern: re.Pattern[bytes], before: int) -> re.Pattern[bytes]:
    text = pattern.pattern.removeprefix(b"(?i)")
    body = text if pattern.groups else b"(" + text + b")"
    return re.compile(rb"[\s\S]{0,%d}?(?:%s)" % (before, body), pattern.flags)


def entropy(text: bytes) -> float:
    """Return Shannon's entropy in bits per byte."""
    counts = Counter(text).values()
    return -sum((n / len(text) * math.log2(n / len(text)) for n in counts), 0.0) + 0.0


def _any_of(name: str, flags: str = "") -> re.Pattern[bytes]:
    return re.compile((flags + "|".join(_RULES["shapes"][name])).encode())


_PLACEHOLDER: Final = _any_of("placeholder", "(?i)")
_CODE: Final = _any_of("code")
_NOBODY: Final = _any_of("nobody", "(?i)")
_CARD: Final = _any_of("card_numbers")


def _is_real(text: bytes) -> bool:
    return not _PLACEHOLDER.search(text) and entropy(text) >= 2.5


def _is_secret(text: bytes) -> bool:
    kinds = sum(
        any(low <= byte <= high for byte in text) for low, high in ((48, 57), (65, 90), (97, 122))
    )
    return kinds >= 2 and _is_real(text) and entropy(text) >= MIN_ENTROPY and not _CODE.search(text)


def _is_jwt(text: bytes) -> bool:
    parts = [part.translate(_URLSAFE) + b"=" * (-len(part) % 4) for part in text.split(b".")]
    try:
        header, claims = (binascii.a2b_base64(part) for part in parts[:2])
    except binascii.Error:
        return False
    return b'"alg"' in header and b"1234567890" not in claims


_URLSAFE: Final = bytes.maketrans(b"-_", b"+/")  # RFC 4648, 5: the other alphabet of base64.


_OWN_GROUPS: Final = ([4, 6, 5], [4, 6, 4])  # Of American Express and Diners Club.
MAX_GROUP: Final = 5  # Longer groups of digits are tables' columns.


def is_card(text: bytes) -> bool:
    number = bytes(byte for byte in text if 48 <= byte <= 57)
    digits = number.decode()
    sizes = [len(group) for group in re.split(rb"[ -]", text)]
    is_grouped = len(sizes) == 1 or sizes in _OWN_GROUPS
    is_grouped |= len(set(sizes[:-1])) == 1 and sizes[-1] <= sizes[0] <= MAX_GROUP
    total = sum(map(int, digits[-1::-2]))  # Luhn's
    total += sum(sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (
        13 <= len(digits) <= 19
        and digits not in _EXAMPLES["cards"].split()
        # Luhn's digit fits runs such as 4444 4444 4444 4448, which are fillers.
        and len(set(digits)) > 3
        and _CARD.fullmatch(number) is not None
        and is_grouped
        and total % 10 == 0
    )


def is_iban(text: bytes) -> bool:
    compact = re.sub(rb"[^A-Za-z0-9]", b"", text).decode().upper()
    if compact in _EXAMPLES["ibans"].split():
        return False
    digits = "".join(str(int(character, 36)) for character in compact[4:] + compact[:4])
    return int(digits) % 97 == 1


# BIP-39's English list: its words have three to eight letters.
_WORDS: Final = Path(__file__).with_name("bip39.txt").read_bytes().split()
_NUMBERS: Final = {word: number for number, word in enumerate(_WORDS)}
# Letters are made lower, and whatever else stands between words a space.
_LETTERS: Final = bytes(byte | 32 if bytes((byte,)).isalpha() else 32 for byte in range(256))
_ROW: Final = re.compile(rb" (?:[a-z]{3,8}+ {1,6}+){12,}+")


def seed_phrases(data: bytes, tick: Callable[[], None]) -> Iterator[tuple[int, int]]:
    """Yield each wallet's phrase with a right checksum."""
    text = b" %s " % data.translate(_LETTERS)
    for row in _ROW.finditer(text):
        starts, numbers, done = array("I"), array("h"), 0
        for word in re.finditer(rb"[a-z]+", row[0]):
            starts.append(row.start() + word.start())
            numbers.append(_NUMBERS.get(word[0], -1))
        for at in range(len(numbers) - 11):
            if at < done or -1 in numbers[at : at + 12]:
                continue
            tick()
            for size in range(min(24, (len(numbers) - at) // 3 * 3), 11, -3):
                start, stop = starts[at] - 1, text.index(b" ", starts[at + size - 1]) - 1
                if _is_phrase(numbers[at : at + size], data[start:stop]):
                    yield start, stop
                    done = at + size
                    break


def _is_phrase(numbers: Sequence[int], text: bytes) -> bool:
    count, bits = len(numbers), 0
    if min(numbers) < 0 or list(numbers) == sorted(numbers):  # a list of words is in order
        return False
    marks = re.findall(rb"[^A-Za-z]+", text.translate(None, b"0123456789 \t\r\n"))
    # A filler says the same again, and sentences have a point somewhere.
    if len({*numbers}) < count - 2 or (marks and (len(marks) < count - 1 or len({*marks}) > 1)):
        return False
    for number in numbers:
        bits = bits << 11 | number
    entropy, check = divmod(bits, 1 << count // 3)
    digest = hashlib.sha256(entropy.to_bytes(count // 3 * 4)).digest()
    return digest[0] >> 8 - count // 3 == check


CHECKS: Final[Mapping[str, Check]] = {
    "secret": _is_secret,
    "jwt": _is_jwt,
    "card": is_card,
    "iban": is_iban,
    "person": lambda text: not _NOBODY.search(text),
}


def _detectors(rule: Mapping[str, Any]) -> Iterator[Detector]:
    """Yield a rule's detectors; `detectors.toml` describes its fields."""
    cls, check = rule["class"], CHECKS.get(rule.get("check", ""))
    for prefix in rule.get("prefixes", ()):
        text = f"(?<![A-Za-z0-9]){re.escape(prefix)}{''.join(rule['rest'])}(?![A-Za-z0-9])"
        pattern = re.compile(text.encode())
        yield Detector(cls, (prefix.encode(),), pattern, check or _is_real)
    if "pattern" in rule:
        pattern = re.compile("".join(rule["pattern"]).encode())
        literals = tuple(text.encode() for text in rule.get("literals", ()))
        bounds = {name: rule[name] for name in ("before", "within") if name in rule}
        yield Detector(cls, literals, pattern, check, **bounds)


_DETECTORS: Final = [
    (rule.get("asked", False), detector)
    for rule in (*_RULES["token"], *_RULES["pattern"])
    for detector in _detectors(rule)
]
WEAK: Final = frozenset({"secret", "url_password"})  # Where nothing more precise was found.


class Patterns:
    def __init__(self, asked: Collection[str]) -> None:
        self._detectors = [each for on_ask, each in _DETECTORS if not on_ask or each.cls in asked]

    def find(self, data: bytes, tick: Callable[[], None]) -> Iterator[tuple[int, int, str]]:
        taken: dict[tuple[int, int], str] = {}
        covered = bytearray()  # Made with the first find: most data has none.
        for detector in self._detectors:
            for found in detector.matches(data, tick):
                start, end = found.span(1) if found.re.groups else found.span()
                if detector.cls in WEAK and covered.find(1, start, end) >= 0:
                    continue
                again = taken.get((start, end)) == detector.cls
                if not again and (detector.check is None or detector.check(data[start:end])):
                    taken[start, end] = detector.cls
                    covered = covered or bytearray(len(data))
                    covered[start:end] = b"\1" * (end - start)
                    yield start, end, detector.cls
        yield from ((*place, "seed_phrase") for place in seed_phrases(data, tick))
