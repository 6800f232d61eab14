"""Whatever a task says, no cell is anywhere looser than the operator allows."""

from __future__ import annotations

import copy
import json
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from belljar.errors import PolicyError
from belljar.harness.config import BelljarConfig, of_compose
from belljar.harness.operator import Operator, within
from belljar.host.settings import Settings, Upstreams
from belljar.policy.guarding import Trigger, stop_for
from belljar.policy.limits import Resources, Risk, Tier, demanded_tier, least_tier, usual_host_tools
from belljar.policy.load import resolve_policy
from belljar.policy.model import Policy
from belljar.policy.network import Network, Record
from belljar.policy.sections import Rights
from belljar.policy.stand_ins import TargetStandIn

STOPS = ("nothing", "stop_sample", "stop_run", "stop_all")
SETUID = ("off", "auto", "on")


def optional(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=values)


_RIGHTS = optional(
    capabilities=st.lists(st.sampled_from(["SYS_PTRACE", "NET_ADMIN", "SYS_TIME"]), unique=True),
    seccomp=st.sampled_from(["default", "unconfined"]),
    setuid_programs=st.sampled_from(SETUID),
    privileged=st.booleans(),
)
_RESOURCES = optional(
    cpus=st.integers(1, 8),
    memory=st.integers(64, 4096).map("{}MiB".format),
    disk=st.integers(16, 4096).map("{}MiB".format),
    processes=st.integers(16, 4096),
    lifetime=st.integers(1000, 99999).map("{}s".format),
    exec_timeout=st.integers(1, 1000).map("{}s".format),
    output=st.integers(1, 9999).map("{}KiB".format),
)
_UPSTREAM = st.fixed_dictionaries(
    {
        "host": st.sampled_from(["a.example", "b.example"]),
        "ports": st.lists(st.sampled_from([80, 443]), min_size=1, unique=True),
        "methods": st.lists(st.sampled_from(["GET", "POST"]), min_size=1, unique=True),
        "budget": st.integers(1, 5000).map("{}KiB".format),
        "reason": st.just("because it is so"),
    }
)
_CELL = st.builds(
    lambda name, more: {"kind": "cell", "names": [name], "ports": ["all"], "command": ["x"]} | more,
    st.sampled_from(["db", "web"]),
    optional(
        resources=_RESOURCES,
        rights=_RIGHTS,
        tier=st.sampled_from(["container", "gvisor", "microvm"]),
    ),
)
_SHOP = st.just({"kind": "http", "names": ["shop.example"], "routes": [{"path": "/", "body": "x"}]})


def _first_name(stand_in: dict[str, Any]) -> str:
    return str(stand_in["names"][0])


_RECORD = st.sampled_from([{}, {"packets": "1MiB"}, {"packets": "1GiB"}, {"events": "2GiB"}])
_NETWORK = st.just("none") | optional(
    default=st.sampled_from(["deny", "simulate"]),
    sink=st.booleans(),
    stand_ins=st.lists(_CELL | _SHOP, max_size=2, unique_by=_first_name).map(
        lambda found: {_first_name(each).partition(".")[0]: each for each in found}
    ),
    upstreams=st.lists(_UPSTREAM, min_size=1, max_size=2, unique_by=lambda each: str(each["host"])),
    record=_RECORD,
)


_SECTIONS: dict[str, st.SearchStrategy[Any]] = {
    "tier": st.sampled_from(["gvisor", "microvm"]),
    "image": st.sampled_from(["mine", "other"]),
    "resources": _RESOURCES,
    "rights": _RIGHTS,
    "network": _NETWORK,
    "host_tools": st.sampled_from(["refuse", "report"])
    | st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, unique=True).map(
        lambda names: {"allow": names}
    ),
    "guard": st.sampled_from([{"classes": ["card"]}, {"action": {"output": "stop"}}]),
    "on": st.dictionaries(
        st.sampled_from(["decoy_used", "decoy_touched", "breach", "sent"]),
        st.sampled_from(STOPS),
        max_size=2,
    ),
}


