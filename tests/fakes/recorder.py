"""A record in memory, where there is no run directory."""

from __future__ import annotations

from belljar.events import Event, Kind


class MemoryRecorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, event: Event) -> int:
        self.events.append(event)
        return len(self.events) - 1

    def kinds(self) -> list[Kind]:
        return [event.kind for event in self.events]
