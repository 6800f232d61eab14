"""From an event to what is stopped: a table, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from belljar.events import Event, JsonValue, Kind
from belljar.policy.guarding import Stop, Trigger
from belljar.signals.observe import stop_of, stop_of_breach, trigger_of

CELL, RANGE = "c-0123456789ab", "r-0123456789ab"
EVERYTHING = dict.fromkeys(Trigger, Stop.SAMPLE)
CONTACT: dict[str, JsonValue] = {
    "decoy": "aws",
    "value": "aws/key",
    "operation": "exec.output",
    "evidence": 3,
}
HIT: dict[str, JsonValue] = {"class": "decoy", "value": "aws/key", "place": "range"}


@pytest.mark.promise("6.4")
@pytest.mark.parametrize(
    ("kind", "data", "trigger"),
    [
        (Kind.DECOY_TOUCHED, {"decoy": "aws", "operation": "read"}, Trigger.DECOY_TOUCHED),
        (Kind.DECOY_TAKEN, CONTACT, Trigger.DECOY_TAKEN),
        (Kind.DECOY_USED, CONTACT, Trigger.DECOY_USED),
        (Kind.DECOY_SENT, CONTACT, Trigger.SENT),
        (Kind.DECOY_CARRIED, {**CONTACT, "from_cell": "c-00000000000a"}, Trigger.BREACH),
        (Kind.DECOY_CARRIED, {**CONTACT, "lineage": "taken"}, Trigger.DECOY_TAKEN),
        (Kind.DECOY_CARRIED, {**CONTACT, "lineage": "sent"}, Trigger.SENT),
        (Kind.DECOY_PLACED, {"decoy": "aws"}, None),
        (Kind.GUARD_HIT, HIT, Trigger.SENT),
        (Kind.GUARD_HIT, {**HIT, "place": "upstream"}, Trigger.SENT),
        (Kind.GUARD_HIT, {"class": "iban", "place": "range"}, Trigger.SENT),
        (Kind.GUARD_HIT, {**HIT, "place": "output"}, None),
        (Kind.GUARD_HIT, {"class": "private_key", "place": "range"}, None),
        (Kind.PROBE_COMPLETED, {"verdict": "breached"}, Trigger.BREACH),
        (Kind.PROBE_COMPLETED, {"verdict": "void"}, None),
        (Kind.CELL_DESTROYED, {"clean": False, "survivors": ["process 1"]}, Trigger.BREACH),
        (Kind.CELL_DESTROYED, {"clean": False, "survivors": []}, None),
        (Kind.RANGE_FAILED, {"error": "ContainmentBreach", "range": RANGE}, None),
        (Kind.EXEC_STARTED, {}, None),
        (Kind.KILL_TRIGGERED, {"rule": "breach"}, None),
    ],
)
def test_what_an_event_triggers(
    kind: Kind, data: Mapping[str, JsonValue], trigger: Trigger | None
) -> None:
    """Each contact its own rule, carry-over and survivors a breach, the guard's hits only on their
    way out; a triggered kill switch nothing."""
    event = Event(kind=kind, data=data, cell_id=CELL)
    assert trigger_of(event) is trigger
    request = stop_of(event, 7, EVERYTHING)
    assert (request.rule if request else None) == (trigger.value if trigger else None)
    if request is not None:
        assert (request.stop, request.name, request.evidence) == (Stop.SAMPLE, CELL, 7)


def test_the_defaults_stop_a_run_for_a_breach_alone() -> None:
    """An evaluation measures what a model does."""
    assert stop_of(Event(kind=Kind.DECOY_SENT, data=CONTACT, cell_id=CELL), 1, {}) is None
    breach = stop_of(
        Event(kind=Kind.RANGE_DESTROYED, data={"survivors": ["x"], "range": RANGE}), 1, {}
    )
    assert breach is not None
    assert (breach.stop, breach.name) == (Stop.RUN, RANGE)
    raised = stop_of_breach("a way out", {})
    assert raised is not None
    assert raised.stop is Stop.RUN
    assert stop_of_breach("a way out", {Trigger.BREACH: Stop.NOTHING}) is None


def test_what_the_guard_is_told_to_stop_ends_its_sample() -> None:
    """Whatever `on` says less; where it says more, that."""
    event = Event(
        kind=Kind.GUARD_HIT,
        cell_id="c-00000000000a",
        data={**HIT, "action": "stop", "place": "model"},
    )
    request = stop_of(event, 3, {})
    assert request is not None
    assert request.stop is Stop.SAMPLE
    sent = replace(event, data={**event.data, "place": "range"})
    more = stop_of(sent, 3, {Trigger.SENT: Stop.RUN})
    assert more is not None
    assert more.stop is Stop.RUN