def possible(risk: str, more: dict[str, Any]) -> dict[str, Any]:
    """A policy, mostly one that can be: without a tier or a real host that its risk forbids."""
    tiers = [str(each) for each in Tier if each >= least_tier(Risk(risk))]
    policy = copy.deepcopy({"belljar": 1, "risk": risk, **more})
    if policy.get("tier") not in tiers:
        policy.pop("tier", None)
    if isinstance(network := policy.get("network"), dict):
        if risk in {"high", "critical"}:
            network.pop("upstreams", None)
        for each in network.get("stand_ins", {}).values():
            if each.get("tier") not in tiers:
                each.pop("tier", None)
    return policy


def policies(sections: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    written = {name: _SECTIONS[name] for name in sections}
    some = st.fixed_dictionaries(written) if sections else optional(**_SECTIONS)
    risks = st.sampled_from(["low", "low", "low", "medium", "high", "critical"])
    return st.builds(possible, risks, some)


_SERVICE = st.fixed_dictionaries(
    {"image": st.sampled_from(["ctf", "web:2"])},
    optional={
        "privileged": st.booleans(),
        "cap_add": st.just(["SYS_PTRACE"]),
        "security_opt": st.just(["seccomp:unconfined"]),
        "mem_limit": st.integers(64, 9000).map("{}m".format),
        "cpus": st.integers(1, 9),
        "pids_limit": st.integers(16, 9000),
        "user": st.just("7"),
    },
)
_COMPOSE = st.builds(
    lambda own, others, apart: {
        "services": {"default": own | ({"network_mode": "none"} if apart and not others else {})}
        | others
    },
    _SERVICE,
    st.dictionaries(st.sampled_from(["web", "db"]), _SERVICE, max_size=2),
    st.booleans(),
)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """What a task and an operator say; most of them about the same few sections."""
    often = [[name] for name in ("network", "network", "network", "host_tools", "on", *_SECTIONS)]
    sections = draw(st.sampled_from([[], [], [], ["rights", "network"], *often]))
    found = policies(sections)
    which = draw(st.sampled_from(["policy", "policy", "run_policy", "none"]))
    least = draw(st.sampled_from([Risk.LOW, Risk.LOW, Risk.LOW, Risk.MEDIUM, Risk.HIGH]))
    may = draw(st.sampled_from([None, *Upstreams]))
    return {
        "own": draw(found if sections else st.none() | found),
        "compose": draw(st.none() | st.none() | _COMPOSE),
        "tier": draw(st.sampled_from([None, None, *map(str, Tier)])),
        "named": None if which == "none" else draw(found),
        "which": which,
        "operator": Operator(
            tier=draw(st.sampled_from(["", "", "", "gvisor", "microvm"])),
            allow_upstreams=draw(st.booleans()),
            settings=Settings(
                least_risk=least, upstreams=may, least_risk_from="s", upstreams_from="s"
            ),
        ),
    }


def written(policy: dict[str, Any] | None, directory: str, name: str) -> str:
    """A file of this policy; "" for none. One that can't be is not tried."""
    if policy is None:
        return ""
    path = Path(directory, name)
    path.write_text(json.dumps(policy))
    try:
        resolve_policy(path)
    except PolicyError:
        assume(condition=False)
    return str(path)


@pytest.mark.promise("1.4")
@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_never_looser_than_the_operator(case: dict[str, Any]) -> None:
    """Every bound of what becomes of a task is within the operator's; what can't be is refused."""
    with tempfile.TemporaryDirectory() as directory:
        named = written(case["named"], directory, "named")
        operator = replace(case["operator"], **({case["which"]: named} if named else {}))
        config = BelljarConfig(policy=written(case["own"], directory, "own"), tier=case["tier"])
        try:
            if case["compose"] is not None:
                config = of_compose(case["compose"], config, where="compose.yaml")
            made = within(config, operator).policy.policy
        except PolicyError:
            return
        assert beyond_settings(made, operator, is_named=bool(named)) == []
        if not any("host_tools" in (case[name] or {}) for name in ("own", "named")):
            assert made.host_tools_rule == usual_host_tools(made.risk)
        if named:
            bound = resolve_policy(named).policy
            assert beyond(made, bound) == []


def beyond_settings(made: Policy, operator: Operator, *, is_named: bool) -> list[str]:
    upstreams = made.network.upstreams if made.network is not None else ()
    may = operator.settings.upstreams
    is_allowed = is_named or operator.allow_upstreams or may is Upstreams.ALLOW
    faults = {
        "risk": made.risk < operator.settings.least_risk,
        "tier": operator.tier and tier_of(made) < Tier(operator.tier),
        "upstreams": upstreams and (may is Upstreams.FORBID or not is_allowed),
    }
    return [name for name, is_fault in faults.items() if is_fault]


def tier_of(policy: Policy) -> Tier:
    return demanded_tier(policy.risk, policy.tier)


def beyond(made: Policy, bound: Policy) -> list[str]:
    tools, allowed = made.host_tools_rule.allow, bound.host_tools_rule.allow
    faults = {
        "risk": made.risk < bound.risk,
        "tier": tier_of(made) < tier_of(bound),
        "resources": has_more(made.resources, bound.resources),
        "rights": has_more_rights(made.rights, bound.rights),
        "host_tools": "*" not in allowed and not set(tools) <= set(allowed),
        "guard": bound.guard is not None and made.guard != bound.guard,
        "on": any(
            STOPS.index(stop_for(made.on, each).value) < STOPS.index(stop_for(bound.on, each).value)
            for each in Trigger
        ),
        "network": made.network is not None and reaches_more(made.network, bound, made),
    }
    return [name for name, is_fault in faults.items() if is_fault]


def has_more(made: Resources, bound: Resources) -> bool:
    return any(getattr(made, each.name) > getattr(bound, each.name) for each in fields(Resources))


def has_more_rights(made: Rights | None, bound: Rights | None) -> bool:
    """Whether a right is not granted; a policy without a word of rights grants all."""
    if made is None or bound is None:
        return False
    if SETUID.index(made.setuid_programs) > SETUID.index(bound.setuid_programs):
        return True
    if bound.privileged:
        return False
    is_open = made.seccomp == "unconfined" and bound.seccomp != "unconfined"
    return made.privileged or is_open or not set(made.capabilities) <= set(bound.capabilities)


def reaches_more(network: Network, bound: Policy, made: Policy) -> bool:
    """Whether it reaches beyond the operator's network and cells within bounds, or records less."""
    theirs = bound.network
    if theirs is not None and any(
        getattr(network.record, name) < getattr(theirs.record, name) for name in Record.model_fields
    ):
        return True
    mine = {"stand_ins", "default", "sink", "own_cell"}
    if theirs is None or network.model_dump(include=mine) != theirs.model_dump(include=mine):
        cells = network.stand_ins.values()
        return (
            bool(network.upstreams)
            or network.sink
            or network.default != "deny"
            or not all(isinstance(each, TargetStandIn) for each in cells)
            or any(
                has_more(each.resources, bound.resources)
                or has_more_rights(each.rights, bound.rights)
                or (each.tier is not None and each.tier < tier_of(made))
                for each in cells
                if isinstance(each, TargetStandIn)
            )
        )
    known = {each.host: each for each in theirs.upstreams}
    return any(
        each.host not in known
        or not set(each.ports) <= set(known[each.host].ports)
        or not set(each.methods) <= set(known[each.host].methods)
        or each.budget > known[each.host].budget
        or each.whole_run > known[each.host].whole_run
        for each in network.upstreams
    )
