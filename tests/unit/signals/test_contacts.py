"""Contacts with decoy services, by the events of a range's gateway."""

from __future__ import annotations

import pytest

from belljar.events import Event, JsonValue, Kind, Trust
from belljar.signals.observe import MAX_CONNECTIONS, ServiceContacts

HERE: dict[str, JsonValue] = {"range": "r-1", "cell": "default"}


@pytest.mark.promise("5.6")
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Kind.NETWORK_STREAM, {"stand_in": "cache", "phase": "opened"}),
        (Kind.NETWORK_HTTP, {"stand_in": "cache", "url": "http://x/"}),
        (Kind.NETWORK_CONNECTION, {"address": "10.1.1.9", "phase": "closed"}),
    ],
)
def test_the_first_event_of_a_connection_is_a_touch(kind: Kind, data: dict[str, JsonValue]) -> None:
    """Whatever is spoken, even nothing; what comes after it on the same connection is none."""
    seen = ServiceContacts({"10.1.1.9": "cache"})
    touch = seen.touched(Event(kind=kind, data={**HERE, **data, "connection": 3}), 40)
    assert touch is not None
    assert touch.trust is Trust.HOST_OBSERVED
    expected = {"decoy": "cache", "operation": "connect", "evidence": 40, "connection": 3}
    assert touch.data == {**expected, **HERE}
    assert seen.touched(Event(kind=kind, data={**HERE, **data, "connection": 3}), 41) is None
    assert seen.touched(Event(kind=kind, data={**HERE, **data, "connection": 4}), 42) is not None


@pytest.mark.promise("5.6")
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Kind.NETWORK_STREAM, {"stand_in": "mail", "connection": 1}),
        (Kind.NETWORK_CONNECTION, {"address": "10.1.1.8", "connection": 1}),
        (Kind.NETWORK_DNS, {"name": "cache.corp.internal", "stand_in": "cache"}),
        (Kind.NETWORK_STREAM, {"address": "10.1.1.9", "between_cells": True}),
    ],
)
def test_anything_else_is_no_touch(kind: Kind, data: dict[str, JsonValue]) -> None:
    """Other stand-ins, a look-up of the name, and what the packet record says once more."""
    assert (
        ServiceContacts({"10.1.1.9": "cache"}).touched(Event(kind=kind, data={**HERE, **data}), 1)
        is None
    )


def test_only_a_services_raw_stream_is_recorded_by_itself() -> None:
    """Its bytes are in the service's own events."""
    seen = ServiceContacts({"10.1.1.9": "cache"})
    assert seen.records_itself(Event(kind=Kind.NETWORK_STREAM, data={"stand_in": "cache"}))
    assert not seen.records_itself(Event(kind=Kind.NETWORK_STREAM, data={"stand_in": "mail"}))
    assert not seen.records_itself(Event(kind=Kind.NETWORK_HTTP, data={"stand_in": "cache"}))


def test_what_is_remembered_is_bounded() -> None:
    """A connection that came long ago is forgotten, a new one is not."""
    seen = ServiceContacts({"10.1.1.9": "cache"})

    def touch(number: int) -> Event | None:
        data: dict[str, JsonValue] = {"stand_in": "cache", "connection": number}
        return seen.touched(Event(kind=Kind.NETWORK_STREAM, data=data), 1)

    assert all(touch(number) for number in range(MAX_CONNECTIONS + 1))
    assert touch(MAX_CONNECTIONS) is None
    assert touch(0) is not None
