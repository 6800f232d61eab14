"""The verdict as an in-toto statement in a DSSE envelope, signed by the key that sealed the run.

in-toto Attestation Framework 1.0; DSSE 1.0: the signature covers `PAE(type, payload)`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from belljar.ledger.chain import canonical
from belljar.ledger.keys import SigningKey

# in-toto's, as DSSE signs it along with the statement.
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
PREDICATE_TYPE: Final = "https://belljar.invalid/verdict/v1"  # a name: the project has no address


def statement(
    run_id: str, root: str, logs: Mapping[str, str], predicate: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the statement: ledger root and logs (name → SHA-256) are what it is about."""
    subjects = {f"belljar-run/{run_id}/ledger-root": root, **logs}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": sha}} for name, sha in subjects.items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": dict(predicate),
    }


def envelope(content: Mapping[str, Any], key: SigningKey) -> dict[str, Any]:
    """Return the signed envelope; its key id is the fingerprint that `ledger verify` prints."""
    payload = canonical(content)
    kind = PAYLOAD_TYPE.encode()
    signed = b" ".join((b"DSSEv1", b"%d" % len(kind), kind, b"%d" % len(payload), payload))
    signature = base64.b64encode(bytes.fromhex(key.sign(signed))).decode()
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": key.fingerprint, "sig": signature}],
    }
