"""A cell's policy: what its task wants, nowhere looser than the operator's. Pure.

The rule of each field stands in design/policy.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from belljar.dataclass import asdict, replace
from belljar.differences import Difference, DifferenceKind
from belljar.errors import PolicyError
from belljar.policy.fields import wrong_fields
from belljar.policy.guarding import DEFAULT_ACTIONS, Action, Place, Stop, Trigger, stop_for
from belljar.policy.limits import ANY, HostTools, Resources, Risk, Tier, demanded_tier, least_tier
from belljar.policy.loaded import LoadedPolicy
from belljar.policy.model import Policy
from belljar.policy.network import Network, Record, Upstream
from belljar.units import printable

NO_NETWORK: Final = "none"  # a task's wish for no network, whatever its policy has
TASK: Final = "task"  # the whole of a task's sandbox, as the place of a difference
_CONTENT: Final[Mapping[str, Any]] = {  # fields that open nothing, and their values when unset
    "image": "default",
    "user": None,
    "workdir": None,
    "env": {},
    "files": (),
}
_STOPS: Final = [*Stop].index


def bounded(wanted: LoadedPolicy, bound: LoadedPolicy) -> LoadedPolicy:
    """Make it nowhere looser than `bound`. Raises `PolicyError`."""
    ours, theirs = wanted.policy, bound.policy
    risk = max(ours.risk, theirs.risk)
    tier = _tier(risk, ours.tier, theirs.tier)
    network = ours.network
    is_theirs = network is not None and _is_alike(network, theirs.network)
    if network is not None and is_closed(network) and not is_theirs:
        network = _held_cells(network, theirs, demanded_tier(risk, tier))
    elif network is not None:
        is_theirs, network = True, _common_network(network, theirs.network)
    if network is not None and ours.network is not None and theirs.network is not None:
        one, other = ours.network.record, theirs.network.record
        kept = {name: max(getattr(one, name), getattr(other, name)) for name in Record.model_fields}
        network = network.model_copy(update={"record": one.model_copy(update=kept)})
    tools, floor = ours.host_tools_rule, theirs.host_tools_rule
    if ANY in tools.allow:
        tools = floor
    elif ANY not in floor.allow:
        tools = HostTools(allow=tuple(name for name in tools.allow if name in floor.allow))
    guard = theirs.guard
    if guard is None and (guard := ours.guard):  # its defaults hold where the floor wrote none
        usual, order = DEFAULT_ACTIONS, [*Action].index
        own = guard.rules()
        actions = {each: max(own.action(each), usual[each], key=order) for each in Place}
        guard = guard.model_copy(update={"action": actions})
    changes = {
        "risk": risk,
        "tier": tier,
        "network": network,
        "rights": ours.rights and ours.rights.common(theirs.rights),
        "host": ours.host or theirs.host,
        "snapshots": ours.snapshots and theirs.snapshots,
        # Unwritten in both, the default stays that of the risk, which settings may raise later.
        "host_tools": tools if ours.host_tools or theirs.host_tools else None,
        "guard": guard,
        "on": {
            trigger: max(stop_for(ours.on, trigger), stop_for(theirs.on, trigger), key=_STOPS)
            # A trigger that neither names stays unwritten, and keeps its default.
            for trigger in Trigger
            if trigger in ours.on or trigger in theirs.on
        },
    }
    # Resources are not read anew: their text form rounds to microseconds.
    resources = smaller_resources(ours.resources, theirs.resources)
    made = with_changes(wanted, changes).policy.model_copy(update={"resources": resources})
    of_network = bound.base if is_theirs else wanted.base
    of_guard = bound.base if theirs.guard is not None else wanted.base
    base = _directory(made, wanted.source, wanted.base, of_network, of_guard)
    return replace(wanted, policy=made, base=base)


def with_changes(loaded: LoadedPolicy, changes: Mapping[str, Any]) -> LoadedPolicy:
    """Replace fields, and check them anew. Raises `PolicyError`."""
    model = type(loaded.policy)
    fields = {name: getattr(loaded.policy, name) for name in model.model_fields}
    try:
        changed = model.model_validate({**fields, **changes}, strict=False)
    except ValidationError as error:
        wrong = printable(wrong_fields(error), max_chars=600)
        what = f"the policy can't be changed as asked: {wrong}"
        hint = "change the task's sandbox, or use your own policy: `belljar run --policy FILE`"
        raise PolicyError(what, where=printable(loaded.source), hint=hint) from error
    return replace(loaded, policy=changed)


def with_least_risk(loaded: LoadedPolicy, least: Risk, *, where: str) -> LoadedPolicy:
    """Raises `PolicyError`."""
    policy = loaded.policy
    if policy.risk >= least:
        return loaded
    try:
        return with_changes(loaded, {"risk": least, "tier": _tier(least, policy.tier)})
    except PolicyError as error:
        what = f"risk `{policy.risk}` is raised to `{least}`, and then it can't be: {error.what}"
        hint = f"{where} says the least risk"
        raise PolicyError(what, where=error.where, hint=hint) from error


def _tier(risk: Risk, *asked: Tier | None) -> Tier | None:
    named = [tier for tier in asked if tier is not None]
    return max(*named, least_tier(risk)) if named else None


def smaller_resources(ours: Resources, theirs: Resources) -> Resources:
    pairs = asdict(theirs)
    return Resources(**{name: min(most, pairs[name]) for name, most in asdict(ours).items()})


def is_closed(network: Network) -> bool:
    """It reaches only its own range's cells."""
    is_plain = not network.upstreams and not network.sink and network.default == "deny"
    return is_plain and len(network.targets) == len(network.stand_ins)


