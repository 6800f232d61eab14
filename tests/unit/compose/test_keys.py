"""One service's keys: each is kept, said, or refused by name; which of them are rights."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.compose.test_translate import shop, two

from belljar.compose.keys import KEYS, read_service
from belljar.compose.model import Service
from belljar.compose.translate import program_of, read_compose
from belljar.compose.values import CannotKeepError, Refusals
from belljar.differences import DifferenceKind

DROPPED, REFUSED = (
    sorted(key for key, known in KEYS.items() if known.fate is fate)
    for fate in (DifferenceKind.DROPPED, DifferenceKind.REFUSED)
)
# Every property of `definitions.service` in compose-spec's schema/compose-spec.json.
COMPOSE = """
annotations attach blkio_config build cap_add cap_drop cgroup cgroup_parent command configs container_name cpu_count cpu_percent cpu_period cpu_quota
cpu_rt_period cpu_rt_runtime cpu_shares cpus cpuset credential_spec depends_on deploy develop device_cgroup_rules devices dns dns_opt dns_search domainname
entrypoint env_file environment expose extends external_links extra_hosts gpus group_add healthcheck hostname image init ipc isolation label_file labels
links logging mac_address mem_limit mem_reservation mem_swappiness memswap_limit models network_mode networks oom_kill_disable oom_score_adj pid pids_limit
platform ports post_start pre_stop privileged profiles provider pull_policy pull_refresh_after read_only restart runtime scale secrets security_opt shm_size
stdin_open stop_grace_period stop_signal storage_opt sysctls tmpfs tty ulimits use_api_socket user userns_mode uts volumes volumes_from working_dir
"""


def facts(**fields: Any) -> set[tuple[DifferenceKind, str]]:  # noqa: ANN401 - YAML
    found = read_compose(two(**fields)).differences
    assert {fact.where for fact in found} <= {"service shop"}
    return {(fact.kind, fact.key) for fact in found}


def refused(**fields: Any) -> set[str]:  # noqa: ANN401 - YAML
    with pytest.raises(CannotKeepError) as caught:
        read_compose(two(**fields))
    found = caught.value.differences
    assert all(fact.kind is DifferenceKind.REFUSED and fact.detail for fact in found)
    assert {fact.where for fact in found} == {"service shop"}
    return {fact.key for fact in found}


@pytest.mark.promise("1.5")
def test_every_key_of_compose_has_one_fate() -> None:
    """None is forgotten and none is invented; the model has those whose values count."""
    assert sorted(KEYS) == sorted(COMPOSE.split())
    assert Service.model_fields.keys().isdisjoint(REFUSED)
    assert all(known.why for known in KEYS.values() if known.fate)


WIDENING: dict[str, list[Any]] = {
    "privileged": ["perhaps"],
    "cap_add": [{"SYS_PTRACE": 1}, ["SYS_PTRACE", "SYS_TIME"]],
    "network_mode": ["host", "service:default", 7.5, "anything"],
    "security_opt": [
        *(["systempaths=unconfined"], [7], ["no-new-privileges:perhaps"], "no-new-privileges")
    ],
    "cpus": ["many", -2],
    "extra_hosts": [
        *(["shop.local:there"], ["shop.local"], {"two words": "10.0.0.7"}, 7),
        ["line\n6.6.6.6 x:10.0.0.7"],
    ],
    "read_only": ["perhaps"],
    "tmpfs": ["/", ["run"], {"/run": ""}],
    "scale": [2, 7.5, "anything"],
    "deploy": [
        {"replicas": 3},
        {"resources": {"reservations": {"devices": [{"capabilities": ["gpu"]}]}}},
        {"made_up": 1},
    ],
    "command": ["a && b", {"a": 1}, [["nested"]]],
    "environment": [{"A": 1234567.5}],
    "pids_limit": [-2],
    "healthcheck": [{"test": "x", "interval": "soon"}],
    **{key: ["anything"] for key in (*REFUSED, "ipc", "cgroup", "devices", "made_up")},
    "use_api_socket": ["anything"],
    "runtime": ["nvidia"],
}


@pytest.mark.promise("1.5")
@pytest.mark.parametrize("key", WIDENING)
def test_what_would_widen_the_blast_radius_is_refused_by_name(key: str) -> None:
    """So is what a cell would silently not do, and what is no key of Compose's."""
    for value in WIDENING[key]:
        assert refused(**{key: value}) == {key}, value


