"""Personal data: cards, IBAN, national ids, e-mail addresses and phone numbers; each only where a
policy names its class. `national_id` and `phone` need the extra `guard`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from belljar.errors import HostError

if TYPE_CHECKING:
    from belljar.signals.patterns import Detector

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
"""Numbers that payment providers document for tests."""
_CARD_PREFIX: Final = re.compile(
    r"4(?:.{12}|.{15}|.{18})|5[1-5].{14}|(?=.{16}\Z)2(?:22[1-9]|2[3-9]|[3-6]|7[01]|720).*"
    r"|3[47].{13}"
    r"|(?=.{16}\Z)(?:6(?:011|5|4[4-9]).*|35(?:2[89]|[3-8]).*)|3(?:0[0-5]|[689])(?:.{11,12}|.{13})"
    r"|62.{14,17}"
)
"""Visa, Mastercard, American Express, Discover, JCB, Diners and UnionPay, with their lengths."""
_OWN_GROUPS: Final = ([4, 6, 5], [4, 6, 4])
MAX_GROUP: Final = 5


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others."""
    total = sum(int(digit) for digit in digits[-1::-2])
    return (total + sum(sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])) % 10 == 0


def is_card(text: bytes) -> bool:
    """A payment card's number: prefix, length and check digit; not one that is documented for
    tests.
    """
    digits = bytes(byte for byte in text if 48 <= byte <= 57).decode()
    return (
        13 <= len(digits) <= 19
        and digits not in _TEST_CARDS
        and len(set(digits)) > 3
        and _CARD_PREFIX.fullmatch(digits) is not None
        and _is_grouped(text)
        and luhn(digits)
    )


def _is_grouped(text: bytes) -> bool:
    """Whether digits stand as on a card: in one piece, in its own groups, or cut into equal ones.

    The numbers of a table are not.
    """
    sizes = [len(group) for group in re.split(rb"[ -]", text)]
    if len(sizes) == 1 or sizes in _OWN_GROUPS:
        return True
    return len(set(sizes[:-1])) == 1 and sizes[-1] <= sizes[0] <= MAX_GROUP


_IBAN_LENGTHS: Final = {
    country: int(length)
    for country, length in re.findall(
        r"([A-Z]{2})([0-9]{2})",
        """
        AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18 DO28
        EE20 EG29 ES24 FI18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26
        IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 MC27 MD24 ME22 MK19 MR27 MT31 MU30 NL18
        NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 SA24 SC31 SE24 SI19 SK24 SM27 ST25 SV28 TL23 TN24
        TR26 UA29 VA22 VG24 XK20
        """,
    )
}
_DOCUMENTED_IBANS: Final = re.findall(
    r"[A-Z0-9]+",
    """
    GB82WEST12345698765432 GB29NWBK60161331926819 DE89370400440532013000
    FR1420041010050500013M02606 NL91ABNA0417164300 CH9300762011623852957 AT611904300234573201
    ES9121000418450200051332 BE68539007547034 IT60X0542811101000000123456 DE75512108001245126199
    """,
)


def is_iban(text: bytes) -> bool:
    """An account number with its country's length and right check digits; no documented example."""
    compact = re.sub(rb"[^A-Za-z0-9]", b"", text).decode().upper()
    if len(compact) != _IBAN_LENGTHS.get(compact[:2]) or compact in _DOCUMENTED_IBANS:
        return False
    return (
        int("".join(str(int(character, 36)) for character in compact[4:] + compact[:4])) % 97 == 1
    )


_NATIONAL: Final[tuple[tuple[str, str], ...]] = (
    ("us.ssn", r"[0-9]{3}[- ][0-9]{2}[- ][0-9]{4}"),
    ("de.idnr", r"[0-9]{2} ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}"),
    ("fr.nir", r"[12] ?[0-9]{2} ?[0-9]{2} ?[0-9AB]{2} ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}"),
    ("it.codicefiscale", r"[A-Z]{6}[0-9]{2}[A-Z][0-9]{2}[A-Z][0-9]{3}[A-Z]"),
    ("es.dni", r"[0-9]{8}-?[A-Z]"),
    ("nl.bsn", r"[0-9]{3}[. ][0-9]{2}[. ][0-9]{4}"),
    ("pl.pesel", r"[0-9]{11}"),
    ("br.cpf", r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}"),
    ("se.personnummer", r"[0-9]{6}(?:[0-9]{2})?[-+][0-9]{4}"),
    ("fi.hetu", r"[0-9]{6}[-+A][0-9]{3}[0-9A-Z]"),
    ("dk.cpr", r"[0-9]{6}-[0-9]{4}"),
    ("ch.ssn", r"756\.?[0-9]{4}\.?[0-9]{4}\.?[0-9]{2}"),
    ("be.nn", r"[0-9]{2}\.[0-9]{2}\.[0-9]{2}-[0-9]{3}\.[0-9]{2}"),
    ("in_.aadhaar", r"[2-9][0-9]{3} [0-9]{4} [0-9]{4}"),
    ("cn.ric", r"[1-9][0-9]{16}[0-9X]"),
    ("za.idnr", r"[0-9]{13}"),
    ("kr.rrn", r"[0-9]{6}-[0-9]{7}"),
)
"""Modules of python-stdnum, and what a number looks like before its check digits are tested."""