def _is_alike(network: Network, other: Network | None) -> bool:
    # Both are merged field by field, so they don't make it another network.
    none = {"upstreams": (), "record": Record()}
    return other is not None and network.model_copy(update=none) == other.model_copy(update=none)


def _held_cells(network: Network, bound: Policy, least: Tier) -> Network:
    held = {
        name: item.model_copy(
            update={
                "resources": smaller_resources(item.resources, bound.resources),
                "rights": item.rights and item.rights.common(bound.rights),
                # A target's `tier` only raises the range's: one below that falls away instead of
                # failing.
                "tier": None if item.tier is not None and item.tier < least else item.tier,
            }
        )
        for name, item in network.targets.items()
    }
    return network.model_copy(update={"stand_ins": held})


def _common_network(ours: Network, theirs: Network | None) -> Network | None:
    if theirs is None:
        return None
    wanted = {upstream.host: upstream for upstream in ours.upstreams}
    both = []
    for upstream in theirs.upstreams:
        own = wanted.get(upstream.host, upstream)
        tighter = {
            "ports": tuple(port for port in upstream.ports if port in own.ports),
            "methods": tuple(method for method in upstream.methods if method in own.methods),
            "budget": min(own.budget, upstream.budget),
            "run_budget": min(own.whole_run, upstream.whole_run),
        }
        if upstream.host in wanted and tighter["ports"] and tighter["methods"]:
            # An upstream without a common port or method falls away: it could carry nothing.
            both.append(upstream if own == upstream else upstream.model_copy(update=tighter))
    return theirs.model_copy(update={"upstreams": tuple(both)})


def _directory(
    policy: Policy, source: str, files: Path | None, network: Path | None, guard: Path | None
) -> Path | None:
    stand_ins = policy.network.stand_ins.values() if policy.network is not None else ()
    needed = [files] if policy.files else []
    if any(each.own_path()[0] or getattr(each, "files", ()) for each in stand_ins):
        needed.append(network)
    if any(item.file for item in policy.guard_rules.protect):
        needed.append(guard)
    if len(set(needed)) > 1:
        what = "the task and the operator's policy both have files, of two directories"
        raise PolicyError(what, where=printable(source), hint="put all files into one of them")
    return needed[0] if needed else files


def above_floor(
    base: LoadedPolicy, asked: Mapping[str, Any], floor: LoadedPolicy | None
) -> tuple[LoadedPolicy, tuple[Difference, ...]]:
    """Hold a compose file (`asked`) above the floor. Raises `PolicyError`."""
    changes, network = dict(asked), base.policy.network
    found = list[Difference]()
    if "network" in asked and network is not None:
        if isinstance(made := asked["network"], Network):
            changes["network"] = made.model_copy(update={"record": network.record})
        why = "the task's compose file takes its place: its stand-ins and upstreams are not there"
        found.append(_fact("network", why, DifferenceKind.DROPPED, where="policy"))
    if "resources" in asked:
        changes["resources"] = {**base.policy.resources.written(), **asked["resources"]}
    if "env" in asked:
        changes["env"] = {**base.policy.env, **asked["env"]}
    wanted = with_changes(base, changes) if changes else base
    if floor is None:
        return wanted, tuple(found)
    held = bounded(wanted, floor)
    return held, (*found, *looser(wanted.policy, held.policy, by="$BELLJAR_POLICY"))


