"""Host names, ports and HTTP methods as a policy's network has them: read strictly, written in one
form. Pure.

A host name is kept as the network carries it: lower case, A-labels (IDNA 2008 after the mapping of
UTS 46), no dot at the end.
"""

from __future__ import annotations

import re
from typing import Final

from belljar.policy.fields import Text, kind_of, listed, nearest, quoted

PROTOCOLS: Final = ("http", "tls", "tcp", "smtp", "smtps")
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
RESOLVER_PORT: Final = 53
MAX_NAME_CHARS: Final = 253
METADATA_NAMES: Final = (
    "instance-data",
    "instance-data.ec2.internal",
    "metadata",
    "metadata.azure.internal",
    "metadata.goog",
    "metadata.google.internal",
)
"""By which clouds' metadata services are known; only a stand-in of kind `metadata` may have them.
"""
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_LIKE_A_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_USUAL: Final = {80: "http", 443: "tls", 8443: "tls", 25: "smtp", 587: "smtp", 465: "smtps"}


def read_host(value: object) -> str:
    """An exact host name in its one form. Raises `ValueError` that says what is allowed."""
    if not isinstance(value, str):
        raise ValueError(
            f"a host name is text, as in `shop.example`, but this is {kind_of(value)} "
            f"({quoted(value)})"
        )
    if "*" in value:
        raise ValueError(f"{quoted(value)} is no exact name: `*` can't stand here")
    return _host(value, value)


def read_pattern(value: object) -> str:
    """A host name, or `*.` and one: exactly one more label.

    Raises `ValueError` that says what is allowed.
    """
    if not isinstance(value, str) or not value.startswith("*"):
        return (
            _host(value, value)
            if isinstance(value, str) and "*" not in value
            else _misplaced(value)
        )
    if value == "*":
        raise ValueError(
            "`*` alone would be every name: write `default: simulate` if that is meant"
        )
    return (
        f"*.{_host(value[2:], value)}"
        if value.startswith("*.") and "*" not in value[1:]
        else _misplaced(value)
    )


def _misplaced(value: object) -> str:
    if isinstance(value, str):
        raise ValueError(
            f"{quoted(value)}: `*` stands for the first label alone, as in `*.shop.example`"
        )
    return read_host(value)


def _host(text: str, written: str) -> str:
    if text.endswith("."):
        raise ValueError(f"{quoted(written)} ends with a dot; leave it out")
    if "/" in text or ":" in text or "@" in text:
        raise ValueError(
            f"{quoted(written)} is no host name: write the name alone, without scheme, port or path"
        )
    name = _encoded(text, written)
    labels = name.split(".")
    if len(name) > MAX_NAME_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(
            f"{quoted(written)} is no host name: labels of 1 to 63 letters, digits, `-` and `_` "
            f"(no `-` first or last), "
            f"joined by dots, {MAX_NAME_CHARS} characters together at most"
        )
    if _LIKE_A_NUMBER.fullmatch(labels[-1]):
        raise ValueError(
            f"{quoted(written)} is an address: only names can stand here, and addresses are "
            f"drawn for each range"
        )
    if labels[-1] in ("localhost", "localdomain"):
        raise ValueError(f"{quoted(written)} is the cell itself, never a stand-in")
    return name


def _encoded(text: str, written: str) -> str:
    lowered = text.lower()
    if lowered.isascii() and "xn--" not in lowered:
        return lowered
    import idna  # large tables, for few policies

    try:
        return idna.encode(text, uts46=True, std3_rules=True).decode("ascii").lower()
    except (idna.IDNAError, UnicodeError) as exc:
        raise ValueError(
            f"{quoted(written)} is no internationalised name (IDNA 2008): {quoted(str(exc))}"
        ) from None


def covers(pattern: str, name: str) -> bool:
    """Whether a pattern stands for an exact name. Both are in their one form."""
    return name == pattern or (pattern.startswith("*.") and name.partition(".")[2] == pattern[2:])


def read_number(value: object) -> int:
    """A TCP port that a stand-in may have. Raises `ValueError`."""
    if type(value) is not int or not 1 <= value <= 65535:
        raise ValueError(f"{quoted(value)} is no port: a number from 1 to 65535")
    if value == RESOLVER_PORT:
        raise ValueError("port 53 is the resolver's")
    return value


def read_port(value: object) -> tuple[int, str]:
    """`443`, `443/tls` → number and protocol, "" when none is written. Raises `ValueError`."""
    if type(value) is int:
        return read_number(value), ""
    number, slash, protocol = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not slash or not (number.isascii() and number.isdigit()) or len(number) > 5:
        raise ValueError(
            f"{quoted(value)} is no port: a number from 1 to 65535, or one with its protocol, as "
            f"in `8443/tls`"
        )
    if protocol not in PROTOCOLS:
        near = nearest(protocol, PROTOCOLS)
        hint = f"; did you mean `{near}`?" if near else ""
        raise ValueError(f"{quoted(protocol)} is none of {listed(PROTOCOLS)}{hint}")
    return read_number(int(number)), protocol


def usual_protocol(number: int, allowed: tuple[str, ...]) -> str:
    """What is spoken at a port of which only the number is written: what is usual there, or the
    first that is allowed.
    """
    usual = _USUAL.get(number, "")
    return usual if usual in allowed else allowed[0]


def read_method(value: object) -> str:
    """An HTTP method in upper case. Raises `ValueError`."""
    if isinstance(value, str) and value.upper() in METHODS:
        return value.upper()
    raise ValueError(f"{quoted(value)} is none of {listed(METHODS)}")


HOST: Final = Text(reader=read_host, pattern=r"^[^*/:@\s]+$")
PATTERN: Final = Text(reader=read_pattern, pattern=r"^(\*\.)?[^*/:@\s]+$")
METHOD: Final = Text(reader=read_method, pattern="^(" + "|".join(METHODS) + ")$")
