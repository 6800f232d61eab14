"""Scans what a cell sends before it goes on, where the guard blocks or stops.

Where it only flags, the owner scans what is recorded.
An incomplete scan blocks only what would reach a real service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from belljar.events import JsonValue
from belljar.network.gateway.config import GuardConfig
from belljar.network.ipc import Item
from belljar.policy.guarding import Action, GuardRules, Place
from belljar.signals.observe import Carried, Contact, hit_event, unscanned
from belljar.signals.scanner import Scanner
from belljar.signals.streams import StreamScanner
from belljar.signals.values import Channel

SCAN_TIMEOUT_S: Final = 0.5  # The gateway is blocked while it scans.
_SCANNED_FIRST: Final = frozenset({Action.BLOCK, Action.STOP})


class Guard:
    """One gateway's. Without `config` it blocks nothing."""

    def __init__(self, config: GuardConfig | None, upstreams: frozenset[str] = frozenset()) -> None:
        self._rules = GuardRules(actions={} if config is None else config.actions)
        self._upstreams = upstreams
        self._streams: StreamScanner | None = None
        if config is not None:
            bounds = replace(config.spec.bounds, time_s=SCAN_TIMEOUT_S)
            scanner = Scanner(replace(config.spec, bounds=bounds))
            self._streams = StreamScanner(scanner)

    def scans(self, stand_in: str) -> bool:
        """Whether what goes there is scanned first."""
        action = self._rules.action(self._place(stand_in))
        return self._streams is not None and action in _SCANNED_FIRST

    def scan(
        self,
        stand_in: str,
        channel: Channel,
        name: str,
        data: bytes,
        common: Mapping[str, JsonValue],
    ) -> tuple[list[Item], bool]:
        """What to record of a scan of one part of a flow, and whether to block it.

        Takes a few `SCAN_TIMEOUT_S` at most. `common`: fields of all events.
        """
        if self._streams is None or not self.scans(stand_in):
            return [], False
        place, flow = self._place(stand_in), _flow(stand_in, channel, common)
        part = Carried(
            place=place,
            channel=channel,
            flow=flow,
            part=name,
            operation=f"{channel.value}.{name}",
            contact=Contact.SENT,
            data=data,
            to=stand_in,
            where=common,
        )
        scanned, action = self._streams.feed(flow, channel, name, data), self._rules.action(place)
        events = [hit_event(part, hit, cell_id=None, action=action) for hit in scanned.hits]
        if not scanned.complete:
            events.append(unscanned(part, cell_id=None, evidence=None, reason=scanned.problem))
        is_blocked = bool(scanned.hits) or (not scanned.complete and place is Place.UPSTREAM)
        return [Item(event.kind, event.data) for event in events], is_blocked

    def end(self, stand_in: str, common: Mapping[str, JsonValue]) -> None:
        """Forget a raw connection that is over: others' flows would give way to it."""
        if self._streams is not None:
            self._streams.end(_flow(stand_in, Channel.STREAM, common))

    def _place(self, stand_in: str) -> Place:
        return Place.UPSTREAM if stand_in in self._upstreams else Place.RANGE


def _flow(stand_in: str, channel: Channel, common: Mapping[str, JsonValue]) -> str:
    flow = f"{common.get('cell', '')}/{channel.value}/{stand_in}"
    # Bytes of another connection must not come in between.
    return f"{flow}/{common.get('connection', '')}" if channel is Channel.STREAM else flow


def warm_up(config: GuardConfig) -> None:
    """Load what a scan imports, before confinement. Raises `HostError`."""
    # The automaton is made once, by `Guard`
    Scanner(replace(config.spec, values=())).scan(_WARM_UP)


# A frame of zstd, whose reader is imported late.
_WARM_UP: Final = bytes.fromhex("28b52ffd200361 0900616263")