def _national(extra: str) -> Iterator[Detector]:
    from belljar.signals.patterns import Detector

    try:
        from stdnum import get_cc_module
    except ModuleNotFoundError:
        raise HostError(
            f"the guard's class `{extra}` needs python-stdnum",
            hint="pip install 'belljar-sandbox[guard]'",
        ) from None
    for name, shape in _NATIONAL:
        country, _, module = name.partition(".")
        number = get_cc_module(country.strip("_"), module)
        if number is None:
            raise HostError(f"this python-stdnum has no module {name}", hint="install a newer one")

        def check(text: bytes, is_valid: Callable[[str], bool] = number.is_valid) -> bool:
            return text not in _DOCUMENTED_IDS and is_valid(text.decode())

        yield Detector(
            "national_id",
            (),
            re.compile(rf"(?<![A-Za-z0-9.-])(?<![0-9] ){shape}(?![A-Za-z0-9-]|[. ][0-9])".encode()),
            check,
        )


_DECIMAL: Final = re.compile(rb"\+[0-9]{4,}\.[0-9]+")
"""A signed number; what registries write as `+49.30123456` has a country's digits before the dot.
"""
_DOCUMENTED_IDS: Final = frozenset({b"078-05-1120", b"219-09-9999", b"123-45-6789", b"457-55-5462"})


def _phones() -> Iterator[Detector]:
    from belljar.signals.patterns import Detector

    try:
        import phonenumbers
    except ModuleNotFoundError:
        raise HostError(
            "the guard's class `phone` needs phonenumbers",
            hint="pip install 'belljar-sandbox[guard]'",
        ) from None

    def check(text: bytes) -> bool:
        try:
            number = phonenumbers.parse(text.decode(), None if text.startswith(b"+") else "US")
        except phonenumbers.NumberParseException:
            return False
        if _DECIMAL.fullmatch(text):
            return False
        return (
            phonenumbers.is_valid_number(number) and b"555-01" not in text and b"55501" not in text
        )

    yield Detector(
        "phone",
        (b"+",),
        re.compile(rb"(?<![A-Za-z0-9+])\+[1-9][0-9 ().-]{7,20}[0-9](?![0-9A-Za-z])"),
        check,
    )
    american = re.compile(
        rb"(?<![A-Za-z0-9.+-])(?:\([2-9][0-9]{2}\) ?[2-9][0-9]{2}[-.]|[2-9][0-9]{2}-[2-9][0-9]{2}-"
        rb"|[2-9][0-9]{2}\.[2-9][0-9]{2}\.)"
        rb"[0-9]{4}(?![0-9A-Za-z-])"
    )
    yield Detector("phone", (), american, check)


_DOCUMENTED_DOMAIN: Final = re.compile(
    rb"(?i)@(?:[a-z0-9-]+\.)*(?:example(?:\.[a-z]+)?|test|invalid|localhost|local)\Z"
)


def _is_address(text: bytes) -> bool:
    return not _DOCUMENTED_DOMAIN.search(text) and not text.lower().startswith(
        (b"noreply@", b"no-reply@", b"git@")
    )


def detectors(classes: Iterable[str]) -> Iterator[Detector]:
    """Those of the classes. Raises HostError where a class's package is not installed."""
    from belljar.signals.patterns import Detector

    for cls in classes:
        if cls == "card":
            pattern = re.compile(
                rb"(?<![0-9A-Za-z.-])[2-6](?:[ -]?[0-9]){12,18}(?![0-9A-Za-z]|[.-][0-9])"
            )
            yield Detector("card", (), pattern, is_card)
        elif cls == "iban":
            pattern = re.compile(
                rb"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]){11,30}(?![A-Za-z0-9])"
            )
            yield Detector("iban", (), pattern, is_iban)
        elif cls == "email":
            pattern = re.compile(
                rb"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,"
                rb"8}[A-Za-z]{2,24}(?![A-Za-z0-9])"
            )
            yield Detector("email", (b"@",), pattern, _is_address, before=65, within=600)
        elif cls == "phone":
            yield from _phones()
        elif cls == "national_id":
            yield from _national(cls)
        else:
            raise ValueError(f"{cls!r} is no class of personal data")
