"""The words of nftables' JSON that a range's rules are made of (libnftables-json(5)), in the form
in which nft lists them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

Statement: TypeAlias = dict[str, Any]

ACCEPT: Final[Statement] = {"accept": None}
DROP: Final[Statement] = {"drop": None}
TCP_RESET: Final[Statement] = {"reject": {"type": "tcp reset"}}
UNREACHABLE: Final[Statement] = {"reject": {"type": "icmp", "expr": "port-unreachable"}}
L4PROTO: Final[Statement] = {"meta": {"key": "l4proto"}}
NFPROTO: Final[Statement] = {"meta": {"key": "nfproto"}}
IIFNAME: Final[Statement] = {"meta": {"key": "iifname"}}
OIFNAME: Final[Statement] = {"meta": {"key": "oifname"}}
PKTTYPE: Final[Statement] = {"meta": {"key": "pkttype"}}
MARK: Final[Statement] = {"meta": {"key": "mark"}}


def field(protocol: str, name: str) -> Statement:
    """A header's field."""
    return {"payload": {"protocol": protocol, "field": name}}


def match(left: Statement, right: Any, op: str = "==") -> Statement:  # noqa: ANN401
    """Goes on only when it holds."""
    return {"match": {"op": op, "left": left, "right": right}}


def option(name: str) -> Statement:
    """Goes on when the packet has this IPv4 option."""
    return match({"ip option": {"name": name}}, right=True)


def destination() -> Statement:
    """Address, protocol and port that a packet goes to, as an element of a set of services."""
    return {"concat": [field("ip", "daddr"), L4PROTO, field("th", "dport")]}


def source() -> Statement:
    """Address, protocol and port that a packet comes from, as an element of a set of services."""
    return {"concat": [field("ip", "saddr"), L4PROTO, field("th", "sport")]}


def conversation(*, answered: bool = False) -> Statement:
    """Who speaks to whom at which port, as an element of a set of conversations; `answered`: of a
    packet that goes back. After a match of TCP flags, as nft lists it.
    """
    client, server, port = ("daddr", "saddr", "sport") if answered else ("saddr", "daddr", "dport")
    return {"concat": [field("ip", client), field("ip", server), field("tcp", port)]}


def remember(element: Statement, name: str) -> Statement:
    """Puts it into the set, or begins its time there anew. Does not go on when the set is full."""
    return {"set": {"op": "update", "elem": element, "set": f"@{name}"}}


def flags(of: Sequence[str], are: str, op: str = "==") -> Statement:
    """Of these TCP flags, `are` is set and no other (`!=`: anything else)."""
    return match({"&": [field("tcp", "flags"), list(of)]}, are, op)


FIRST: Final = flags(("fin", "syn", "rst", "ack"), "syn")
"""A TCP segment that asks for a connection."""
NOT_FIRST: Final = flags(("syn", "ack"), "syn", "!=")
"""One that doesn't: no connection can be begun with such segments alone."""
FRAGMENT: Final = match({"&": [field("ip", "frag-off"), 0x3FFF]}, 0, "!=")
"""More fragments follow, or this is not the first (RFC 791)."""


def counter(name: str) -> Statement:
    """Counts."""
    return {"counter": name}


def over(per_s: int, burst: int) -> Statement:
    """Goes on when there are more than this."""
    return {"limit": {"rate": per_s, "burst": burst, "per": "second", "inv": True}}


def goto(chain: str) -> Statement:
    """The other chain decides."""
    return {"goto": {"target": chain}}


def jump(chain: str) -> Statement:
    """The other chain decides, or this one goes on."""
    return {"jump": {"target": chain}}


def log(group: int, prefix: str, snap_bytes: int) -> Statement:
    """A copy of the packet's beginning to whoever listens to the group (NFLOG)."""
    return {"log": {"prefix": prefix, "group": group, "snaplen": snap_bytes}}
