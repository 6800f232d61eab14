"""Detectors of credentials and personal data, excluding documented examples."""

from __future__ import annotations

import binascii
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Final

from belljar.dataclass import dataclass

Check = Callable[[bytes], bool]

MIN_ENTROPY: Final = 3.2  # Bits a character of a secret in context; English words have less.


# Each may search `within` bytes: a text of literals alone takes seconds a mebibyte.
_LOOKS_A_TICK: Final = 64


@dataclass(frozen=True, slots=True)
class Detector:
    """A pattern whose matches hold a literal; group 1, if any, is the value."""

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


# What documents write where a secret stands.
_PLACEHOLDER: Final = re.compile(
    rb"(?i)example|placeholder|changeme|your[_-]?|redacted|dummy|sample|xxxx|\*\*\*\*|\.\.\.\."
    rb"|<[a-z]|\$\{|\{\{|1234567890|abcdefgh|0000000"
)


def _is_real(text: bytes) -> bool:
    return not _PLACEHOLDER.search(text) and entropy(text) >= 2.5


def _is_secret(text: bytes) -> bool:
    kinds = sum(
        any(low <= byte <= high for byte in text) for low, high in ((48, 57), (65, 90), (97, 122))
    )
    return kinds >= 2 and _is_real(text) and entropy(text) >= MIN_ENTROPY and not _CODE.search(text)


# Names, paths, versions and calls: long and mixed, but no secret.
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


# RFC 4648, 5: the other alphabet of base64.
_URLSAFE: Final = bytes.maketrans(b"-_", b"+/")


def _token(cls: str, prefix: bytes, rest: bytes, check: Check = _is_real) -> Detector:
    pattern = re.compile(b"(?<![A-Za-z0-9])" + re.escape(prefix) + rest + b"(?![A-Za-z0-9])")
    return Detector(cls, (prefix,), pattern, check)


# The weak ones come last: `Patterns.find` drops them where another one has matched.
CREDENTIALS: Final = (
    *(_token("aws_key", prefix, rb"[A-Z2-7]{16}") for prefix in (b"AKIA", b"ASIA")),
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
    *(
        _token("stripe_key", prefix, rb"[A-Za-z0-9]{24,247}")
        for prefix in (b"sk_live_", b"rk_live_")
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
        "secret",
        tuple(
            b"assw ASSW assp ASSP pwd PWD ass: ass= ASS= ecret ECRET oken OKEN key KEY Key".split()
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

# --- personal data ---

# Numbers that payment providers document for tests.
_TEST_CARDS: Final = re.findall(
    r"[0-9]+",
    """
    4111111111111111 4242424242424242 4012888888881881 4000056655665556 4222222222222
    5555555555554444 5105105105105100 5200828282828210 2223003122003222 5454545454545454
    378282246310005 371449635398431 378734493671000 6011111111111117 6011000990139424
    3056930009020004 30569309025904 38520000023237 3566002020360505 3530111333300000
    6200000000000005 4000000000000002 4000000000009995 4000002500003155 4917610000000000
    4484070000000000 5019717010103742 6759649826438453 4532015112830366 4539578763621486
    """,
)
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
        and digits not in _TEST_CARDS
        # Luhn's digit fits runs such as 4444 4444 4444 4448, which are fillers.
        and len(set(digits)) > 3
        and _CARD_PREFIX.fullmatch(digits) is not None
        and is_grouped
        and total % 10 == 0
    )


# Examples of documents, which are everywhere.
_DOCUMENTED_IBANS: Final = re.findall(
    r"[A-Z0-9]+",
    """
    GB82WEST12345698765432 GB29NWBK60161331926819 DE89370400440532013000
    FR1420041010050500013M02606 NL91ABNA0417164300 CH9300762011623852957 AT611904300234573201
    ES9121000418450200051332 BE68539007547034 IT60X0542811101000000123456 DE75512108001245126199
    """,
)


def is_iban(text: bytes) -> bool:
    compact = re.sub(rb"[^A-Za-z0-9]", b"", text).decode().upper()
    if compact in _DOCUMENTED_IBANS:
        return False
    digits = "".join(str(int(character, 36)) for character in compact[4:] + compact[:4])
    return int(digits) % 97 == 1


# Addresses of functions and of documents (RFC 2606), which name nobody.
_NO_PERSON: Final = re.compile(
    rb"(?i)\A(?:no-?reply|git)@"
    rb"|@(?:[a-z0-9-]+\.)*(?:example(?:\.[a-z]+)?|test|invalid|localhost|local)\Z"
)


_PERSONAL: Final = {
    "card": Detector(
        "card",
        (),
        re.compile(rb"(?<![0-9A-Za-z.-])[2-6](?:[ -]?[0-9]){12,18}(?![0-9A-Za-z]|[.-][0-9])"),
        is_card,
    ),
    "iban": Detector(
        "iban",
        (),
        re.compile(rb"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]){11,30}(?![A-Za-z0-9])"),
        is_iban,
    ),
    "email": Detector(
        "email",
        (b"@",),
        re.compile(
            rb"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}"
            rb"[A-Za-z]{2,24}(?![A-Za-z0-9])"
        ),
        lambda text: not _NO_PERSON.search(text),
        # The 64 characters before the `@`, and the one in front that must be none of an address.
        before=65,
        within=600,
    ),
}

# Named only where nothing more precise was found.
WEAK: Final = frozenset({"secret", "url_password"})


class Patterns:
    def __init__(self, classes: Iterable[str]) -> None:
        self._detectors = (*CREDENTIALS, *(_PERSONAL[name] for name in classes))

    def find(self, data: bytes, tick: Callable[[], None]) -> Iterator[tuple[int, int, str]]:
        """Yield start, end, class; `tick` raises when time is up."""
        taken: dict[tuple[int, int], str] = {}
        # Made with the first find: most data has none.
        covered = bytearray()
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
