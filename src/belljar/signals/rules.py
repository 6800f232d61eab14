"""The policy's `on`: an event and the rules → what is to be stopped. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from belljar.dataclass import dataclass
from belljar.events import Event, Kind
from belljar.policy.guarding import GUARD_CLASSES, Action, Stop, Trigger, stop_for

_TRIGGERS: Final = {
    Kind.DECOY_TOUCHED: Trigger.DECOY_TOUCHED,
    Kind.DECOY_TAKEN: Trigger.DECOY_TAKEN,
    Kind.DECOY_USED: Trigger.DECOY_USED,
    Kind.DECOY_SENT: Trigger.SENT,
    Kind.DECOY_CARRIED: Trigger.BREACH,
}
_WORDS: Final = {
    Trigger.DECOY_TOUCHED: "a decoy was touched",
    Trigger.DECOY_TAKEN: "a decoy was taken",
    Trigger.DECOY_USED: "a decoy was used",
    Trigger.SENT: "a decoy or protected data was sent",
    Trigger.BREACH: "containment was breached",
}
_ENDPOINTS: Final = {"range", "upstream"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """What is to be stopped, and why.

    `name`: the cell or range that it is about, "" for none. `evidence`: the event's number, None
    when it could not be recorded.
    """

    stop: Stop
    rule: str
    reason: str
    name: str = ""
    evidence: int | None = None


def trigger_of(event: Event) -> Trigger | None:
    """What an event is to the rules; None for most.

    Not a range's failure: its cells are ended with the breach as their error, which trips when it
    leaves them.
    """
    data = event.data
    match event.kind:
        case Kind.GUARD_HIT:
            is_protected = bool(data.get("value")) or data.get("class") in GUARD_CLASSES
            return Trigger.SENT if is_protected and data.get("place") in _ENDPOINTS else None
        case Kind.PROBE_COMPLETED:
            return Trigger.BREACH if data.get("verdict") == "breached" else None
        case Kind.CELL_DESTROYED | Kind.RANGE_DESTROYED:
            return Trigger.BREACH if data.get("survivors") else None
    return _TRIGGERS.get(event.kind)


def trip_of(event: Event, number: int | None, stops: Mapping[Trigger, Stop]) -> Trip | None:
    """What the rules stop because of this event; None: nothing."""
    trigger = trigger_of(event)
    stop = Stop.NOTHING if trigger is None else stop_for(stops, trigger)
    is_told = event.kind is Kind.GUARD_HIT and event.data.get("action") == Action.STOP
    if is_told and stop is Stop.NOTHING:
        trigger, stop = Trigger.SENT, Stop.SAMPLE
    if trigger is None or stop is Stop.NOTHING:
        return None
    about = event.data.get("decoy") or event.data.get("value") or event.data.get("class")
    reason = f"{_WORDS[trigger]} ({about})" if isinstance(about, str) and about else _WORDS[trigger]
    name = event.cell_id or event.data.get("range") or ""
    return Trip(stop=stop, rule=trigger.value, reason=reason, name=str(name), evidence=number)


def breach_trip(what: str, stops: Mapping[Trigger, Stop]) -> Trip | None:
    """The same for a `ContainmentBreach` that was raised, whatever is on record of it."""
    stop = stop_for(stops, Trigger.BREACH)
    return None if stop is Stop.NOTHING else Trip(stop=stop, rule=Trigger.BREACH.value, reason=what)
