"""What a range's events take of the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from belljar.events import Body, Event, Kind
from belljar.ledger.keys import load_or_make_key
from belljar.ledger.writer import LedgerWriter
from belljar.network.owner.budget import BLOCK_BYTES, cost_bytes


def test_a_ledger_takes_no_more_than_was_counted(tmp_path: Path) -> None:
    """Lines and files of the real one, in blocks: long texts and hostile ones, floats with many
    digits, many small bodies, a large one."""
    run = tmp_path / "run"
    run.mkdir()
    data: dict[str, Any] = {"stand_in": "shop", "what": "publish", "range": "r-0"}
    texts: list[Any] = [
        "",
        "x" * 40_000,
        "\x00" * 9000,
        "\u20ac" * 9000,
        9e15,
        [1e-6] * 1000,
        2**53 - 1,
    ]
    events = [Event(kind=Kind.NETWORK_ATTEMPT, data={**data, "more": text}) for text in texts]
    for size in (*range(1, 40), 1 << 18):
        content = size.to_bytes(4, "big") * size
        kept = Body(
            name="b" * 64, content=content[:-1], total_bytes=2**53 - 1, sha256=f"{size:064x}"
        )
        events.append(Event(kind=Kind.NETWORK_ATTEMPT, data=data, bodies=(kept,)))
    with LedgerWriter(run, load_or_make_key(tmp_path)) as writer:
        for event in events:
            writer.record(event)
        sizes = [file.stat().st_size for file in run.glob("bodies/*/*")]
        taken = (run / "ledger.jsonl").stat().st_size + sum(
            -(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes
        )
    assert len(sizes) == 40
    assert taken <= sum(map(cost_bytes, events)) < 2 * taken
