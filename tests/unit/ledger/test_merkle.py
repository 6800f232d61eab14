"""The incremental tree against RFC 9162's own recursive definition."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from belljar.ledger.chain import MerkleTree


def tree_hash(entries: list[bytes]) -> bytes:
    """RFC 9162, section 2.1.1, word for word."""
    if not entries:
        return hashlib.sha256(b"").digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\x00" + entries[0]).digest()
    k = 1
    while k * 2 < len(entries):
        k *= 2
    return hashlib.sha256(b"\x01" + tree_hash(entries[:k]) + tree_hash(entries[k:])).digest()


@given(st.lists(st.binary(max_size=40), max_size=70))
def test_every_prefix_has_the_root_of_the_definition(entries: list[bytes]) -> None:
    """After each leaf, size and root are those of the recursive definition."""
    tree = MerkleTree()
    for index, entry in enumerate(entries):
        assert (tree.size, tree.root()) == (index, tree_hash(entries[:index]))
        tree = tree.added(entry)
    assert tree.root() == tree_hash(entries)