def under_policy(
    run_policy: LoadedPolicy, own: LoadedPolicy | None, asked: Mapping[str, Any]
) -> tuple[LoadedPolicy, tuple[Difference, ...]]:
    """Put the task into the operator's isolation. Raises `PolicyError`."""
    operator, found = _content(run_policy.policy), list[Difference]()
    task = _content(own.policy) if own is not None else {}
    files_base = own.base if own is not None and "files" in task else run_policy.base
    task = _laid_over(task, {name: asked[name] for name in _CONTENT if name in asked})
    network, network_base, of_network = _network(run_policy, own, asked)
    if own is not None:
        found += [
            _fact(name, "as --policy says, not as the task's own policy does")
            for name in ("risk", "tier", "resources", "host_tools")
            if name in own.policy.model_fields_set
            and getattr(own.policy, name) != getattr(run_policy.policy, name)
        ]
    if "image" in task:
        why = "the policy's is not used: the task brings an image of its own"
        found += [
            _fact(name, why, DifferenceKind.DROPPED, where="policy")
            for name, value in operator.items()
            if value not in (_CONTENT[name], task.get(name))
        ]
        operator = {}
    changes = {**_CONTENT, **_laid_over(operator, task), "network": network}
    if own is not None and own.policy.host:
        changes["host"] = own.policy.host
    if rights := asked.get("rights") or (own.policy.rights if own is not None else None):
        changes["rights"] = rights
    if "resources" in asked:
        limits = run_policy.policy.resources.written() | asked["resources"]
        changes["resources"] = with_changes(run_policy, {"resources": limits}).policy.resources
    wanted = run_policy.policy.model_copy(update=changes)  # `bounded` validates it
    base = _directory(wanted, run_policy.source, files_base, network_base, run_policy.base)
    made = bounded(replace(run_policy, policy=wanted, base=base), run_policy)
    return made, (*found, *of_network, *looser(wanted, made.policy, by="the policy"))


def _content(policy: Policy) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in _CONTENT if name in policy.model_fields_set}


def _laid_over(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    return {**under, **over, "env": {**under.get("env", {}), **over.get("env", {})}}


def _network(
    run_policy: LoadedPolicy, own: LoadedPolicy | None, asked: Mapping[str, Any]
) -> tuple[Network | None, Path | None, list[Difference]]:
    operator, wanted = run_policy.policy.network, asked.get("network")
    task = own.policy.network if own is not None else None
    services, base = task, own.base if own is not None else None
    if isinstance(wanted, Network):  # a compose file, which says nothing of the record
        record = {"record": operator.record} if operator is not None else {}
        services, base = wanted.model_copy(update=record), run_policy.base
    has_own = services is not None and bool(services.stand_ins) and is_closed(services)
    if wanted == NO_NETWORK or has_own:
        why = "the policy's is not there: the task has its own"
        dropped = _fact("network", why, DifferenceKind.DROPPED, where="policy")
        found = [] if operator is None else [dropped]
        return (services, base, found) if wanted != NO_NETWORK else (None, run_policy.base, found)
    why = "as --policy says, instead of the task's own"
    found = [] if task is None or task == operator else [_fact("network", why)]
    return operator, run_policy.base, found


def looser(wanted: Policy, made: Policy, *, by: str) -> Iterator[Difference]:
    """Yield where a task wants more than it gets."""
    more = f"the task asks for more than {by} allows, and gets what that says"
    was, now = wanted.network, made.network
    if wanted.risk != made.risk:
        yield _fact("risk", more)
    if demanded_tier(wanted.risk, wanted.tier) != demanded_tier(made.risk, made.tier):
        yield _fact("tier", more)
    yield from _limited(wanted.resources, made.resources, more, where=TASK)
    for name in ("rights", "host", "host_tools_rule", "guard", "on"):
        if getattr(wanted, name) != getattr(made, name):
            yield _fact("host.air_gap" if name == "host" else name.removesuffix("_rule"), more)
    if was is None:
        return
    if now is None or not (is_closed(was) or _is_alike(was, now)):
        yield _fact("network", more)
    if now is None:
        return
    for name in Record.model_fields:
        if getattr(was.record, name) != getattr(now.record, name):
            yield _fact(f"network.record.{name}", more)
    for name, item in was.targets.items():
        if held := now.targets.get(name):
            where = f"service {name}"
            if item.rights != held.rights:
                yield _fact("rights", more, where=where)
            if "resources" in item.model_fields_set:
                yield from _limited(item.resources, held.resources, more, where=where)
    kept = {_reach(each) for each in now.upstreams}
    for each in was.upstreams:
        if _reach(each) not in kept:
            yield _fact(f"network.upstreams ({each.host})", more)


def _reach(upstream: Upstream) -> tuple[object, ...]:
    ports, methods = frozenset(upstream.ports), frozenset(upstream.methods)
    return upstream.host, ports, methods, upstream.budget, upstream.whole_run


def _limited(asked: Resources, held: Resources, more: str, *, where: str) -> Iterator[Difference]:
    given = held.written()
    for name, wanted in asked.written().items():
        if wanted != given[name]:
            yield _fact(f"resources.{name}", more, where=where)


def _fact(
    key: str, detail: str, kind: DifferenceKind = DifferenceKind.CHANGED, *, where: str = TASK
) -> Difference:
    return Difference(kind=kind, where=printable(where), key=printable(key), detail=detail)
