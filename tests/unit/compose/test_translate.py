"""What a compose file means for cells, and what of it they don't keep."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.compose.document import MAX_SERVICES
from belljar.compose.translate import Composed, read_compose
from belljar.compose.values import CannotKeepError
from belljar.harness.compat import TaskRefused, judge_compose


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


def test_one_service_can_be_without_any_network() -> None:
    """`network_mode: none` is more than to name none: it takes one away. No other service changes
    that of a range."""
    assert read_compose({"services": {"x": {"image": "i", "network_mode": "none"}}}).is_apart
    assert not read_compose({"services": {"x": {"image": "i"}}}).is_apart


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
    """The file's, or its image's, which it must then have; what the file switches off is off. Whoever
    waits for a service's success starts after it; it needs no health."""
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


@pytest.mark.parametrize("key", ["include", "secrets", "configs", "models", "made_up"])
def test_other_parts_of_a_file_are_refused_by_name(key: str) -> None:
    """An extension means nothing, and is none of them."""
    with pytest.raises(CannotKeepError, match=key):
        read_compose({**two(), key: {"x": {}}})
    assert read_compose({**two(), "x-anything": {"a": 1}, "version": "3.8", "name": "n"}).network


@pytest.mark.promise("1.5")
def test_all_that_is_refused_is_told_at_once() -> None:
    """Of every service, and of volumes and networks too; each by its name."""
    file = two(
        cap_add=["BPF"], network_mode="host", volumes=["/var/run/docker.sock:/var/run/docker.sock"]
    )
    file["services"]["default"] |= {"devices": ["/dev/kvm"]}
    file["networks"] = {"lan": {"external": True}}
    file["models"] = {"m": {"model": "x"}}
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


def test_the_most_services() -> None:
    """They are counted before anything of them is looked at."""
    services: dict[str, Any] = {f"s{number}": {"made_up": 1} for number in range(MAX_SERVICES + 1)}
    with pytest.raises(CannotKeepError, match="65 services; at most 64"):
        read_compose({"services": services})
    with pytest.raises(TaskRefused, match="65 services"):
        judge_compose({"services": {**services, "s0": {"image": "$SAMPLE_METADATA_A"}}})


def test_a_file_without_a_service() -> None:
    """There is nothing to run."""
    files: tuple[dict[str, Any], ...] = ({}, {"services": {}}, {"services": []}, {"services": None})
    for file in files:
        with pytest.raises(CannotKeepError):
            read_compose(file)


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
