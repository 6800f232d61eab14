"""Detectors of credentials and personal data, excluding documented examples."""

from __future__ import annotations

import binascii
import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
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
    return re.compile((flags + "|".join(_EXAMPLES[name])).encode())


_PLACEHOLDER: Final = _any_of("placeholder", "(?i)")
_CODE: Final = _any_of("code")
_NOBODY: Final = _any_of("nobody", "(?i)")


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


# Visa, Mastercard, American Express, Discover, JCB, Diners, UnionPay, with their lengths.
_CARD_PREFIX: Final = re.compile(
    r"4(?:.{12}|.{15}|.{18})|5[1-5].{14}|(?=.{16}\Z)2(?:22[1-9]|2[3-9]|[3-6]|7[01]|720).*"
    r"|3[47].{13}"
    r"|(?=.{16}\Z)(?:6(?:011|5|4[4-9]).*|35(?:2[89]|[3-8]).*)|3(?:0[0-5]|[689])(?:.{11,12}|.{13})"
    r"|62.{14,17}"
)
# How American Express and Diners Club print their numbers.
_OWN_GROUPS: Final = ([4, 6, 5], [4, 6, 4])
# Cards are written in groups of four, some in five; longer groups are tables' columns.
MAX_GROUP: Final = 5


def is_card(text: bytes) -> bool:
    digits = bytes(byte for byte in text if 48 <= byte <= 57).decode()
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
        and _CARD_PREFIX.fullmatch(digits) is not None
        and is_grouped
        and total % 10 == 0
    )


def is_iban(text: bytes) -> bool:
    compact = re.sub(rb"[^A-Za-z0-9]", b"", text).decode().upper()
    if compact in _EXAMPLES["ibans"].split():
        return False
    digits = "".join(str(int(character, 36)) for character in compact[4:] + compact[:4])
    return int(digits) % 97 == 1


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
# Named only where nothing more precise was found.
WEAK: Final = frozenset({"secret", "url_password"})


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
