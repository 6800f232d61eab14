"""A task's own policy beneath an operator's: which is tighter, field by field, and both. Pure.

- `risk`, and the tier that risk and `tier` demand together: the higher.
- Each of `resources`: the smaller.
- `host_tools`: fewer tools that may act outside of a cell.
- `rights`: fewer; a policy without a word of them bounds none.
- `network`: none, or cells of the sample's own range alone; else the operator's own.
- `network.upstreams`: fewer hosts, ports and methods, smaller budgets.
- `guard`: the operator's own, if any.
- Each of `on`: stops more.
- Each of `network.record`: the larger, which keeps more evidence.

All else has no order, opens nothing and stays the task's; of two networks the operator's is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from belljar.errors import PolicyError
from belljar.policy.guarding import Stop, Trigger, stop_for
from belljar.policy.limits import ANY, HostTools, Resources, Risk, Tier, demanded_tier, least_tier
from belljar.policy.load import with_changes
from belljar.policy.loaded import LoadedPolicy
from belljar.policy.model import Policy
from belljar.policy.network import Default, Network, Record, Upstream
from belljar.policy.sections import common_rights, is_within
from belljar.policy.stand_ins import TargetStandIn
from belljar.units import printable


def looser_fields(policy: Policy, floor: Policy) -> tuple[str, ...]:
    """The fields in which `policy` goes beyond `floor`."""
    return tuple(_looser(policy, floor))


def _looser(policy: Policy, floor: Policy) -> Iterator[str]:
    if policy.risk < floor.risk:
        yield "risk"
    if demanded_tier(policy.risk, policy.tier) < demanded_tier(floor.risk, floor.tier):
        yield "tier"
    for field in fields(Resources):
        if getattr(policy.resources, field.name) > getattr(floor.resources, field.name):
            yield f"resources.{field.name.removesuffix('_bytes').removesuffix('_s')}"
    if policy.host_tools_rule != _fewer_tools(policy.host_tools_rule, floor.host_tools_rule):
        yield "host_tools"
    if not is_within(policy.rights, floor.rights):
        yield "rights"
    if floor.guard is not None and policy.guard != floor.guard:
        yield "guard"
    if policy.on != _more_stops(policy.on, floor.on):
        yield "on"
    if policy.network is not None:
        yield from _looser_network(policy.network, floor)


def _more_stops(
    ours: Mapping[Trigger, Stop], floor: Mapping[Trigger, Stop]
) -> Mapping[Trigger, Stop]:
    """For each trigger that one of both names, what stops more."""
    order = list(Stop)
    named = [trigger for trigger in Trigger if trigger in ours or trigger in floor]
    return {
        trigger: max(stop_for(ours, trigger), stop_for(floor, trigger), key=order.index)
        for trigger in named
    }


def _looser_network(network: Network, floor: Policy) -> Iterator[str]:
    is_operators = _is_the_same(network, floor.network)
    if floor.network is not None:
        for name in Record.model_fields:
            if getattr(network.record, name) < getattr(floor.network.record, name):
                yield f"network.record.{name}"
    if not is_operators and is_closed(network):
        for name, item in network.stand_ins.items():
            if not isinstance(item, TargetStandIn):
                continue
            if not is_within(item.rights, floor.rights):
                yield f"network.stand_ins.{name}.rights"
            if smaller_resources(item.resources, floor.resources) != item.resources:
                yield f"network.stand_ins.{name}.resources"
        return
    if not is_operators:
        yield "network"
    if floor.network is None:
        return
    named = {upstream.host: upstream for upstream in floor.network.upstreams}
    for upstream in network.upstreams:
        if upstream.host not in named or not _is_within(upstream, named[upstream.host]):
            yield f"network.upstreams ({upstream.host})"


def _is_the_same(network: Network, other: Network | None) -> bool:
    """But for upstreams and the record."""
    none = {"upstreams": (), "record": Record()}
    return other is not None and network.model_copy(update=none) == other.model_copy(update=none)


def is_closed(network: Network) -> bool:
    """Whether it reaches only cells of its own range."""
    is_plain = not network.upstreams and not network.sink and network.default is Default.DENY
    return is_plain and all(isinstance(item, TargetStandIn) for item in network.stand_ins.values())


def _is_within(upstream: Upstream, floor: Upstream) -> bool:
    return (
        set(upstream.ports) <= set(floor.ports)
        and set(upstream.methods) <= set(floor.methods)
        and upstream.budget <= floor.budget
        and upstream.whole_run <= floor.whole_run
    )


def tightened(loaded: LoadedPolicy, floor: LoadedPolicy) -> LoadedPolicy:
    """The task's policy, nowhere looser than the operator's.

    Raises `PolicyError` if both bring files.
    """
    ours, theirs = loaded.policy, floor.policy
    risk = max(ours.risk, theirs.risk)
    tier = _tier(risk, ours.tier, theirs.tier)
    is_operators = ours.network is not None and _is_the_same(ours.network, theirs.network)
    if ours.network is None or (is_closed(ours.network) and not is_operators):
        least = demanded_tier(risk, tier)
        network = None if ours.network is None else held_cells(ours.network, theirs, least)
        base = loaded.base
    else:
        network = _both_networks(ours.network, theirs.network)
        base = loaded.base if network is None else floor.base
    if network is not None and ours.network is not None and theirs.network is not None:
        record = larger_record(ours.network.record, theirs.network.record)
        network = network.model_copy(update={"record": record})
    guarded = floor if theirs.guard is not None else loaded
    protects_files = any(item.file for item in guarded.policy.guard_rules.protect)
    if (ours.files and base != loaded.base) or (protects_files and base != guarded.base):
        raise PolicyError(
            "both it and the operator's policy need files, and a cell takes files from the "
            "directory of one policy only",
            where=printable(loaded.source),
            hint="put both into one policy: `belljar run --policy FILE` or `inspect eval "
            "--sandbox belljar:FILE`",
        )
    changes = {
        "risk": risk,
        "tier": tier,
        "network": network,
        "rights": common_rights(ours.rights, theirs.rights),
        "host_tools": _fewer_tools(ours.host_tools_rule, theirs.host_tools_rule),
        "guard": theirs.guard or ours.guard,
        "on": _more_stops(ours.on, theirs.on),
    }
    made = with_changes(loaded, changes).policy
    resources = smaller_resources(ours.resources, theirs.resources)
    return replace(loaded, policy=made.model_copy(update={"resources": resources}), base=base)


def with_least_risk(loaded: LoadedPolicy, least: Risk, *, where: str) -> LoadedPolicy:
    """The policy with at least this risk, which `where` asks for. Raises `PolicyError`."""
    policy = loaded.policy
    if policy.risk >= least:
        return loaded
    try:
        return with_changes(loaded, {"risk": least, "tier": _tier(least, policy.tier, None)})
    except PolicyError as error:
        raise PolicyError(
            f"risk `{policy.risk}` is raised to `{least}`, and then it can't be: {error.what}",
            where=error.where,
            hint=f"{where} says the least risk",
        ) from error


def _tier(risk: Risk, *asked: Tier | None) -> Tier | None:
    named = [tier for tier in asked if tier is not None]
    return max(*named, least_tier(risk)) if named else None


def smaller_resources(ours: Resources, theirs: Resources) -> Resources:
    """Each limit the smaller of both."""
    names = [field.name for field in fields(Resources)]
    return Resources(**{name: min(getattr(ours, name), getattr(theirs, name)) for name in names})


def larger_record(ours: Record, theirs: Record) -> Record:
    """Each bound the larger of both."""
    kept = {name: max(getattr(ours, name), getattr(theirs, name)) for name in Record.model_fields}
    return ours.model_copy(update=kept)


def _fewer_tools(ours: HostTools, theirs: HostTools) -> HostTools:
    """What both allow, as the first has it."""
    if ANY in ours.allow:
        return theirs
    if ANY in theirs.allow:
        return ours
    return HostTools(allow=tuple(name for name in ours.allow if name in theirs.allow))


def held_cells(network: Network, floor: Policy, least: Tier) -> Network:
    """The same cells, bounded by the floor and in no lesser tier."""
    held = {
        name: item.model_copy(
            update={
                "resources": smaller_resources(item.resources, floor.resources),
                "rights": common_rights(item.rights, floor.rights),
                "tier": None if item.tier is not None and item.tier < least else item.tier,
            }
        )
        for name, item in network.stand_ins.items()
        if isinstance(item, TargetStandIn)
    }
    return network.model_copy(update={"stand_ins": held})


def _both_networks(ours: Network, theirs: Network | None) -> Network | None:
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
            both.append(upstream.model_copy(update=tighter))
    return theirs.model_copy(update={"upstreams": tuple(both)})
