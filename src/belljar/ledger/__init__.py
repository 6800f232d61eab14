"""The append-only, hash-chained, signed record of a run.

Lives here: the chain and the Merkle tree (pure), the one writer, verification, export, and the run
directory.
Must not: interpret events; know what a cell is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.lazy import lazy_names

if TYPE_CHECKING:
    from belljar.ledger.keys import SigningKey, load_or_make_key, local_fingerprint
    from belljar.ledger.listing import read_events
    from belljar.ledger.rundir import RunDirectory, create_run
    from belljar.ledger.schema import Line
    from belljar.ledger.verification import Problem, Status, Verification, parse_line, verify
    from belljar.ledger.writer import LedgerWriter

__all__ = [
    "LedgerWriter",
    "Line",
    "Problem",
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
        "parse_line": "belljar.ledger.verification",
        **dict.fromkeys(
            ("SigningKey", "load_or_make_key", "local_fingerprint"), "belljar.ledger.keys"
        ),
        "read_events": "belljar.ledger.listing",
        **dict.fromkeys(("RunDirectory", "create_run"), "belljar.ledger.rundir"),
        "Line": "belljar.ledger.schema",
        **dict.fromkeys(
            ("Problem", "Status", "Verification", "verify"), "belljar.ledger.verification"
        ),
        "LedgerWriter": "belljar.ledger.writer",
    },
)
