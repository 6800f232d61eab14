"""The Merkle tree hash of RFC 9162, section 2.1.1, computed as leaves arrive. Pure.

Why a tree beside the hash chain: one 32-byte root commits to a prefix of the ledger, and a proof of
one event needs only a path, not the whole file.
"""

from __future__ import annotations

import hashlib
from typing import Final

from belljar.dataclass import dataclass

EMPTY_ROOT: Final = hashlib.sha256(b"").digest()


def leaf_hash(entry: bytes) -> bytes:
    """The hash of a leaf: SHA-256 of a zero byte and the entry."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node: SHA-256 of a one byte and both children."""
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True, slots=True)
class MerkleTree:
    """The tree of the leaves so far.

    Immutable, so that a writer can replace its whole state at once. Memory: one hash per bit of the
    size.
    """

    size: int = 0
    subtrees: tuple[bytes, ...] = ()
    """Roots of perfect subtrees, largest first: one for each 1 bit of `size`."""

    def added(self, entry: bytes) -> MerkleTree:
        """The tree with one more leaf."""
        node, size, keep = leaf_hash(entry), self.size, len(self.subtrees)
        while size & 1:
            keep -= 1
            node = node_hash(self.subtrees[keep], node)
            size >>= 1
        return MerkleTree(self.size + 1, (*self.subtrees[:keep], node))

    def root(self) -> bytes:
        """The tree hash of all leaves so far; of no leaves, SHA-256 of nothing. O(log size)."""
        if not self.subtrees:
            return EMPTY_ROOT
        *rest, node = self.subtrees
        for left in reversed(rest):
            node = node_hash(left, node)
        return node
