"""The incremental tree against RFC 9162's own recursive definition."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from belljar.ledger.chain import EMPTY_ROOT, MerkleTree, leaf_hash, node_hash


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


def test_known_answers() -> None:
    """The published vectors of the certificate-transparency reference tree (0, 1, 2 and 8
    leaves)."""
    leaves = [
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    ]
    roots = {
        0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    }
    tree = MerkleTree()
    for index, leaf in enumerate(leaves):
        assert tree.root().hex() == roots.get(index, tree.root().hex())
        tree = tree.added(bytes.fromhex(leaf))
    assert tree.root().hex() == roots[8]


def test_leaves_and_nodes_are_told_apart() -> None:
    """A leaf that holds two hashes is not the node above them."""
    assert leaf_hash(b"a" * 64) != node_hash(b"a" * 32, b"a" * 32)
    assert MerkleTree().root() == EMPTY_ROOT
