"""Patterns: credentials of well-known shapes, private keys, seed phrases, and, where asked for,
personal data with check digits. Examples that vendors document are no hits.
"""

from __future__ import annotations

import binascii
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Final

from belljar.dataclass import dataclass
from belljar.signals.prefilter import FROM_BYTES, Held, Prefilter, literal, places

Check = Callable[[bytes], bool]

MIN_ENTROPY: Final = 3.2
"""Bits a character of a secret in context; English words have less."""


@dataclass(frozen=True, slots=True)
class Detector:
    """A class, the literals one of which is in any match, its pattern (group 1, if there is one, is
    the value), and a check of what was found."""

    cls: str
    literals: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    check: Check | None = None
    before: int = 0
    within: int = 20_000

    def matches(self, data: bytes, held: Held) -> Iterator[re.Match[bytes]]:
        """Where literals are: a match begins at most `before` bytes earlier and ends `within` bytes
        later. Searching for literals is what a processor does fastest."""
        if not self.literals:
            yield from self.pattern.finditer(data)
            return
        look = _near(self.pattern, self.before) if self.before else self.pattern
        for text in self.literals:
            last = 0
            for at in places(data, text, held, text.decode()):
                found = (
                    look.match(data, max(last, at - self.before), at + self.within)
                    if at >= last
                    else None
                )
                if found:
                    last = found.end()
                    yield found


@cache
def _near(pattern: re.Pattern[bytes], before: int) -> re.Pattern[bytes]:
    """A pattern that begins so many bytes behind where it is matched, or fewer; group 1 is as in
    `Detector`."""
    text = pattern.pattern.removeprefix(b"(?i)")
    body = text if pattern.groups else b"(" + text + b")"
    return re.compile(rb"[\s\S]{0,%d}?(?:%s)" % (before, body), pattern.flags)


def entropy(text: bytes) -> float:
    """Bits a byte."""
    counts = Counter(text).values()
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts)


_PLACEHOLDER: Final = re.compile(
    rb"(?i)example|placeholder|changeme|your[_-]?|redacted|dummy|sample|xxxx|\*\*\*\*|\.\.\.\."
    rb"|<[a-z]|\$\{|\{\{|1234567890|abcdefgh|0000000"
)


def _is_real(text: bytes) -> bool:
    """Neither a placeholder nor an example of a document."""
    return not _PLACEHOLDER.search(text) and entropy(text) >= 2.5


def _is_secret(text: bytes) -> bool:
    """What stands behind `password=`: mixed and random enough, and no code."""
    kinds = sum(
        any(low <= byte <= high for byte in text) for low, high in ((48, 57), (65, 90), (97, 122))
    )
    return kinds >= 2 and _is_real(text) and entropy(text) >= MIN_ENTROPY and not _CODE.search(text)


_CODE: Final = re.compile(
    rb"[()\[\]{}]|^[a-z_.]+$|://|^[A-Za-z]+(?:[._-]+[A-Za-z]+)*$"
    rb"|^[a-z]+[0-9]{0,3}\.[a-z]+[0-9]{0,3}[a-z]*$|^\$[A-Za-z_]\w*$|^--?[A-Za-z]+(?:-[a-z]+)*$"
    rb"|^(?:/[A-Z]?[a-z._-]+[0-9]{0,2})+$|^[a-z0-9_+-]+(?:[./][a-z0-9_+-]+)*/[a-z0-9_+-]+\.[a-z]{1,"
    rb"4}$"
    rb"|^[~^v]?[0-9]+\.[0-9]+\.[0-9]+(?:[.+-][a-z0-9.-]+)?$"
    rb"|^(?:this|self|exports[0-9]*|process\.env|[A-Za-z])\._?[A-Za-z]|[A-Za-z_]=[A-Za-z]\w{0,"
    rb"8}\.[A-Za-z_]|=void$"
)


def _is_jwt(text: bytes) -> bool:
    parts = [part.translate(_URLSAFE) + b"=" * (-len(part) % 4) for part in text.split(b".")]
    try:
        header, claims = (binascii.a2b_base64(part) for part in parts[:2])
    except binascii.Error:
        return False
    return b'"alg"' in header and b"1234567890" not in claims


