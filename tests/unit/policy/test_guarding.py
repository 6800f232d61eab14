"""Defaults of the guard and of stops."""

from __future__ import annotations

from belljar.policy.guarding import (
    ACTIONS,
    DEFAULT_ACTIONS,
    STANDARD_DECOYS,
    Action,
    GuardRules,
    Place,
    Stop,
    Trigger,
    stop_for,
)


def test_every_place_has_an_action_that_it_can_carry_out() -> None:
    """Also where a policy names only another place; what would reach a real service is blocked."""
    assert set(DEFAULT_ACTIONS) == set(ACTIONS) == set(Place)
    assert all(DEFAULT_ACTIONS[place] in ACTIONS[place] for place in Place)
    rules = GuardRules(actions={Place.OUTPUT: Action.STOP})
    assert [rules.action(place) for place in Place] == ["flag", "block", "stop", "flag"]


def test_only_a_breach_stops_by_itself() -> None:
    """What a policy doesn't name stops nothing, but for a breach, which ends the run."""
    stopping = [trigger for trigger in Trigger if stop_for({}, trigger) is not Stop.NOTHING]
    assert stopping == [Trigger.BREACH]
    assert stop_for({Trigger.BREACH: Stop.NOTHING}, Trigger.BREACH) is Stop.NOTHING


def test_the_standard_set_has_each_id_once() -> None:
    """Events name decoys by their ids."""
    assert len({spec.id for spec in STANDARD_DECOYS}) == len(STANDARD_DECOYS)
