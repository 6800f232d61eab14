"""The append-only, hash-chained, signed record of a run.

Chain and Merkle tree (pure), the one writer, verification, run directory. Interprets no events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.lazy import lazy_names

if TYPE_CHECKING:
    from belljar.ledger.keys import SigningKey, load_or_make_key, local_fingerprint
    from belljar.ledger.listing import read_events
    from belljar.ledger.rundir import RunDirectory, create_run
    from belljar.ledger.schema import Line
    from belljar.ledger.verification import Status, Verification, parse_line, verify
    from belljar.ledger.writer import LedgerWriter

__all__ = [
    "LedgerWriter",
    "Line",
    "RunDirectory",
    "SigningKey",
    "Status",
    "Verification",
    "create_run",
    "load_or_make_key",
    "local_fingerprint",
    "parse_line",
    "read_events",
    "verify",
]

__getattr__ = lazy_names(
    __name__,
    {
        name: f"belljar.ledger.{module}"
        for module, names in (
            ("keys", ("SigningKey", "load_or_make_key", "local_fingerprint")),
            ("listing", ("read_events",)),
            ("rundir", ("RunDirectory", "create_run")),
            ("schema", ("Line",)),
            ("verification", ("Status", "Verification", "parse_line", "verify")),
            ("writer", ("LedgerWriter",)),
        )
        for name in names
    },
)
