"""Checkpoints: what is signed, and whether a line of `checkpoints.jsonl` is one. Pure.

They have a file of their own so that the ledger holds events only: a checkpoint in the ledger would
be covered by the next one, so the last could never be, and its writing would have to take turns
with `record`. Here a checkpoint is signed and forced to the disk by another thread while events go
on.
"""

from __future__ import annotations

from typing import Any, Final

from belljar.ledger.chain import canonical, parse_canonical
from belljar.ledger.keys import SigningKey, fingerprint_of, signature_is_good
from belljar.ledger.merkle import MerkleTree
from belljar.ledger.schema import SCHEMA_VERSION, Checkpoint

_DOMAIN: Final = b"ledger checkpoint v1\n"
MAX_CHECKPOINT_BYTES: Final = 4096


def make_checkpoint(
    key: SigningKey,
    tree: MerkleTree,
    *,
    run_id: str,
    number: int,
    prev: str,
    time: str,
    manifest_sha256: str | None = None,
) -> bytes:
    """A signed checkpoint line, without its newline.

    With a manifest's digest it is the final one.
    """
    statement = {
        "v": SCHEMA_VERSION,
        "run_id": run_id,
        "number": number,
        "prev": prev,
        "size": tree.size,
        "root": tree.root().hex(),
        "time": time,
        "key": key.fingerprint,
        "public_key": key.public_key,
        "final": manifest_sha256 is not None,
        "manifest_sha256": manifest_sha256,
    }
    return canonical(statement | {"signature": key.sign(_payload(statement))})


def parse_checkpoint(line: bytes) -> Checkpoint:
    """A checkpoint whose signature is good for the key it names.

    Whose key that is, the caller must know.

    Raises:
        ValueError: not a checkpoint, or not signed by the key it names.
    """
    statement = parse_canonical(line)
    checkpoint = Checkpoint.read(statement)
    signature = statement.pop("signature")
    if checkpoint.key != fingerprint_of(checkpoint.public_key):
        raise ValueError("the fingerprint is not that of the public key beside it")
    if not signature_is_good(checkpoint.public_key, signature, _payload(statement)):
        raise ValueError("the signature is not good")
    if checkpoint.final != (checkpoint.manifest_sha256 is not None):
        raise ValueError("a final checkpoint, and only that, names the manifest's digest")
    return checkpoint


def _payload(statement: dict[str, Any]) -> bytes:
    return _DOMAIN + canonical(statement)
