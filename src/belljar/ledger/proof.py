"""Proofs that one event is in a signed ledger, without the others (RFC 9162, section 2.1.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from belljar.errors import LedgerError
from belljar.ledger.chain import leaf_hash, node_hash
from belljar.ledger.files import CHECKPOINTS, open_beneath, open_directory, raw_lines, read_raw
from belljar.ledger.kinds import check_shape, objects, shape_of
from belljar.ledger.schema import MAX_CHECKPOINT_BYTES, Line, parse_checkpoint
from belljar.ledger.verification import parse_line

# A tree of 2^63 leaves has no longer path.
_MAX_STEPS: Final = 63
# A proof may be anybody's: its path is bounded before a step of it is taken.
_SHAPE: Final = shape_of(
    "seq:count event:text path:path checkpoint:text",
    path=objects(shape_of("side:left|right hash:sha256"), max_items=_MAX_STEPS),
)


def prove(run_dir: Path, seq: int) -> dict[str, Any]:
    """Return the event as it stands in the ledger, its path to the root, and the signed root.

    The newest checkpoint is used. Raises `LedgerError` if it doesn't cover the event or isn't of
    these events; `OSError`.
    """
    last = last_checkpoint(run_dir)
    try:
        size = parse_checkpoint(last).size if last else 0
    except ValueError as error:
        raise LedgerError(f"not a checkpoint: {error}", where=str(run_dir)) from error
    if seq >= size:
        raise LedgerError(f"event {seq} is not covered by a signature", where=str(run_dir))
    event, leaves = b"", list[bytes]()
    for _, raw, _ in read_raw(run_dir):
        if len(leaves) == size:
            break
        event = raw if len(leaves) == seq else event
        leaves.append(leaf_hash(raw))
    path = _path(leaves, seq)
    found: dict[str, Any] = {
        "seq": seq,
        "event": event.decode(errors="replace"),  # of other text the check below fails
        "path": [{"side": side, "hash": digest.hex()} for side, digest in path],
        "checkpoint": last.decode(),
    }
    # Against a ledger that was changed since: no proof is handed out that fails elsewhere.
    check_proof(found)
    return found


def last_checkpoint(run_dir: Path) -> bytes:
    """Return the last complete line of the checkpoints, empty if there is none, unchecked."""
    last = b""
    with open_directory(run_dir) as root, open_beneath(root, CHECKPOINTS) as file:
        for _, raw, complete in raw_lines(file, max_bytes=MAX_CHECKPOINT_BYTES, name=CHECKPOINTS):
            last = raw if complete else last
    return last


def check_proof(proof: object) -> tuple[Line, str, str]:
    """Return the proved event, the run's id and the fingerprint of the key that signed.

    The caller compares the key: anybody can sign. Raises `LedgerError`.
    """
    try:
        check_shape(proof, _SHAPE)
        if not isinstance(proof, Mapping):
            raise ValueError("an object is needed")
        checkpoint = parse_checkpoint(proof["checkpoint"].encode())
        raw, index, size = proof["event"].encode(), proof["seq"], checkpoint.size
        event, node = parse_line(raw), leaf_hash(raw)
        for step, side in zip(proof["path"], _sides(index, size), strict=True):
            other = bytes.fromhex(step["hash"])
            if step["side"] != side:
                raise ValueError("the path is not that of this place in the tree")
            node = node_hash(other, node) if side == "left" else node_hash(node, other)
    except ValueError as error:
        raise LedgerError(f"not a proof: {error}") from error
    if event.seq != index or node.hex() != checkpoint.root:
        raise LedgerError("the event is not in the ledger that was signed")
    return event, checkpoint.run_id, checkpoint.key


def _sides(index: int, size: int) -> list[str]:
    """Return on which side each step's other node is, from the leaf up."""
    sides: list[str] = []
    while size > 1:
        left = 1 << (size - 1).bit_length() - 1
        sides.append("right" if index < left else "left")
        index, size = (index, left) if index < left else (index - left, size - left)
    if index:
        raise ValueError("there is no such place in the tree")
    return sides[::-1]


def _path(leaves: Sequence[bytes], index: int) -> list[tuple[str, bytes]]:
    if len(leaves) <= 1:
        return []
    left = 1 << (len(leaves) - 1).bit_length() - 1
    if index < left:
        return [*_path(leaves[:left], index), ("right", _root(leaves[left:]))]
    return [*_path(leaves[left:], index - left), ("left", _root(leaves[:left]))]


def _root(leaves: Sequence[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    left = 1 << (len(leaves) - 1).bit_length() - 1
    return node_hash(_root(leaves[:left]), _root(leaves[left:]))
