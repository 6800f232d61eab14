"""What a compose file means for cells, and what of it they don't keep."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.harness.compose import CannotKeepError, Composed, read_compose


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


def test_one_service_is_a_cell_without_a_network() -> None:
    """Nothing to reach: no device."""
    assert read_compose({"services": {"x": {"image": "i", "user": "u", "working_dir": "/w"}}}) == Composed(
        changes={"image": "i", "user": "u", "workdir": "/w"}
    )


def test_several_services_are_a_range() -> None:
    """The default service's cell, and a target cell for each other, reachable by name at every port as compose has it."""
    found = read_compose(two())
    assert found.changes == {"image": "agent"}
    assert found.network == {
        "stand_ins": {"shop": {"kind": "cell", "names": ["shop"], "ports": ["all"], "image": "shop"}},
        "own_cell": {"names": ["default"], "ports": ["all"]},
    }


def test_the_default_service() -> None:
    """As Inspect chooses: the one marked, else the one called default, else the first."""
    marked = read_compose({"services": {"default": {"image": "a"}, "b": {"image": "b", "x-default": True}}})
    assert marked.changes == {"image": "b"}
    assert read_compose({"services": {"a": {"image": "a"}, "default": {"image": "d"}}}).changes == {"image": "d"}
    assert read_compose({"services": {"a": {"image": "a"}, "b": {"image": "b"}}}).changes == {"image": "a"}


def test_command_and_entrypoint_are_one() -> None:
    """Lists as they are, text as a shell splits it."""
    assert shop(command="run 'a b'")["command"] == ["run", "a b"]
    assert shop(entrypoint=["e"], command=["c", "d"])["command"] == ["e", "c", "d"]


@pytest.mark.parametrize("command", ["serve", ["sh", "-c", "serve & sleep infinity"], ["tail", "-f", "/var/log/x"]])
def test_the_default_service_runs_what_the_task_says(command: Any) -> None:  # noqa: ANN401 - YAML
    """Another command of its own would silently not run: it is refused, with other services beside it too; one that only waits is none."""
    services: dict[str, Any] = {"default": {"image": "a", "command": command}, "web": {"image": "w"}}
    with pytest.raises(CannotKeepError, match="default asks for command"):
        read_compose({"services": services})
    for idle in ("sleep infinity", ["tail", "-f", "/dev/null"], ["bash", "-c", "sleep infinity"], []):
        services["default"]["command"] = idle
        assert read_compose({"services": services}).network


def test_a_health_check() -> None:
    """Both ways to write it. It waits as long as compose would, whose interval is half a minute unless it is said, and asks at least once a second."""
    check = {"test": ["CMD", "curl", "x"], "interval": "2s", "timeout": "1m30s", "retries": 5, "start_period": "10s"}
    assert shop(healthcheck=check)["health"] == {
        "command": ["curl", "x"],
        "retries": 20,
        "interval": "1s",
        "timeout": "90s",
    }
    assert shop(healthcheck={"test": "curl x"})["health"] == {
        "command": ["sh", "-c", "curl x"],
        "retries": 90,
        "interval": "1s",
    }
    assert shop(healthcheck={"test": "x", "interval": "500ms"})["health"]["interval"] == "0.5s"
    assert shop(healthcheck={"test": "x", "retries": 10**9})["health"]["retries"] == 1000
    assert "health" not in shop(healthcheck={"test": ["NONE"]})
    assert "health" not in shop(healthcheck={"disable": True, "test": "x"})


def test_names() -> None:
    """A service is known by its name, its host name, its container's name and its aliases."""
    names = shop(hostname="Web.Example", container_name="web", networks={"default": {"aliases": ["a1"]}})["names"]
    assert names == ["shop", "web.example", "web", "a1"]


def test_resources() -> None:
    """In a policy's units; a part of a processor is rounded up."""
    limits = {"deploy": {"resources": {"limits": {"cpus": "1.5", "memory": "256m", "pids": 90}}}}
    assert shop(**limits)["resources"] == {"cpus": 2, "memory": "268435456B", "processes": 90}
    assert shop(mem_limit="1g", cpus=0.5)["resources"] == {"memory": "1073741824B", "cpus": 1}


def test_services_come_after_those_they_depend_on() -> None:
    """Whatever their order in the file; a circle is refused."""
    services: dict[str, Any] = {
        "default": {"image": "a", "depends_on": ["web"]},
        "web": {"image": "w", "depends_on": {"db": {"condition": "service_healthy"}}},
        "db": {"image": "d"},
    }
    network = read_compose({"services": services}).network
    assert network is not None
    assert list(network["stand_ins"]) == ["db", "web"]
    services["db"]["depends_on"] = ["web"]
    with pytest.raises(CannotKeepError, match="circle"):
        read_compose({"services": services})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("privileged", True),
        ("volumes", ["/:/host"]),
        ("volumes", ["/var/run/docker.sock:/var/run/docker.sock"]),
        ("volumes", ["data:/data"]),
        ("network_mode", "host"),
        ("network_mode", "service:default"),
        ("devices", ["/dev/kvm"]),
        ("cap_add", ["SYS_ADMIN"]),
        ("security_opt", ["seccomp:unconfined"]),
        ("pid", "host"),
        ("ipc", "host"),
        ("userns_mode", "host"),
        ("gpus", "all"),
        ("build", "."),
        ("env_file", ".env"),
        ("extra_hosts", ["host.docker.internal:host-gateway"]),
        ("sysctls", {"net.ipv4.ip_forward": 1}),
        ("read_only", True),
        ("secrets", ["key"]),
        ("environment", {"A": "${HOME}"}),
        ("made_up", 1),
    ],
)
def test_what_would_widen_the_blast_radius_is_refused_by_name(field: str, value: Any) -> None:  # noqa: ANN401 - YAML
    """So is what a cell would silently not do."""
    with pytest.raises(CannotKeepError, match=field):
        read_compose(two(**{field: value}))


def test_networks() -> None:
    """One network that all share is the range's; services that are kept apart are refused, and so is a network of others'."""
    shared = two(networks=["inner"])
    shared["services"]["default"]["networks"] = {"inner": None, "other": None}
    assert read_compose({**shared, "networks": {"inner": {"internal": True}, "other": None}}).network
    apart = two(networks=["b"])
    apart["services"]["default"]["networks"] = ["a"]
    with pytest.raises(CannotKeepError, match="apart"):
        read_compose(apart)
    with pytest.raises(CannotKeepError, match="external"):
        read_compose({**two(), "networks": {"n": {"external": True}}})


def test_what_is_not_kept_but_harmless_is_said() -> None:
    """Ports are not published, programs are not started again."""
    notes = read_compose(two(ports=["80:80"], restart="always")).notes
    assert len(notes) == 2
    assert "published" in notes[0]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=12,
    ),
    st.sampled_from(["healthcheck", "networks", "depends_on", "deploy", "environment", "command", "ports", "cpus"]),
)
def test_whatever_stands_in_a_field(value: Any, field: str) -> None:  # noqa: ANN401 - YAML
    """It is read or refused, never an error of another kind."""
    with suppress(CannotKeepError):
        assert isinstance(read_compose(two(**{field: value})), Composed)
