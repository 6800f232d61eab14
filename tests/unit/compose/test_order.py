"""What services wait for, and the order that follows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.compose.model import Condition, Service
from belljar.compose.translate import Wait, in_order, read_compose, waits_of
from belljar.compose.values import CannotKeepError


def waiting(depends_on: Any, **fields: Any) -> dict[str, Service]:  # noqa: ANN401 - YAML values
    """A service `web` that waits so for `db`, beside the default one."""
    web = Service.model_validate({"depends_on": depends_on, **fields})
    return {"default": Service(), "web": web, "db": Service()}


def test_the_three_conditions() -> None:
    """A name alone waits for the start; a service that is not required may be missing."""
    assert waits_of(waiting(["db"])) == (Wait("web", "db", Condition.STARTED),)
    for condition in Condition:
        settings = {"condition": condition.value, "restart": True, "required": True}
        assert waits_of(waiting({"db": settings})) == (Wait("web", "db", condition),)
    gone = {"condition": "service_started", "required": False}
    assert waits_of(waiting({"gone": gone})) == ()


def test_what_can_not_be_waited_for_is_refused() -> None:
    """By name."""
    started: dict[str, Any] = {"condition": "service_started"}
    odd: list[tuple[Any, str]] = [
        ({"db": {"condition": "service_content"}}, "service_content"),
        ({"db": {**started, "made_up": 1}}, "made_up"),
        (["gone"], "gone, which does not exist"),
        ({"gone": started}, "gone, which does not exist"),
    ]
    for depends_on, named in odd:
        services = {"default": {}, "web": {"depends_on": depends_on}, "db": {}}
        with pytest.raises(CannotKeepError, match=named):
            read_compose({"services": services})


def check(waits: dict[str, str], **fields: Any) -> None:  # noqa: ANN401 - YAML
    """Services that wait for one, each in its way; `fields` are that one's."""
    name, *_ = {*fields} or {"db"}
    services: dict[str, Any] = {
        who: {"image": "i", "depends_on": {name: {"condition": condition}}}
        for who, condition in waits.items()
    }
    read_compose(
        {"services": {"default": {}, **services, name: {"image": "i", **fields.get(name, {})}}}
    )


def test_health_that_is_switched_off_is_not_waited_for() -> None:
    """Nor that of a program that has to end; without a check in the file, the image's own is waited
    for."""
    check({"web": "service_healthy"})
    with pytest.raises(CannotKeepError, match="switches off"):
        check({"web": "service_healthy"}, db={"healthcheck": {"disable": True}})
    with pytest.raises(CannotKeepError, match="another for its end"):
        check({"web": "service_healthy", "x": "service_completed_successfully"})


def test_the_default_service_starts_last() -> None:
    """Who waits for it is refused, unless nothing runs in it: then there is nothing to wait for."""
    check({"web": "service_started"}, default={})
    with pytest.raises(CannotKeepError, match="starts last"):
        check({"web": "service_started"}, default={"command": "serve"})
    with pytest.raises(CannotKeepError, match="starts last"):
        check({"web": "service_completed_successfully"}, default={})


def test_a_circle_is_refused() -> None:
    """With the names of those in it."""
    waits = (Wait("a", "b", Condition.STARTED), Wait("b", "a", Condition.STARTED))
    with pytest.raises(CannotKeepError, match="circle: a, b"):
        in_order({"a": {}, "b": {}, "c": {}}, waits, default="c")


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_whatever_waits_each_comes_after_what_it_waits_for(pairs: list[tuple[int, int]]) -> None:
    """The default one last; every service once. (A service waits only for those with a smaller
    number here, so there is no circle.)"""
    waits = tuple(
        Wait(f"s{max(p)}", f"s{min(p)}", Condition.STARTED) for p in pairs if p[0] != p[1]
    )
    order = in_order({f"s{i}": {} for i in (5, 2, 7, 0, 1, 6, 4, 3)}, waits, default="s7")
    assert sorted(order) == [f"s{i}" for i in range(8)]
    assert order[-1] == "s7"
    assert all(order.index(wait.needed) < order.index(wait.service) for wait in waits)
