"""A task's own policy is never looser than an operator's, in any field."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from belljar.differences import DifferenceKind
from belljar.errors import PolicyError
from belljar.policy.guarding import ACTIONS, DEFAULT_ACTIONS, Action, Place
from belljar.policy.limits import Risk
from belljar.policy.load import load_preset, parse_policy
from belljar.policy.loaded import LoadedPolicy
from belljar.policy.merge import NO_NETWORK, bounded, looser, under_policy, with_least_risk
from belljar.policy.network import RUN_BUDGETS


def policy(text: str, base: Path | None = None) -> LoadedPolicy:
    risk = "" if "risk:" in text else "risk: low\n"
    return parse_policy(f"belljar: 1\n{risk}{text}".encode(), source="p.yaml", base=base)


def upstreams(*items: str) -> str:
    return (
        "network: {upstreams: ["
        + ", ".join(f"{{{item}, reason: because it is so}}" for item in items)
        + "]}\n"
    )


ONE = "host: a.example, ports: [80, 443], methods: [GET, POST], budget: 2MiB"
LESS = "host: a.example, ports: [443], methods: [GET], budget: 1MiB, run_budget: 2MiB"
OTHER = "host: b.example, ports: [443], methods: [GET], budget: 1KiB"
SHOP = "shop: {kind: http, names: [shop.example], routes: [{path: /, body: x}]}"

CELL = (
    "db: {kind: cell, names: [db], ports: [all], command: [x], tier: container, resources: {memory:"
    " 128MiB}}"
)

ORDER = [  # (what the task says, what the operator says, where the task is looser)
    ("", "", ()),
    ("risk: low\n", "risk: high\n", ("risk", "tier", "host_tools")),
    ("risk: medium\n", "risk: low\n", ()),
    ("risk: critical\n", "tier: gvisor\n", ()),
    ("resources: {memory: 1GiB}\n", "", ("resources.memory",)),
    ("resources: {cpus: 2, disk: 1GiB, processes: 600, lifetime: 5h, exec_timeout: 11m, output: 11MiB}\n", "",
     ("resources.cpus", "resources.disk", "resources.processes", "resources.lifetime", "resources.exec_timeout", "resources.output")),
    (f"network: {{stand_ins: {{{CELL}}}}}\n", "", ()),
    (f"network: {{stand_ins: {{{CELL}}}}}\n", "resources: {memory: 64MiB}\n", ("resources.memory", "service db resources.memory")),
    (f"network: {{stand_ins: {{{CELL}, {SHOP}}}}}\n", "", ("network",)),
    ("network: {record: {packets: 1MiB}}\n", "network: {record: {packets: 1GiB}}\n", ("network.record.packets",)),
    (f"network: {{stand_ins: {{{CELL}}}, record: {{packets: 1MiB}}}}\n", "network: {}\n", ("network.record.packets",)),
    ("network: {sink: true}\n", "network: {}\n", ("network",)),
    (upstreams(ONE), "network: {}\n", ("network.upstreams (a.example)",)),
    (upstreams(LESS), upstreams(ONE), ()),
    (upstreams(ONE), upstreams(LESS), ("network.upstreams (a.example)",)),
    (upstreams(OTHER), upstreams(ONE), ("network.upstreams (b.example)",)),
    ("host_tools: report\n", "host_tools: refuse\n", ("host_tools",)),
    ("rights: {capabilities: [SYS_PTRACE]}\n", "rights: {seccomp: unconfined}\n", ("rights",)),
    ("rights: {capabilities: [SYS_PTRACE]}\n", "rights: {privileged: true}\n", ()),
    ("rights: {privileged: true}\n", "rights: {capabilities: [SYS_PTRACE]}\n", ("rights",)),
    ("", "guard: {classes: [card]}\n", ("guard",)),
    ("on: {decoy_used: stop_sample}\n", "on: {decoy_used: stop_run}\n", ("on",)),
    ("on: {decoy_used: stop_all}\n", "on: {decoy_used: stop_run}\n", ()),
    ("host_tools: {allow: [a, b]}\n", "host_tools: {allow: [b, c]}\n", ("host_tools",)),
    ("risk: high\nhost_tools: {allow: [a]}\n", "risk: high\n", ("host_tools",)),
    ("", "host: {air_gap: required}\n", ("host.air_gap",)),
    ("image: other\nuser: '7'\nworkdir: /x\nenv: {A: b}\nname: n\n", "", ()),
]  # fmt: skip


def beyond(ours: LoadedPolicy, floor: LoadedPolicy) -> tuple[str, ...]:
    found = looser(ours.policy, bounded(ours, floor).policy, by="the floor")
    return tuple(each.key if each.where == "task" else f"{each.where} {each.key}" for each in found)


@pytest.mark.promise("1.4")
@pytest.mark.parametrize(("task", "operator", "keys"), ORDER)
def test_where_a_policy_goes_beyond_another(
    task: str, operator: str, keys: tuple[str, ...]
) -> None:
    """Field by field; and what is made of both goes beyond nowhere."""
    ours, floor = policy(task), policy(operator)
    assert beyond(ours, floor) == keys
    assert beyond(bounded(ours, floor), floor) == ()


@pytest.mark.promise("5.7")
def test_a_tasks_guard_is_no_milder_than_what_holds_without_it() -> None:
    """Where the operator has written none, its defaults hold: a stricter action is kept."""
    for place, action in [(of, action) for of in Place for action in ACTIONS[of]]:
        ours = policy(f"guard: {{classes: [card], action: {{{place}: {action}}}}}\n")
        made = bounded(ours, policy("")).policy.guard_rules
        wanted = DEFAULT_ACTIONS[place] if action is Action.FLAG else action
        assert (made.action(place), made.classes) == (wanted, ("card",))


def test_what_either_requires_and_what_both_allow() -> None:
    """An air gap holds if either requires it; a cell may be saved only where both say so."""
    required, plain = policy("host: {air_gap: required}\n"), policy("")
    for task, operator in ((required, plain), (plain, required)):
        assert bounded(task, operator).policy.host
        assert under_policy(operator, task, {})[0].policy.host
    assert under_policy(plain, plain, {})[0].policy.host is None
    for one, two in itertools.product(("false", "true"), repeat=2):
        made = bounded(policy(f"snapshots: {one}\n"), policy(f"snapshots: {two}\n"))
        assert made.policy.snapshots is (one == two == "true")


def test_the_operators_stand_ins_are_taken_with_their_directory(tmp_path: Path) -> None:
    """And a task that brings files of its own can't have both directories."""
    theirs, ours = tmp_path / "operator", tmp_path / "task"
    for directory in (theirs, ours):
        (directory / "site").mkdir(parents=True)
    site = "{kind: http, names: [s.example], routes: [], files: site}"
    floor = policy(f"network: {{stand_ins: {{s: {site}}}}}\n", theirs)
    made = bounded(policy("network: {default: simulate}\n", ours), floor)
    assert (made.policy.network, made.base) == (floor.policy.network, theirs)
    assert bounded(policy("", ours), floor).base == ours
    (ours / "f").touch()
    with pytest.raises(PolicyError, match="files"):
        bounded(policy("network: {sink: true}\nfiles: [{source: f, target: f}]\n", ours), floor)


