"""What a range may put on record, in bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from belljar.events import Event, JsonValue, Kind
from belljar.network.ipc import SECRETS

# An event's line beside its data, counted generously.
LINE_BYTES: Final = 512
# A body's place in the line, likewise.
BODY_LINE_BYTES: Final = 320
# A body is a file: it takes whole blocks.
BLOCK_BYTES: Final = 4096
MAX_CUT_FIELDS: Final = 32
MAX_CUT_CHARS: Final = 200
MAX_SECRETS_BYTES: Final = 4 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a range has recorded, and may. Pure.

    Events are whole up to `whole_bytes`, then cut down: no body bytes or lists, short texts.
    At `max_bytes` the range ends.
    """

    whole_bytes: int
    max_bytes: int
    spent_bytes: int = 0
    events: int = 0
    cut_events: int = 0

    @classmethod
    def of(cls, recorded_bytes: int) -> Budget:
        """`whole_bytes`, and a quarter more cut down."""
        return cls(whole_bytes=recorded_bytes, max_bytes=recorded_bytes + recorded_bytes // 4)

    def take(self, event: Event) -> tuple[Budget, Event | None]:
        """The new budget and recorded event; None: no room."""
        if not self.cut_events and self.spent_bytes + cost_bytes(event) <= self.whole_bytes:
            return self._with(event, cut=False), event
        small = cut_down(event)
        if self.spent_bytes + cost_bytes(small) > self.max_bytes:
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
    """An upper bound of disk use, bodies included."""
    bodies = sum(
        BODY_LINE_BYTES + -(-len(body.content) // BLOCK_BYTES) * BLOCK_BYTES
        for body in event.bodies
    )
    return LINE_BYTES + len(json.dumps(event.data, separators=(",", ":"))) + bodies


def cut_down(event: Event) -> Event:
    """32 plain fields, texts of 200 characters, no body bytes but the secrets of a connection."""
    data: dict[str, JsonValue] = {}
    for name, value in event.data.items():
        if isinstance(value, list | tuple | Mapping) or len(data) == MAX_CUT_FIELDS:
            continue
        if isinstance(value, str) and len(value) > MAX_CUT_CHARS:
            value = f"{value[:MAX_CUT_CHARS]}…"
        data[name[:MAX_CUT_CHARS]] = value
    # Secrets of a handshake take some 1 KB: no other body passes as one
    is_connection = event.kind is Kind.NETWORK_CONNECTION
    bodies = tuple(
        body
        if is_connection and body.name == SECRETS and len(body.content) <= MAX_SECRETS_BYTES
        else replace(body, content=b"")
        for body in event.bodies
    )
    return replace(event, data={**data, "cut": True}, bodies=bodies)
