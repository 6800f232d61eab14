"""What a compose file means for cells: what of it they don't keep, their order, their health."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.compose.model import Condition
from belljar.compose.translate import Composed, Wait, in_order, read_compose, read_health
from belljar.compose.values import CannotKeepError
from belljar.image.config import HealthCheck, ImageConfig, image_health
from belljar.policy.stand_ins import Health


def two(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML values
    """A compose file with a default service, and another with these fields."""
    return {"services": {"default": {"image": "agent"}, "shop": {"image": "shop", **fields}}}


def shop(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - a policy's words
    """What becomes of the other."""
    network = read_compose(two(**fields)).network
    if network is None:
        raise ValueError("no network")
    words: dict[str, Any] = network["stand_ins"]["shop"]
    return words


def test_the_default_service() -> None:
    """As Inspect chooses: the one marked, else the one called default, else the first."""
    for services, chosen in (
        ({"first": {"image": "a"}, "b": {"image": "b", "x-default": True}}, "b"),
        ({"a": {"image": "a"}, "default": {"image": "default"}}, "default"),
        ({"a": {"image": "a"}, "b": {"image": "b"}}, "a"),
    ):
        found = read_compose({"services": services})
        assert (found.service, found.changes) == (chosen, {"image": chosen})


@pytest.mark.promise("1.6")
def test_whose_health_is_waited_for_has_a_check() -> None:
    """The file's, or its image's, which it must then have; what the file switches off is off."""
    seed = {"condition": "service_completed_successfully"}
    services: dict[str, Any] = {
        "default": {"image": "a", "depends_on": {"db": {"condition": "service_healthy"}}},
        "db": {"image": "d"},
        "log": {"image": "l", "depends_on": {"seed": seed}},
        "mail": {"image": "m", "healthcheck": {"disable": True, "test": "x"}},
        "seed": {"image": "s", "healthcheck": {"test": "x"}},
    }
    network = read_compose({"services": services}).network
    assert network is not None
    health = {name: words.get("health") for name, words in network["stand_ins"].items()}
    asked = {"db": {"image": True}, "mail": {"image": False}}
    assert health == {**dict.fromkeys(("log", "seed")), **asked}
    assert network["stand_ins"]["seed"]["completes"] is True


@pytest.mark.promise("1.5")
def test_all_that_is_refused_is_told_at_once() -> None:
    """Of every service, and of volumes and networks too; each by its name."""
    file = two(
        cap_add=["BPF"], network_mode="host", volumes=["/var/run/docker.sock:/var/run/docker.sock"]
    )
    file["services"]["default"] |= {"devices": ["/dev/kvm"]}
    file["networks"] = {"lan": {"external": True}}
    file |= {"models": {"m": {"model": "x"}}, "x-anything": {"a": 1}, "version": "3.8"}
    with pytest.raises(CannotKeepError) as refused:
        read_compose(file)
    assert {(fact.where, fact.key) for fact in refused.value.differences} == {
        ("service shop", "cap_add"),
        ("service shop", "network_mode"),
        ("service shop", "volumes"),
        ("service default", "devices"),
        ("network lan", "external"),
        ("", "models"),
    }
    assert all(fact.key in str(refused.value) for fact in refused.value.differences)


_FIELDS = """
healthcheck networks depends_on deploy environment command entrypoint ports cpus links volumes
mem_limit hostname x-default build image init scale
"""


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
        ),
        max_leaves=12,
    ),
    st.sampled_from(_FIELDS.split()),
)
def test_whatever_stands_in_a_field(value: Any, field: str) -> None:  # noqa: ANN401 - YAML
    """It is read or refused, never an error of another kind."""
    with suppress(CannotKeepError):
        assert isinstance(read_compose(two(**{field: value})), Composed)


def test_what_can_not_be_waited_for_is_refused() -> None:
    """By name. A service that is not required may be missing."""
    gone = {"gone": {"condition": "service_started", "required": False}}
    services = {"default": {"image": "i"}, "web": {"image": "i", "depends_on": gone}}
    assert read_compose({"services": services}).network
    started: dict[str, Any] = {"condition": "service_started"}
    odd: list[tuple[Any, str]] = [
        ({"db": {**started, "made_up": 1}}, "made_up"),
        (["gone"], "gone, which does not exist"),
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
    """Nor that of a program that has to end."""
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
    """The default one last; every service once."""
    waits = tuple(
        Wait(f"s{max(p)}", f"s{min(p)}", Condition.STARTED) for p in pairs if p[0] != p[1]
    )
    order = in_order({f"s{i}": {} for i in (5, 2, 7, 0, 1, 6, 4, 3)}, waits, default="s7")
    assert sorted(order) == [f"s{i}" for i in range(8)]
    assert order[-1] == "s7"
    assert all(order.index(wait.needed) < order.index(wait.service) for wait in waits)


def test_times_alone_are_of_the_images_check() -> None:
    """Docker merges field by field: the image's test, and its times where the file has none."""
    config = ImageConfig(
        healthcheck=HealthCheck(test=("CMD", "up"), interval_ns=10**9, start_period_ns=7 * 10**9)
    )
    found = Health.model_validate(
        read_health({"interval": "2s", "retries": 5, "timeout": "1s"}), strict=False
    )
    assert found.image
    asked = image_health(config, found.times)
    times = {"interval": "2s", "retries": 5, "timeout": "1s", "start_period": "7s"}
    whole = read_health({"test": ["CMD", "up"], **times})
    assert asked is not None
    assert asked["command"] == ["up"]
    read = Health.model_validate(whole, strict=False)
    for name in ("interval", "timeout", "retries", "within"):
        assert asked[name] == getattr(read, name)
    assert image_health(ImageConfig(), found.times) is None
    # An empty test is none, as for Docker: the image's check, with the file's times
    assert read_health({"test": []}) == {}
    # What the file switches off is off in the image too
    for off in ({"test": ["NONE"]}, {"test": "x", "disable": "yes"}):
        assert read_health(off) == {"image": False}
    assert read_health({"test": [], "retries": 5}) == read_health({"retries": 5})