CHANGED: list[tuple[str, Any]] = [
    *(("read_only", True), ("tmpfs", "/run:size=64m"), ("restart", "always")),
    *(("cpus", 0.5), ("cap_drop", ["ALL"]), ("pids_limit", -1), ("mem_limit", "0b"), ("cpus", 0)),
    *((key, word) for key in ("read_only", "init") for word in ("yes", "Y", "ON", "True")),
]
LOST: list[tuple[str, Any]] = [
    *(("shm_size", "2gb"), ("ulimits", {"nofile": {"soft": 1, "hard": 2}, "core": 0})),
    *(("security_opt", [word]) for word in ("seccomp=profile.json", "apparmor:unconfined")),
    *(("security_opt", ["label:disable"]), ("ports", ["80:80"])),
    *(("runtime", name) for name in ("runc", "runsc", "kata-runtime", "io.containerd.kata.v2")),
    *((key, "x") for key in DROPPED if key != "runtime"),
]


@pytest.mark.promise("1.5")
@pytest.mark.parametrize(
    ("kind", "fields"), [(DifferenceKind.CHANGED, CHANGED), (DifferenceKind.DROPPED, LOST)]
)
def test_what_is_not_kept_is_one_fact_each(
    kind: DifferenceKind, fields: list[tuple[str, Any]]
) -> None:
    """Docker's 0 and -1 ask for no limit, which no cell has: the policy's holds."""
    for key, value in fields:
        found = read_compose(two(**{key: value}))
        (fact,) = found.differences
        assert (fact.kind, fact.where, fact.key) == (kind, "service shop", key), value
        assert fact.detail
    limits = {"cpus": "0", "memory": "0", "pids": -1}
    without: dict[str, Any] = {"pids_limit": -1, "mem_limit": "0b", "cpus": 0}
    deployed: dict[str, Any] = {"deploy": {"resources": {"limits": limits}}}
    for given in (without, deployed):
        assert "resources" not in shop(**given)
    assert {key for _, key in facts(deploy={"resources": {"limits": limits}})} == {
        f"deploy.resources.limits.{name}" for name in limits
    }


@pytest.mark.promise("1.5")
def test_what_is_refused_hides_nothing_that_differs() -> None:
    """Of its own service, of another one and of the volumes."""
    compose = two(gpus="all", tty=True, cap_add=["SYS_PTRACE"], read_only=True)
    compose["services"]["default"]["restart"] = "always"
    with pytest.raises(CannotKeepError) as caught:
        read_compose(compose)
    assert [(fact.kind, fact.key) for fact in caught.value.differences] == [
        (DifferenceKind.REFUSED, "gpus"),
        (DifferenceKind.CHANGED, "restart"),
        (DifferenceKind.DROPPED, "tty"),
        (DifferenceKind.GRANTED, "cap_add"),
        (DifferenceKind.CHANGED, "read_only"),
    ]
    assert "tty" not in str(caught.value)


NOTHING: list[dict[str, Any]] = [
    *({key: ""} for key in ("user", "working_dir", "pid", "uts", "ipc", "runtime", "cgroup")),
    *({key: []} for key in ("profiles", "group_add", "secrets", "configs", "post_start")),
    *({"sysctls": {}}, {"network_mode": ""}, {"restart": "no"}, {"restart": False}, {"ports": []}),
    *({"security_opt": ["no-new-privileges:false"]}, {"healthcheck": {"test": []}}),
]
TRUE_ANYWAY: list[dict[str, Any]] = [
    {"privileged": False, "read_only": "false", "init": True, "command": "tail -f /dev/null"},
    {"network_mode": None, "volumes": [], "tmpfs": [], "ulimits": {}, "use_api_socket": False},
    {"security_opt": ["no-new-privileges:true", "no-new-privileges"], "ipc": "private"},
    {"cgroup": "private", "scale": 1, "expose": [80], "pid": None, "x-local": True},
    {"deploy": {"replicas": 1, "resources": {"reservations": {"memory": "1g"}}}},
    *({"read_only": no, "privileged": no} for no in ("no", "N", "Off", "FALSE")),
]