_URLSAFE: Final = bytes.maketrans(b"-_", b"+/")


def _token(cls: str, prefix: bytes, rest: bytes, check: Check = _is_real) -> Detector:
    pattern = re.compile(b"(?<![A-Za-z0-9])" + re.escape(prefix) + rest + b"(?![A-Za-z0-9])")
    return Detector(cls, (prefix,), pattern, check)


_CREDENTIALS: Final = (
    *(
        _token("aws_key", prefix, rb"[A-Z2-7]{16}")
        for prefix in (b"AKIA", b"ASIA", b"ABIA", b"ACCA")
    ),
    Detector(
        "aws_secret",
        (b"ecret", b"ECRET", b"aws_key", b"AWS_KEY"),
        re.compile(
            rb"(?i)(?:aws|secret)[a-z_. -]{0,30}(?:key|secret)[a-z_]{0,10}[\"']?\s{0,4}[=:]\s{0,"
            rb"4}[\"']?([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"
        ),
        _is_secret,
        before=40,
        within=140,
    ),
    *(
        _token("github_token", prefix, rb"[A-Za-z0-9]{36,255}")
        for prefix in (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_")
    ),
    _token("github_token", b"github_pat_", rb"[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"),
    _token("gitlab_token", b"glpat-", rb"[A-Za-z0-9_-]{20,64}"),
    _token("slack_token", b"xox", rb"[abeoprs]-[A-Za-z0-9-]{20,250}"),
    _token(
        "slack_webhook",
        b"hooks.slack.com/services/",
        rb"T[A-Z0-9]{8,12}/B[A-Z0-9]{8,12}/[A-Za-z0-9]{24}",
    ),
    *(
        _token("stripe_key", prefix, rb"[A-Za-z0-9]{24,247}")
        for prefix in (b"sk_live_", b"rk_live_", b"whsec_")
    ),
    _token("anthropic_key", b"sk-ant-", rb"[a-z]{3}[0-9]{2}-[A-Za-z0-9_-]{80,120}"),
    _token(
        "openai_key",
        b"sk-",
        rb"(?:(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,200}|[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}"
        rb"|[A-Za-z0-9]{48})",
    ),
    _token("npm_token", b"npm_", rb"[A-Za-z0-9]{36}"),
    _token("pypi_token", b"pypi-AgE", rb"[A-Za-z0-9_-]{50,250}"),
    _token("google_key", b"AIza", rb"[A-Za-z0-9_-]{35}"),
    _token("huggingface_token", b"hf_", rb"[A-Za-z]{34}"),
    _token("sendgrid_key", b"SG.", rb"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    _token(
        "jwt",
        b"eyJ",
        rb"[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{20,1000}",
        _is_jwt,
    ),
    Detector(
        "private_key",
        (b"PRIVATE KEY",),
        re.compile(
            rb"-----BEGIN (?:[A-Z0-9]{1,12} ){0,2}PRIVATE KEY(?: "
            rb"BLOCK)?-----(?:(?!-----END)[\s\S]){0,300}?[A-Za-z0-9+/=]{40}"
            rb"(?:[\s\S]{0,16000}?-----END (?:[A-Z0-9]{1,12} ){0,2}PRIVATE KEY(?: BLOCK)?-----)?"
        ),
        before=40,
    ),
    Detector(
        "private_key",
        (b"PuTTY-User-Key-File-",),
        re.compile(rb"PuTTY-User-Key-File-[23]: [\s\S]{20,8000}?Private-Lines: [0-9]+"),
    ),
    Detector(
        "secret",
        (
            b"assw",
            b"ASSW",
            b"assp",
            b"ASSP",
            b"pwd",
            b"PWD",
            b"ass:",
            b"ass=",
            b"ASS=",
            b"ecret",
            b"ECRET",
            b"oken",
            b"OKEN",
            b"key",
            b"KEY",
            b"Key",
        ),
        re.compile(
            rb"(?i)(?:pass(?:word|wd|phrase)?|pwd|(?<![0-9]:)secret"
            rb"|(?<!request)(?<!client)(?<!continuation)(?<!next)(?<!page)(?<!metadata-)token"
            rb"|api[_-]?key|access[_-]?key|auth[_-]?key)[\"']?\s{0,3}(?:=>|:=|[=:])(?!=)\s{0,"
            rb"3}[\"']?"
            rb"([A-Za-z0-9!#$%*+/=?@^_~.-]{12,200})(?![A-Za-z0-9])"
        ),
        _is_secret,
        before=12,
        within=230,
    ),
    Detector(
        "url_password",
        (b"://",),
        re.compile(
            rb"(?i)\b[a-z][a-z0-9+.-]{1,20}://[^\s:/@\"']{1,64}:([^\s:/@\"'<>{}$]{8,"
            rb"128})@[A-Za-z0-9\[]"
        ),
        _is_secret,
        before=24,
        within=220,
    ),
)
_SEED: Final = re.compile(
    rb"(?<![A-Za-z])(?:[A-Za-z]{3,8}+[^A-Za-z]{1,6}+)++(?:[A-Za-z]{3,8}(?![A-Za-z]))?"
)
_SEED_SHAPE: Final = rb"(?:[A-Za-z]{3,8}[^A-Za-z]{1,6}){11}[A-Za-z]{3}"
_WORD: Final = re.compile(rb"[A-Za-z]+")
_PHRASE: Final = "a phrase"
MIN_PHRASE: Final = 12 * 4 - 1
MAX_WORDS: Final = 3 + 11 * (8 + 6)
"""From the beginning of eleven words to the third letter of the one behind them."""


class Patterns:
    """Finds what has the shape of a credential, and of the classes asked for."""

    def __init__(self, classes: Iterable[str]) -> None:
        from belljar.signals.personal import detectors

        self._detectors = [
            (detector, frozenset(text.decode() for text in detector.literals))
            for detector in (*_CREDENTIALS, *detectors(classes))
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


WEAK: Final = frozenset({"secret", "url_password"})
"""Named only where nothing more precise was found."""


def _may_be_phrase(data: bytes, ends: Iterable[int]) -> bool:
    """Whether twelve words of the list follow each other where `_SEED_SHAPE` ends."""
    known, least = _word_numbers(), 0
    for end in ends:
        if end < least:
            continue
        word = _WORD.match(data, end - 3)
        if word is None or word[0].lower().decode() not in known:
            least = end + MIN_PHRASE
            continue
        words = _WORD.findall(data, max(0, end - MAX_WORDS), word.end())[-12:]
        if all(word.lower().decode() in known for word in words[1:]):
            return True
    return False


def _phrases(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Seed phrases (BIP-39, English) among words: 12 to 24 of its list, with a right checksum."""
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
    """Whether words stand as a list: numbers and white space aside, behind one separator, or
    between that and none. Sentences and code have several.
    """
    between = [data[a[1] : b[0]].translate(None, b"0123456789 \t\r\n") for a, b in pairwise(words)]
    marks = [mark for mark in between if mark]
    return len(set(marks)) <= 1 and (not marks or len(marks) * 2 > len(between))


def _checksum_holds(numbers: list[int]) -> bool:
    import hashlib

    bits = 0
    for number in numbers:
        bits = bits << 11 | number
    check_bits = len(numbers) // 3
    entropy_bytes = (bits >> check_bits).to_bytes(check_bits * 4)
    return hashlib.sha256(entropy_bytes).digest()[0] >> (8 - check_bits) == bits & (
        (1 << check_bits) - 1
    )


_WORDS: dict[str, int] = {}


def _word_numbers() -> dict[str, int]:
    """The English list of BIP-39, word → number; read once."""
    if not _WORDS:
        from mnemonic import Mnemonic

        _WORDS.update({word: number for number, word in enumerate(Mnemonic("english").wordlist)})
    return _WORDS