def test_a_raised_risk_refuses_what_it_does_not_allow() -> None:
    """Something real at risk high: an error, never a policy with it."""
    for task in (upstreams(ONE), "risk: medium\n" + upstreams(ONE)):
        with pytest.raises(PolicyError, match="reaches nothing real"):
            with_least_risk(policy(task), Risk.HIGH, where="settings")
        made = bounded(policy(task), policy("risk: high\n")).policy
        assert (str(made.risk), made.network) == ("high", None)
    raised = with_least_risk(policy("tier: gvisor\n"), Risk.CRITICAL, where="settings").policy
    assert (str(raised.risk), str(raised.tier)) == ("critical", "microvm")
    same = policy("risk: critical\n")
    assert with_least_risk(same, Risk.HIGH, where="settings") is same


@pytest.mark.promise("2.7")
def test_a_run_has_room_for_a_sample() -> None:
    """Its budget is a hundred samples' unless it is said, and never less than one's."""
    network = policy(upstreams(ONE)).policy.network
    assert network is not None
    assert network.upstreams[0].whole_run == RUN_BUDGETS * (2 << 20)
    with pytest.raises(PolicyError, match=r"run_budget: must not be less than `budget`"):
        policy(upstreams(ONE + ", run_budget: 1MiB"))


NETWORK = f"network: {{record: {{packets: 1GiB}}, stand_ins: {{{SHOP}}}}}\n"
SERVICES = policy(f"network: {{stand_ins: {{{CELL}}}}}\n").policy.network
ASKED = {"image": "ctf:2", "user": "1000", "env": {"FLAG": "f"}, "network": SERVICES}


@pytest.mark.promise("1.4", "1.5")
def test_under_the_operators_policy_a_task_keeps_what_it_brings() -> None:
    """Field by field; what the operator wrote yields, and is reported."""
    for floor in (load_preset("critical"), policy("image: mine\nworkdir: /w\nenv: {FLAG: g}\n")):
        made, differences = under_policy(floor, None, ASKED)
        found = made.policy
        assert found.network is not None
        kept = (found.image, found.user, found.workdir, found.env, [*found.network.stand_ins])
        assert kept == ("ctf:2", "1000", None, {"FLAG": "f"}, ["db"])
        assert (found.risk, found.tier) == (floor.policy.risk, floor.policy.tier)
        dropped = [each.key for each in differences if each.kind is DifferenceKind.DROPPED]
        assert dropped == ([] if floor.policy.image == "default" else ["image", "workdir", "env"])


@pytest.mark.promise("1.4", "1.5")
def test_of_a_tasks_own_policy_the_content_is_kept_and_no_wall() -> None:
    """An image comes without the operator's user; a network is the operator's, or none at all."""
    own = policy(f"image: ctf:2\nresources: {{memory: 1GiB}}\n{upstreams(ONE)}")
    operator = policy(f"risk: high\nuser: agent\nworkdir: /w\nenv: {{A: b}}\n{NETWORK}")
    made, differences = under_policy(operator, own, {})
    found = made.policy
    assert (found.image, found.user, found.workdir, dict(found.env)) == ("ctf:2", None, None, {})
    assert (str(found.risk), found.network) == ("high", operator.policy.network)
    changed = [each.key for each in differences if each.kind is DifferenceKind.CHANGED]
    assert changed == ["risk", "resources", "network"]
    assert under_policy(operator, None, {"network": NO_NETWORK})[0].policy.network is None
