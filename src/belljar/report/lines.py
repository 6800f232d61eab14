"""Reads the events of a run directory for a report. Verification is `ledger.verify`'s; here a line that can't be read
ends the reading, aloud.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from belljar.errors import LedgerError

LEDGER: Final = "ledger.jsonl"
_MAX_BODY_BYTES: Final = 16 << 20


def read_events(run_dir: Path) -> Iterator[Mapping[str, Any]]:
    """The lines of a run's ledger in order, each with its `data` whole (an object that was too large for its line is
    fetched from its body).

    Raises `LedgerError` for a line that is not an event.
    """
    with (run_dir / LEDGER).open("rb") as file:
        for number, text in enumerate(file):
            try:
                line = json.loads(text)
                yield {**line, "data": _whole(run_dir, line)}
            except (ValueError, TypeError, KeyError, OSError) as error:
                raise LedgerError(
                    f"line {number} is not an event: {error}",
                    where=str(run_dir / LEDGER),
                    mend="run `belljar ledger verify` on it",
                ) from error


def _whole(run_dir: Path, line: Mapping[str, Any]) -> Mapping[str, Any]:
    data: Mapping[str, Any] = line["data"]
    name = data.get("$body")
    if name is None:
        return data
    body = next(body for body in line["bodies"] if body["name"] == name)
    digest = body.get("stored_sha256") or body["sha256"]
    if not (isinstance(digest, str) and len(digest) == 64 and digest.isalnum()):
        raise ValueError("a body without a digest")
    with (run_dir / "bodies" / digest[:2] / digest).open("rb") as file:
        whole: Mapping[str, Any] = json.loads(file.read(_MAX_BODY_BYTES))
    return whole
