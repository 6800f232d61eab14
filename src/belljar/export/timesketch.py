"""Lines for Timesketch's importer (`datetime`, `timestamp_desc`, `message`), one per event."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from belljar.ledger.schema import Line
from belljar.units import printable


def timesketch(lines: Iterable[Line], run_id: str) -> Iterator[dict[str, Any]]:
    """Yield each event; its data is flat, as the importer wants it, each field with `data_`."""
    for line in lines:
        words = [f"{name}={_text(value)}" for name, value in line.data.items()]
        yield {
            "datetime": line.time,
            "timestamp": int(datetime.fromisoformat(line.time).timestamp() * 1e6),
            "timestamp_desc": line.kind.value,
            "message": printable(" ".join((line.cell or run_id, line.kind.value, *words))),
            "run": run_id,
            "seq": line.seq,
            "cell": line.cell or "",
            "actor": line.actor.value,
            "trust": line.trust.value,
            **{f"data_{name}": _text(value) for name, value in line.data.items()},
        }


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
