"""Reckons how much of the disk a range's events take. Pure."""

from __future__ import annotations

import json
from typing import Final

from belljar.events import Event

# An event's line beside its data, counted generously.
LINE_BYTES: Final = 512
# A body's place in the line, likewise.
BODY_LINE_BYTES: Final = 320
# A body is a file: it takes whole blocks.
BLOCK_BYTES: Final = 4096


def cost_bytes(event: Event) -> int:
    """An upper bound of disk use, bodies included."""
    bodies = sum(
        BODY_LINE_BYTES + -(-len(body.content) // BLOCK_BYTES) * BLOCK_BYTES
        for body in event.bodies
    )
    return LINE_BYTES + len(json.dumps(event.data, separators=(",", ":"))) + bodies