def test_what_means_nothing_or_is_true_anyway_is_no_difference() -> None:
    """An empty value, as a variable without a value gives it, and Docker's defaults in words."""
    for fields in NOTHING:
        assert read_compose(two(**fields)) == read_compose(two()), fields
    assert read_compose({**two(), "secrets": {}, "configs": None}) == read_compose(two())
    for fields in TRUE_ANYWAY:
        assert facts(**fields) == set(), fields


def test_an_image_is_never_built() -> None:
    """Refused with what to do; where the store has one of its name, it is used, and that is said."""
    generic: dict[str, Any] = {"build": {"context": "."}, "image": "aisiuk/inspect-tool-support"}
    nameless: dict[str, Any] = {"build": ".", "image": None}
    for fields in (nameless, generic):
        with pytest.raises(CannotKeepError) as caught:
            read_compose(two(**fields))
        refused = [fact for fact in caught.value.differences if fact.kind is DifferenceKind.REFUSED]
        assert [fact.key for fact in refused] == ["build"]
        assert "belljar image import" in caught.value.hint
    assert shop(build=".")["image"] == "shop"
    assert facts(build=".") == {(DifferenceKind.CHANGED, "build")}


def test_what_runs() -> None:
    """A command stands behind the image's entrypoint."""
    rows: list[tuple[dict[str, Any], dict[str, list[str]]]] = [
        ({}, {}),
        ({"command": "run 'a b'"}, {"arguments": ["run", "a b"]}),
        ({"command": ""}, {"arguments": []}),
        ({"entrypoint": ["e"], "command": ["c", "d"]}, {"command": ["e", "c", "d"]}),
        ({"entrypoint": [""], "command": ["c"]}, {"command": ["c"]}),
        ({"entrypoint": "", "command": "c"}, {"command": ["c"]}),
        ({"entrypoint": []}, {"command": []}),
    ]
    for fields, program in rows:
        assert program_of(Service.model_validate(fields)) == program, fields


def test_an_environment() -> None:
    """Values as Compose writes them; a name without one would be this host's, which is not read."""
    values = {"A": True, "B": 1.0, "C": 2.5, "D": "x=y", "E": ""}
    written = {"A": "true", "B": "1", "C": "2.5", "D": "x=y", "E": ""}
    assert shop(environment=values)["env"] == written
    assert shop(environment=["A=x=y", "B="])["env"] == {"A": "x=y", "B": ""}
    for environment in ({"HOME": None, "A": "1"}, ["HOME", "A=1"]):
        assert shop(environment=environment)["env"] == {"A": "1"}
        (fact,) = read_compose(two(environment=environment)).differences
        assert (fact.kind, fact.key) == (DifferenceKind.CHANGED, "environment")
        assert "HOME" in fact.detail


@pytest.mark.promise("1.5")
def test_extra_hosts_are_lines_of_a_file() -> None:
    """This host is no address: its name is left out, and its author is told."""
    written = ["shop.local:10.0.0.7", "six=[::1]", "host.docker.internal:host-gateway"]
    converted = read_service("s", {"image": "i", "extra_hosts": written}, None, Refusals())
    assert converted.hosts == [("shop.local", "10.0.0.7"), ("six", "::1")]
    (fact,) = converted.differences
    assert (fact.kind, fact.key) == (DifferenceKind.DROPPED, "extra_hosts")
    assert "host.docker.internal" in fact.detail


@pytest.mark.promise("2.4")
def test_rights_inside_the_machine_are_granted() -> None:
    """In a policy's words, of the service alone, and reported as granted."""
    rows: list[tuple[str, Any, dict[str, Any]]] = [
        ("cap_add", ["cap_sys_ptrace", "CHOWN"], {"capabilities": ["SYS_PTRACE"]}),
        ("cap_add", ["DAC_READ_SEARCH"], {"capabilities": ["DAC_READ_SEARCH"]}),
        ("cap_add", ["ALL"], {"privileged": True}),
        *(("privileged", yes, {"privileged": True}) for yes in (True, "true")),
        *(("security_opt", [f"seccomp{c}unconfined"], {"seccomp": "unconfined"}) for c in "=:"),
    ]
    for key, value, rights in rows:
        assert shop(**{key: value})["rights"] == rights
        assert facts(**{key: value}) == {(DifferenceKind.GRANTED, key)}
    with pytest.raises(CannotKeepError) as caught:
        read_compose(two(cap_add=["SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE"]))
    named = [fact.detail.split(":")[0] for fact in caught.value.differences]
    assert named == ["SYS_ADMIN", "SYS_MODULE"]
