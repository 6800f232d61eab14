"""The words of nftables' JSON. Whether nft takes them and lists them again: `tests/integration/test_rules.py`."""

from __future__ import annotations

import json

from belljar.plan import nft


def test_statements_are_json_with_one_word_each() -> None:
    """As libnftables-json(5) has them: an object whose only key is the statement's."""
    statements = [
        nft.ACCEPT,
        nft.DROP,
        nft.TCP_RESET,
        nft.UNREACHABLE,
        nft.FIRST,
        nft.NOT_FIRST,
        nft.FRAGMENT,
        nft.match(nft.IIFNAME, "p0"),
        nft.option("lsrr"),
        nft.counter("a"),
        nft.over(1, 2),
        nft.goto("a"),
        nft.jump("a"),
        nft.log(1, "a", 128),
    ]
    assert all(len(statement) == 1 for statement in statements)
    assert json.loads(json.dumps(statements)) == statements


def test_a_first_segment_is_one_that_is_no_answer() -> None:
    """The two masks part all segments that could begin a connection from those of one that exists."""
    first, other = nft.FIRST["match"], nft.NOT_FIRST["match"]
    assert (first["op"], first["right"], set(first["left"]["&"][1])) == ("==", "syn", {"fin", "syn", "rst", "ack"})
    assert (other["op"], other["right"], set(other["left"]["&"][1])) == ("!=", "syn", {"syn", "ack"})
    assert nft.destination()["concat"][2] == nft.field("th", "dport")
    assert nft.source()["concat"][2] == nft.field("th", "sport")
