"""The verdict as an in-toto statement (1.0) in a DSSE envelope (1.0)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from belljar.ledger.chain import canonical
from belljar.ledger.keys import SigningKey

_PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
_PREDICATE_TYPE: Final = "https://belljar.invalid/verdict/v1"  # a name: the project has no address


def statement(
    run_id: str, root: str, logs: Mapping[str, str], verdict: Mapping[str, Any], key: SigningKey
) -> dict[str, Any]:
    """Sign a statement about a ledger's root and logs (name → SHA-256)."""
    subjects = {f"belljar-run/{run_id}/ledger-root": root, **logs}
    content = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": sha}} for name, sha in subjects.items()],
        "predicateType": _PREDICATE_TYPE,
        "predicate": dict(verdict),
    }
    payload, kind = canonical(content), _PAYLOAD_TYPE.encode()
    signed = b" ".join((b"DSSEv1", b"%d" % len(kind), kind, b"%d" % len(payload), payload))
    signature = base64.b64encode(bytes.fromhex(key.sign(signed))).decode()
    return {
        "payloadType": _PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": key.fingerprint, "sig": signature}],
    }
