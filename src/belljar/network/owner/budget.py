"""How much a range may put into the ledger, counted by its owner: what its gateway says of bounds
is a guest's word. Pure.

Three stages, and no way back. Up to `whole_bytes` every event is recorded as it is. From then on
events are cut down: who, what and verdict stay, bodies are lengths and digests, lists (header
fields) and the rest of long texts are left out; `cut` in their data says so. At `most_bytes` there
is nothing more to take: the range ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from belljar.events import Event, JsonValue

LINE_BYTES: Final = 512
"""Of an event's line beside its data, counted generously."""
BODY_LINE_BYTES: Final = 320
"""Of a body's place in the line, likewise."""
BLOCK_BYTES: Final = 4096
"""A body is a file: it takes whole blocks."""
MAX_CUT_FIELDS: Final = 32
MAX_CUT_CHARS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a range has put on record, and what it may.

    `events` counts those that were recorded, `cut_events` those of them that were cut down.
    """

    whole_bytes: int
    most_bytes: int
    spent_bytes: int = 0
    events: int = 0
    cut_events: int = 0

    @classmethod
    def of(cls, recorded_bytes: int) -> Budget:
        """So many bytes whole, a quarter more cut down."""
        return cls(whole_bytes=recorded_bytes, most_bytes=recorded_bytes + recorded_bytes // 4)

    def take(self, event: Event) -> tuple[Budget, Event | None]:
        """What is spent with this event, and the event as it is to be recorded: whole, cut down, or
        None when there is no room even for that.
        """
        if not self.cut_events and self.spent_bytes + cost_bytes(event) <= self.whole_bytes:
            return self._with(event, cut=False), event
        small = cut_down(event)
        if self.spent_bytes + cost_bytes(small) > self.most_bytes:
            return self, None
        return self._with(small, cut=True), small

    def _with(self, event: Event, *, cut: bool) -> Budget:
        return replace(
            self,
            spent_bytes=self.spent_bytes + cost_bytes(event),
            events=self.events + 1,
            cut_events=self.cut_events + cut,
        )


def cost_bytes(event: Event) -> int:
    """What an event takes of a disk, at least as much as it does: its line, and a file for each
    body.
    """
    bodies = sum(
        BODY_LINE_BYTES + -(-len(body.content) // BLOCK_BYTES) * BLOCK_BYTES
        for body in event.bodies
    )
    return LINE_BYTES + len(json.dumps(event.data, separators=(",", ":"))) + bodies


def cut_down(event: Event) -> Event:
    """The same with its first 32 plain fields, texts cut at 200 characters, no bytes of
    its bodies.
    """
    plain = ((name, value) for name, value in event.data.items() if _is_plain(value))
    data: dict[str, JsonValue] = {
        name[:MAX_CUT_CHARS]: _short(value) for name, value in islice(plain, MAX_CUT_FIELDS)
    }
    bodies = tuple(replace(body, content=b"") for body in event.bodies)
    return replace(event, data={**data, "cut": True}, bodies=bodies)


def _is_plain(value: JsonValue) -> bool:
    return isinstance(value, str) or not isinstance(value, list | tuple | Mapping)


def _short(value: JsonValue) -> JsonValue:
    return (
        f"{value[:MAX_CUT_CHARS]}…"
        if isinstance(value, str) and len(value) > MAX_CUT_CHARS
        else value
    )
