"""Which recorded events show that a decoy service was reached, or what was presented to it.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from belljar.events import Actor, Event, Kind, Trust

MAX_CONNECTIONS: Final = 10_000
"""That are remembered as reported: as many as a gateway holds open."""
_CONTACTS: Final = frozenset(
    {
        Kind.NETWORK_STREAM,
        Kind.NETWORK_TLS,
        Kind.NETWORK_HTTP,
        Kind.NETWORK_WEBSOCKET,
        Kind.NETWORK_CONNECTION,
    }
)


class ServiceContacts:
    """Of one range. `addresses`: of each decoy service its address → its id."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = dict(addresses)
        self._ids = frozenset(addresses.values())
        self._reported: dict[object, None] = {}

    def records_itself(self, event: Event) -> bool:
        """Whether this is a raw stream to a service, which has put on record all that came on it,
        with what it was: a login is no data that was sent."""
        return event.kind is Kind.NETWORK_STREAM and event.data.get("stand_in") in self._ids

    def touched(self, event: Event, evidence: int) -> Event | None:
        """What to record of the first event of a connection to a service."""
        data = event.data
        if event.kind not in _CONTACTS or data.get("traffic_analysis") is True:
            return None
        decoy = data.get("stand_in") or self._addresses.get(str(data.get("address", "")))
        connection = data.get("connection")
        if decoy not in self._ids or connection in self._reported:
            return None
        self._reported[connection] = None
        if len(self._reported) > MAX_CONNECTIONS:
            del self._reported[next(iter(self._reported))]
        where = {name: data[name] for name in ("range", "cell", "connection") if name in data}
        return Event(
            kind=Kind.DECOY_TOUCHED,
            cell_id=event.cell_id,
            actor=Actor.GUEST,
            trust=Trust.HOST_OBSERVED,
            data={"decoy": decoy, "operation": "connect", "evidence": evidence, **where},
        )
