"""Canonical JSON (RFC 8785), digests, the hash chain and the Merkle tree. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

import rfc8785

from belljar.dataclass import dataclass

NO_LINE: Final = "0" * 64  # the `prev` of the first line

_MAX_INT: Final = 2**53 - 1  # JSON's numbers are doubles, which are exact up to here
_MAX_DIGITS: Final = len(str(-_MAX_INT))
# Of objects and lists: whoever copies or shows what was read goes as deep as it is.
_MAX_DEPTH: Final = 100


def sha256_hex(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def canonical(value: object) -> bytes:
    """Return the RFC 8785 form; lone surrogates are escaped, since guests choose text.

    Raises `ValueError` for NaN, infinities, integers beyond ±(2^53 − 1), nesting over 100, and
    what is not JSON.
    """
    anything: Any = value  # The library itself refuses what is not JSON.
    try:
        try:
            found = rfc8785.dumps(anything)
        except (rfc8785.CanonicalizationError, UnicodeEncodeError):  # the latter of a name
            # Only now: most data needs no copy.
            found = rfc8785.dumps(_encodable(anything))
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if found.count(b"{") + found.count(b"[") > _MAX_DEPTH:
        level = [anything]
        for _ in range(_MAX_DEPTH):
            level = [
                inner
                for each in level
                if isinstance(each, dict | list | tuple)
                for inner in (each.values() if isinstance(each, dict) else each)
            ]
        if any(isinstance(each, dict | list | tuple) for each in level):
            raise ValueError(_TOO_DEEP)
    return found


_TOO_DEEP: Final = "nested too deeply"


def parse_canonical(line: bytes) -> dict[str, Any]:
    """Read an object. Raises `ValueError`, also for duplicate keys."""

    def number(digits: str) -> int | float:
        # JSON's numbers are doubles: a larger integer can only be canonical in a float's form.
        exact = len(digits) <= _MAX_DIGITS and abs(int(digits)) <= _MAX_INT
        return int(digits) if exact else float(digits)

    try:
        value = json.loads(line, parse_int=number)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    # One spelling: else two readers could see different events in the same bytes.
    if canonical(value) != line:
        raise ValueError("not in canonical form (RFC 8785)")
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _encodable(value: Any) -> Any:  # noqa: ANN401 - JSON, whatever it is
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        made = {_encodable(key): _encodable(inner) for key, inner in value.items()}
        if len(made) != len(value):
            raise ValueError("two names that are one when escaped")
        return made
    return [_encodable(inner) for inner in value] if isinstance(value, list | tuple) else value


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True, slots=True)
class MerkleTree:
    """The tree of the leaves so far; immutable, so a writer replaces its state at once.

    `subtrees`: roots of perfect subtrees, largest first, one per 1 bit of `size`.
    """

    size: int = 0
    subtrees: tuple[bytes, ...] = ()

    def added(self, entry: bytes) -> MerkleTree:
        # Another first byte than a node's, so that no node can pass for an entry (RFC 6962, 2.1).
        node = hashlib.sha256(b"\x00" + entry).digest()
        size, keep = self.size, len(self.subtrees)
        while size & 1:
            keep -= 1
            node = node_hash(self.subtrees[keep], node)
            size >>= 1
        return MerkleTree(self.size + 1, (*self.subtrees[:keep], node))

    def root(self) -> bytes:
        if not self.subtrees:  # RFC 6962, 2.1
            return hashlib.sha256(b"").digest()
        *rest, node = self.subtrees
        for left in reversed(rest):
            node = node_hash(left, node)
        return node
