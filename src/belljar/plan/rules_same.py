"""Whether the rules that the kernel lists are the rules that were rendered: compared as a whole,
each difference in a sentence. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NewType

_VOLATILE: Final = frozenset({"handle", "index", "packets", "bytes", "used"})
_TO_REWRITE: Final = re.compile(
    "|".join(re.escape(f'"{word}"') for word in (*_VOLATILE, "|", "port-unreachable"))
)
"""What `_statement` changes has one of these words in it; most rules have none."""
_MAX_DIFFERENCES: Final = 20
_SHOWN_CHARS: Final = 300
_ICMP_PORT_UNREACHABLE: Final = 3
_Key = tuple[str, str, str, str]
KnownRules = NewType("KnownRules", "Mapping[_Key, list[str]]")
"""Rendered rules as they are compared."""
_encode: Final = json.JSONEncoder(sort_keys=True, default=str).encode


def same_rules(rendered: Mapping[str, Any], listed: Mapping[str, Any]) -> tuple[str, ...]:
    """How the rules of a namespace (`nft -j list ruleset`, the whole of it: a table too many is a
    difference) differ from `render_rules`; empty: not at all.

    Left out are handles, counts, the order of a set's elements and what is in a set that packets
    fill. Rules are compared in their order. At most 20 differences are told, each at most a line. A
    listing that isn't one is a difference.
    """
    return changed_rules(known_rules(rendered), listed)


def known_rules(rendered: Mapping[str, Any]) -> KnownRules:
    """What `changed_rules` compares with, made once."""
    return KnownRules(_objects(rendered))


def changed_rules(known: KnownRules, listed: Mapping[str, Any]) -> tuple[str, ...]:
    """As `same_rules`."""
    try:
        have = _objects(listed)
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        return (f"the listed rules can't be read: {type(exc).__name__}",)
    return tuple(_differences(known, have))[:_MAX_DIFFERENCES]


def _differences(want: Mapping[_Key, list[str]], have: Mapping[_Key, list[str]]) -> Iterator[str]:
    for key in sorted({*want, *have}, key=_order):
        name, table = _shown(key), ("table", *key[1:3], "")
        if key != table and (table not in have or table not in want):
            continue
        if key not in have:
            yield f"{name} is gone"
        elif key not in want:
            yield f"{name} is not ours"
        elif want[key] != have[key]:
            yield from _changed(name, want[key], have[key])


def _order(key: _Key) -> tuple[bool, _Key]:
    return key[0] != "table", key


def _shown(key: _Key) -> str:
    kind, family, table, name = key
    of = f" {name}" if name else ""
    return f"{kind}{of} of {family} {table}" if kind != "table" else f"table {family} {table}"


def _changed(name: str, want: list[str], have: list[str]) -> Iterator[str]:
    if len(want) > 1 or len(have) > 1 or name.startswith("rules"):
        missing, extra = (
            [item for item in want if item not in have],
            [item for item in have if item not in want],
        )
        yield from (f"{name} lack {item[:_SHOWN_CHARS]}" for item in missing)
        yield from (f"{name} have besides {item[:_SHOWN_CHARS]}" for item in extra)
        if not missing and not extra:
            yield f"{name} are in another order or number"
        return
    yield f"{name} is {' '.join(have)[:_SHOWN_CHARS]}"


def _objects(document: Mapping[str, Any]) -> dict[_Key, list[str]]:
    """Every object by what and where it is.

    The rules of a chain are one, in order; a set's elements are one, sorted.
    """
    found: dict[_Key, list[str]] = {}
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
        yield (
            (kind, *where, ""),
            [_text({name: value for name, value in item.items() if name not in _VOLATILE})],
        )
        return
    if kind == "rule":
        yield ("rules", *where, str(item["chain"])), [_rule(item["expr"])]
        return
    name = str(item["name"])
    body = {word: value for word, value in item.items() if word not in _VOLATILE and word != "elem"}
    yield (kind, *where, name), [_text(_without_dynamic(body))]
    if kind == "chain":
        yield ("rules", *where, name), []
    if kind in ("set", "map"):
        yield (
            ("elements", *where, name),
            [] if "size" in item else sorted(_text(element) for element in item.get("elem", [])),
        )


def _without_dynamic(body: dict[str, Any]) -> dict[str, Any]:
    """nft 1.0 doesn't list this flag in JSON, newer ones do."""
    flags = [flag for flag in body.get("flags", []) if flag != "dynamic"]
    kept = {word: value for word, value in body.items() if word != "flags"}
    return {**kept, "flags": flags} if flags else kept


def _rule(statements: list[Any]) -> str:
    text = _text(statements)
    return _text([_statement(part) for part in statements]) if _TO_REWRITE.search(text) else text


def _statement(part: Any) -> Any:  # noqa: ANN401 - JSON values of any shape
    """A statement without what counts, in one of the forms in which nft's versions list it
    (compared: 1.0.6 and 1.1.3).
    """
    if isinstance(part, list):
        return [_statement(value) for value in part]
    if not isinstance(part, Mapping):
        return part
    if list(part) == ["|"]:
        return _statement(part["|"])
    kept = {word: _statement(value) for word, value in part.items() if word not in _VOLATILE}
    is_code = kept.get("left") == {"payload": {"protocol": "icmp", "field": "code"}}
    return (
        {**kept, "right": _ICMP_PORT_UNREACHABLE}
        if is_code and kept.get("right") == "port-unreachable"
        else kept
    )


def _text(value: Any) -> str:  # noqa: ANN401 - JSON values of any shape
    return _encode(value)
