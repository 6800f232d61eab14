"""Names and ports of a policy's network: host names, TCP ports, HTTP methods.

Host names are kept as the network carries them: lower case, A-labels (IDNA 2008 after the mapping
of UTS 46), no dot at the end.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, model_serializer

from belljar.policy import fields as kinds
from belljar.policy.fields import Strict, list_of
from belljar.policy.guarding import ALL_PORTS
from belljar.units import did_you_mean, listed, quoted

# What stands behind a port's slash; `tls` is HTTPS, `smtps` is mail within TLS.
PROTOCOLS: Final = ("http", "tls", "tcp", "smtp", "smtps")
# CONNECT and TRACE are no upstream's business: both lead elsewhere.
Method: TypeAlias = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
# DNS's 255 bytes (RFC 1035) without the first length and the last zero.
MAX_HOST_CHARS: Final = 253
# Each port is a listener of the gateway, which has a bounded number of descriptors.
MAX_PORTS: Final = 64
# Of one stand-in; all are in the plan that a reviewer reads.
MAX_NAMES: Final = 250
# The gateway answers DNS there itself, on each address.
RESOLVER_PORT: Final = 53
# Only a cell and a stand-in of kind `metadata` may have them.
METADATA_NAMES: Final = (
    "instance-data",
    "instance-data.ec2.internal",
    "metadata",
    "metadata.azure.internal",
    "metadata.goog",
    "metadata.google.internal",
)
# RFC 1035 with the underscore of service names (RFC 2782).
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
# A last label like these makes an address of the name for some clients (WHATWG URL, 3.5).
_LIKE_A_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
# For a hint alone: no port has a protocol that nobody wrote.
_USUAL: Final = {80: "http", 443: "tls", 8443: "tls", 25: "smtp", 587: "smtp", 465: "smtps"}


def read_host(value: object) -> str:
    """An exact host name in its one form. Raises `ValueError`."""
    if not isinstance(value, str):
        raise kinds.expected("a host name such as `shop.example`", value)
    if "*" in value:
        raise ValueError(f"{quoted(value)} is not an exact name: `*` is not allowed here")
    return _host(value, value)


def read_pattern(value: object) -> str:
    """A host name, or `*.` and one. Raises as `read_host`."""
    if not isinstance(value, str) or "*" not in value:
        return read_host(value)
    if not value.startswith("*.") or "*" in value[1:]:
        raise ValueError(f"{quoted(value)}: `*` is allowed only as a first label, before a name")
    return f"*.{_host(value[2:], value)}"


def _host(text: str, written: str) -> str:
    name = text.lower()
    # An A-label is decoded, too: it may stand for text that no name may have.
    if not name.isascii() or "xn--" in name:
        import idna  # large tables, for few policies

        try:
            name = idna.encode(text, uts46=True, std3_rules=True).decode("ascii").lower()
        except (idna.IDNAError, UnicodeError):
            raise ValueError(f"{quoted(written)} is not a name by IDNA 2008") from None
    labels = name.split(".")
    if len(name) > MAX_HOST_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{quoted(written)} is not a valid host name, as in `shop.example`")
    # RFC 6761, 6.3: programs answer the last two themselves, without the resolver.
    if _LIKE_A_NUMBER.fullmatch(labels[-1]) or labels[-1] in ("localhost", "localdomain"):
        raise ValueError(f"{quoted(written)} is an address, or means the cell itself: write a name")
    return name


def covers(pattern: str, name: str) -> bool:
    """Whether a pattern stands for an exact name."""
    return name == pattern or (pattern.startswith("*.") and name.partition(".")[2] == pattern[2:])


def read_number(value: object) -> int:
    """A TCP port that a stand-in may have. Raises `ValueError`."""
    if type(value) is not int or not 1 <= value <= 65535:
        raise ValueError(f"{quoted(value)} is not a port: write a number from 1 to 65535")
    if value == RESOLVER_PORT:
        raise ValueError("port 53 is reserved for the resolver")
    return value


def read_port(value: object) -> tuple[int, str]:
    """Number and protocol (or "") of `443/tls`. Raises `ValueError`."""
    if type(value) is int:
        return read_number(value), ""
    number, slash, protocol = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not slash or not (number.isascii() and number.isdigit()) or len(number) > 5:
        raise ValueError(f"{quoted(value)} is not a port: write 1 to 65535, or as in `8443/tls`")
    if protocol not in PROTOCOLS:
        hint = did_you_mean(protocol, PROTOCOLS)
        raise ValueError(f"{quoted(protocol)} is not one of {listed(PROTOCOLS)}{hint}")
    return read_number(int(number)), protocol


def usual_protocol(number: int, allowed: tuple[str, ...]) -> str:
    """The usual protocol at a port, or the first that is allowed."""
    usual = _USUAL.get(number, "")
    return usual if usual in allowed else allowed[0]


class Port(Strict):
    """A TCP port; protocol "": the usual one."""

    number: int
    protocol: str = ""

    @model_serializer
    def _written(self) -> str | int:
        if self.number == ALL_PORTS:
            return "all"
        return f"{self.number}/{self.protocol}" if self.protocol else self.number


def _read_port(value: object) -> object:
    if isinstance(value, Port):
        return value
    # Of target cells alone: no other kind speaks plain TCP.
    number, protocol = (ALL_PORTS, "tcp") if value == "all" else read_port(value)
    return Port(number=number, protocol=protocol)


def _all_alone(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    if len(ports) > 1 and any(port.number == ALL_PORTS for port in ports):
        raise ValueError("`all` can't be combined with other ports")
    return ports


HOST: Final = kinds.FieldKind(read_host)
PATTERN: Final = kinds.FieldKind(read_pattern)
PORT_NUMBER: Final = kinds.FieldKind(read_number, int)
Ports: TypeAlias = Annotated[
    tuple[Annotated[Port, BeforeValidator(_read_port, json_schema_input_type=int | str)], ...],
    list_of(MAX_PORTS),
    AfterValidator(_all_alone),
]
HostNames: TypeAlias = Annotated[tuple[Annotated[str, HOST], ...], list_of(MAX_NAMES)]
Names: TypeAlias = Annotated[tuple[Annotated[str, PATTERN], ...], list_of(MAX_NAMES)]
