"""What a compose file means for cells: order, health, networks, and what they don't keep."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.compose.model import Condition
from belljar.compose.translate import Composed, in_order, read_compose, read_health
from belljar.compose.values import CannotKeepError
from belljar.image.config import HealthCheck, ImageConfig, image_health
from belljar.policy.network import Network
from belljar.policy.stand_ins import Health


def two(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML values
    return {"services": {"default": {"image": "agent"}, "shop": {"image": "shop", **fields}}}


def shop(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - a policy's words
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


OTHERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"db": {"condition": "service_started", "made_up": 1}}, {"db": {}}, "made_up"),
    ({"gone": {"condition": "service_started"}}, {"db": {}}, "gone, which does not exist"),
    ({"db": {"condition": "service_healthy"}}, {"db": {"healthcheck": {"disable": True}}}, "not asked for"),
    ({"default": {"condition": "service_started"}}, {"default": {"command": "serve"}}, "starts last"),
    ({"default": {"condition": "service_completed_successfully"}}, {}, "starts last"),
]  # fmt: skip


@pytest.mark.parametrize(("waits", "others", "told"), OTHERS)
def test_what_can_not_be_waited_for_is_refused(
    waits: dict[str, Any], others: dict[str, Any], told: str
) -> None:
    """By name; a default service that runs nothing is no obstacle."""
    web = {"image": "i", "depends_on": waits}
    with pytest.raises(CannotKeepError, match=told):
        read_compose({"services": {"default": {}, "web": web, **others}})
    fine = {"depends_on": {"default": {"condition": "service_started"}}}
    assert read_compose({"services": {"default": {}, "web": {"image": "i", **fine}}}).network


def test_a_circle_is_refused() -> None:
    """With the names of those in it."""
    started = Condition.STARTED
    with pytest.raises(CannotKeepError, match="circle: a, b"):
        in_order({"a": {"b": started}, "b": {"a": started}, "c": {}}, default="c")


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_whatever_waits_each_comes_after_what_it_waits_for(pairs: list[tuple[int, int]]) -> None:
    """The default one last; every service once."""
    waits: dict[str, dict[str, Condition]] = {f"s{i}": {} for i in (5, 2, 7, 0, 1, 6, 4, 3)}
    for pair in pairs:
        if pair[0] != pair[1]:
            waits[f"s{max(pair)}"][f"s{min(pair)}"] = Condition.STARTED
    order = in_order(waits, default="s7")
    assert sorted(order) == [f"s{i}" for i in range(8)]
    assert order[-1] == "s7"
    assert all(order.index(of) < order.index(name) for name in waits for of in waits[name])


def test_times_alone_are_of_the_images_check() -> None:
    """Docker merges field by field: the image's test, and its times where the file has none."""
    check = HealthCheck(test=("CMD", "up"), interval_ns=10**9, start_period_ns=7 * 10**9)
    config = ImageConfig(healthcheck=check)
    alone = read_health({"interval": "2s", "retries": 5, "timeout": "1s"})
    found = Health.model_validate(alone, strict=False)
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


@pytest.mark.promise("1.5")
def test_services_that_are_kept_apart_stay_apart() -> None:
    """Each cell has its service's networks."""
    apart = {"default": ["a", "b"], "web": ["b", "c"], "db": ["a", "c"]}
    services = {name: {"image": name, "networks": of} for name, of in apart.items()}
    network = read_compose({"services": services, "networks": dict.fromkeys("abc")}).network
    assert network is not None
    assert network["own_cell"]["networks"] == apart["default"]
    for name in ("web", "db"):
        assert network["stand_ins"][name]["networks"] == apart[name]


def test_a_service_without_a_network() -> None:
    """Its cell is in no network; those that have one share it as ever."""
    network = read_compose(two(network_mode="none")).network
    assert network is not None
    assert network["stand_ins"]["shop"]["networks"] == []
    assert "networks" not in network["own_cell"]
    apart = {name: {"image": name, "network_mode": "none"} for name in ("default", "scorer")}
    network = read_compose({"services": apart}).network
    assert not Network.model_validate(network, strict=False).has_cells


def test_a_network_must_be_declared() -> None:
    """As Compose wants it; the implicit one is there anyway."""
    with pytest.raises(CannotKeepError, match="not declared: inner"):
        read_compose(two(networks=["inner"]))
    assert read_compose(two(networks=["default"])).network
    both = {"image": "i", "network_mode": "none", "networks": ["default"]}
    with pytest.raises(CannotKeepError, match="both networks and network_mode"):
        read_compose({"services": {"x": both}})


@pytest.mark.promise("1.5")
def test_what_a_range_is_not_is_refused_by_name() -> None:
    """Also where no service joins it."""
    odd: list[tuple[str, Any]] = [
        ("external", True),
        *(("driver", "host"), ("driver", "macvlan"), ("enable_ipv6", True), ("enable_ipv4", False)),
        *(("ipam", {"config": [{"subnet": "172.16.238.0/24"}]}), ("made_up", 1)),
    ]
    for key, value in odd:
        with pytest.raises(CannotKeepError, match=f"network n: `{key}` is refused"):
            read_compose({**two(), "networks": {"n": {key: value}}})
    for key, value in {"ipv4_address": "172.16.238.10", "aliases": ["a"]}.items():
        with pytest.raises(CannotKeepError, match="service shop: `networks` is refused"):
            read_compose(two(networks={"default": {key: value}}))
    assert read_compose(two(networks={"default": None})).network


def test_names_differ_by_more_than_case() -> None:
    """A service keeps its name, and its host names are found however they are written."""
    services = {"default": {"image": "a"}, "DC01": {"image": "b", "hostname": "DC01.corp.local"}}
    network = read_compose({"services": services}).network
    assert network is not None
    assert network["stand_ins"]["DC01"]["names"] == ["dc01", "dc01.corp.local"]
    shops = {"default": {"image": "a", "hostname": "shop"}, "shop": {"image": "b"}}
    for same in ({**services, "dc01": {"image": "c"}}, shops):
        with pytest.raises(ValueError, match="already a name of"):
            Network.model_validate(read_compose({"services": same}).network, strict=False)


def test_what_no_cell_can_have_is_refused_by_the_policys_rules() -> None:
    """Names, a restart that Docker lacks, and a directory of a user by name."""
    agent = {"image": "a", "x-default": True}
    odd = [{name: {"image": "b"}} for name in ("_web", "x" * 64, "default", "123", "a..b")]
    for key, value in {"restart": "sometimes", "tmpfs": "/run:uid=app"}.items():
        odd.append({"web": {"image": "b", key: value}})
    for services in odd:
        network = read_compose({"services": {"agent": agent, **services}}).network
        with pytest.raises(ValueError, match=next(iter(services))):
            Network.model_validate(network, strict=False)
