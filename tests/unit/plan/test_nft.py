"""nftables' JSON: its statements, and differences between rendered and listed rules."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.plan import nft
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan, PortPlan, StandInPlan
from belljar.plan.nft import changed_rules, known_rules
from belljar.plan.rules import render_rules

HTTP = (PortPlan(number=80, protocol="http"),)
PLAN = NetworkPlan(stand_ins=(StandInPlan(id="a", kind="http", names=("a", "b"), ports=HTTP),))
RENDERED = render_rules(lay_out(PLAN, ("default",), random_bytes=bytes(16), avoid=()), PLAN)
KNOWN = known_rules(RENDERED)


def listed() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = [{"metainfo": {"version": "1.0.6"}}]
    for handle, command in enumerate(RENDERED["nftables"][1:]):
        ((kind, item),) = copy.deepcopy(command["add"]).items()
        item["handle"] = handle
        if kind == "counter":
            item |= {"packets": handle, "bytes": 7}
        if "elem" in item:
            item["elem"].reverse()
        entries.append({kind: item})
    return entries


def test_what_only_counts_is_no_difference() -> None:
    """Handles, packets, the order of elements, and what packets put into a set."""
    entries = listed()
    (refused,) = (item["set"] for item in entries if item.get("set", {}).get("name") == "refused")
    refused |= {"elem": [{"elem": {"val": "p0"}}], "flags": ["dynamic"]}
    assert changed_rules(KNOWN, {"nftables": entries}) == ()


def test_nfts_versions_list_the_same_in_different_words() -> None:
    """1.1's masks and number of an ICMP code are no difference; another number is one."""

    def newer(part: Any) -> Any:  # noqa: ANN401 - JSON values
        if isinstance(part, list):
            return [newer(item) for item in part]
        if not isinstance(part, dict):
            return part
        shown = {word: newer(item) for word, item in part.items()}
        if "&" in shown and isinstance(shown["&"][1], list):
            shown["&"][1] = {"|": shown["&"][1]}
        if shown.get("left") == nft.field("icmp", "code"):
            shown["right"] = 3
        return shown

    entries = newer(listed())
    assert entries != listed()
    assert changed_rules(KNOWN, {"nftables": entries}) == ()
    text = json.dumps({"nftables": entries})
    for other in (text.replace(": 3}", ": 12}"), text.replace("rst", "psh")):
        assert changed_rules(KNOWN, json.loads(other)) != ()


@pytest.mark.promise("2.5")
@given(st.data())
def test_any_object_left_out_or_swapped_is_seen(data: st.DataObject) -> None:
    """Whichever it is; a rule's place matters too."""
    entries = listed()
    if data.draw(st.booleans()):
        del entries[data.draw(st.integers(1, len(entries) - 1))]
        assert changed_rules(KNOWN, {"nftables": entries}) != ()
        return
    rules = [index for index in range(len(entries)) if "rule" in entries[index]]
    one = data.draw(st.sampled_from([index for index in rules if index + 1 in rules]))
    first, second = (entries[at]["rule"] for at in (one, one + 1))
    same = first["expr"] == second["expr"] or any(
        first[word] != second[word] for word in ("chain", "family")
    )
    entries[one], entries[one + 1] = entries[one + 1], entries[one]
    assert (changed_rules(KNOWN, {"nftables": entries}) == ()) is same


_KEYS = st.sampled_from(["nftables", "rule", "table", "name", "family", "chain", "expr", "x"])
_LISTINGS = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=10,
)


@given(_LISTINGS)
def test_a_listing_that_is_none_is_a_difference(value: object) -> None:
    """What a broken tool prints is never the right rules, and never an exception."""
    listing = value if isinstance(value, dict) else {"nftables": value}
    assert changed_rules(KNOWN, listing) != ()
    assert json.dumps(changed_rules(KNOWN, listing))
