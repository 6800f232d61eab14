"""Statements of nftables' JSON (libnftables-json(5)), and their comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

Statement: TypeAlias = dict[str, Any]

# Verdicts and expressions as libnftables-json(5) spells them.
ACCEPT: Final[Statement] = {"accept": None}
DROP: Final[Statement] = {"drop": None}
# A reset makes connect() fail at once; a dropped segment would let a client wait for minutes.
TCP_RESET: Final[Statement] = {"reject": {"type": "tcp reset"}}
UNREACHABLE: Final[Statement] = {"reject": {"type": "icmp", "expr": "port-unreachable"}}
L4PROTO: Final[Statement] = {"meta": {"key": "l4proto"}}
NFPROTO: Final[Statement] = {"meta": {"key": "nfproto"}}
IIFNAME: Final[Statement] = {"meta": {"key": "iifname"}}
OIFNAME: Final[Statement] = {"meta": {"key": "oifname"}}
PKTTYPE: Final[Statement] = {"meta": {"key": "pkttype"}}
MARK: Final[Statement] = {"meta": {"key": "mark"}}


def field(protocol: str, name: str) -> Statement:
    return {"payload": {"protocol": protocol, "field": name}}


def match(left: Statement, right: Any, op: str = "==") -> Statement:  # noqa: ANN401
    return {"match": {"op": op, "left": left, "right": right}}


DADDR: Final = field("ip", "daddr")
TCP: Final = match(L4PROTO, "tcp")


# Where a packet goes and comes from, as a set's element.
DESTINATION: Final[Statement] = {"concat": [DADDR, L4PROTO, field("th", "dport")]}
SOURCE: Final[Statement] = {"concat": [field("ip", "saddr"), L4PROTO, field("th", "sport")]}


def marked(mark: int) -> Statement:
    return {"mangle": {"key": MARK, "value": mark}}


def flags(of: Sequence[str], are: str, op: str = "==") -> Statement:
    """Only `are` is set of these."""
    return match({"&": [field("tcp", "flags"), list(of)]}, are, op)


# A TCP segment that asks for a connection.
FIRST: Final = flags(("fin", "syn", "rst", "ack"), "syn")
NOT_FIRST: Final = flags(("syn", "ack"), "syn", "!=")  # one that doesn't, so that it begins none
FRAGMENT: Final = match({"&": [field("ip", "frag-off"), 0x3FFF]}, 0, "!=")  # RFC 791


def counter(name: str) -> Statement:
    return {"counter": name}


def over(per_s: int, burst: int) -> Statement:
    """Match beyond this rate."""
    return {"limit": {"rate": per_s, "burst": burst, "per": "second", "inv": True}}


def goto(chain: str) -> Statement:
    return {"goto": {"target": chain}}


# What the kernel numbers and counts itself: two listings of the same rules differ in it.
_VOLATILE: Final = frozenset({"handle", "index", "packets", "bytes", "used"})
_MAX_DIFFERENCES: Final = 20  # they go into an event
_SHOWN_CHARS: Final = 300
# Kind, family, table and name; all rules of a chain have one key, as their order matters.
_Key = tuple[str, str, str, str]
KnownRules: TypeAlias = dict[_Key, list[str]]  # as they are compared
canonical: Final = json.JSONEncoder(sort_keys=True, default=str).encode  # keys in order


def changed_rules(known: KnownRules, listed: Mapping[str, Any]) -> tuple[str, ...]:
    """Leave out handles and counts."""
    try:
        have = known_rules(listed)
    # A listing in another shape may hide a change: it counts as one.
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        return (f"the listed rules can't be read: {type(exc).__name__}",)
    return tuple(_differences(known, have))[:_MAX_DIFFERENCES]


def _differences(want: KnownRules, have: KnownRules) -> Iterator[str]:
    for key in sorted({*want, *have}, key=lambda key: (key[0] != "table", key)):
        name = " ".join(filter(None, (key[0], key[3], "of" if key[3] else "", *key[1:3])))
        if key not in have:
            yield f"{name} is gone"
        elif key not in want:
            yield f"{name} is not ours"
        elif want[key] != have[key]:
            more = [item for item in have[key] if item not in want[key]]
            yield f"{name} is changed: {more[0][:_SHOWN_CHARS] if more else 'less, or reordered'}"


def known_rules(document: Mapping[str, Any]) -> KnownRules:
    """All rules of a chain are one object."""
    found: KnownRules = {}
    for entry in document["nftables"]:
        if "flush" in entry or "metainfo" in entry:
            continue
        ((kind, item),) = entry["add"].items() if "add" in entry else entry.items()
        for key, value in _parts(kind, item):
            found.setdefault(key, []).extend(value)
    return found


def _parts(kind: str, item: Mapping[str, Any]) -> Iterator[tuple[_Key, list[str]]]:
    table = str(item["name"] if kind == "table" else item["table"])
    where = (str(item["family"]), table)
    if kind == "table":
        kept = {word: value for word, value in item.items() if word not in _VOLATILE}
        yield (kind, *where, ""), [canonical(kept)]
        return
    if kind == "rule":
        yield ("rules", *where, str(item["chain"])), [canonical(statement(item["expr"]))]
        return
    name = str(item["name"])
    omitted = {*_VOLATILE, "elem", "flags"}
    body = {word: value for word, value in item.items() if word not in omitted}
    # nft 1.0 doesn't list this flag in JSON, newer ones do
    flags = [flag for flag in item.get("flags", []) if flag != "dynamic"]
    yield (kind, *where, name), [canonical(body | ({"flags": flags} if flags else {}))]
    if kind == "chain":
        yield ("rules", *where, name), []
    if kind in ("set", "map"):
        # A set with a size is filled by packets: its elements are no rule.
        elements = [] if "size" in item else item.get("elem", [])
        yield ("elements", *where, name), sorted(map(canonical, elements))


def statement(part: Any) -> Any:  # noqa: ANN401 - JSON values of any shape
    """Leave out counts, and how nft's versions differ."""
    if isinstance(part, list):
        return [statement(value) for value in part]
    if not isinstance(part, Mapping):
        return part
    if list(part) == ["|"]:  # nft 1.1 lists the flags of a mask as alternatives, 1.0 as a list
        return statement(part["|"])
    kept = {word: statement(value) for word, value in part.items() if word not in _VOLATILE}
    is_code = kept.get("left") == field("icmp", "code")
    if is_code and kept.get("right") == "port-unreachable":
        kept["right"] = 3  # RFC 792's code, as nft 1.1 lists it
    return kept
