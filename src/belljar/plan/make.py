"""Policy + host facts + image → plan.

A pure function: the same in, the same out, and nothing is weakened to make it fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belljar.host import HostFacts
from belljar.plan import explain
from belljar.plan.layers import Isolation, isolation_of
from belljar.plan.model import Bound, ImageFacts, MicrovmPlan, OciPlan, Plan
from belljar.plan.obstacles import (
    Obstacle,
    hardware_obstacle,
    network_obstacles,
    rights_obstacles,
    size_obstacles,
    tier_obstacles,
)
from belljar.plan.oci import OciShape
from belljar.plan.touch_sight import touch_warnings
from belljar.policy import Tier, demanded_tier, needs_hardware
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.plan.network import NetworkPlan
    from belljar.policy import Policy

NO_IMAGE_USER: Final = "root"


def make_plan(
    policy: Policy,
    facts: HostFacts,
    image: ImageFacts | None,
    *,
    base: Path | None = None,
    has_port: bool = False,
) -> Plan:
    """What this host will do about the policy.

    `image` None: not built; such a plan can be shown, not carried out. `base`: the policy's own
    directory, which its stand-ins' files are in; needed when there are any. `has_port`: the cell is
    on a range's network though its own policy names none (a target cell); with a network in the
    policy it always is.

    A policy that says its tier gets that one or is refused. Else the least tier that its risk
    allows and this host can carry out, with every limit enforced; which were skipped, and why, is
    among the plan's warnings.

    Raises:
        PolicyError: the policy asks for a lower tier than its risk demands, or its stand-ins have
            files and there is no `base`.
        HostError: this host can't do what the policy demands. The message says why and what to do.
    """
    demanded = demanded_tier(policy.risk, policy.tier)
    network = _network(policy, facts, base)
    isolation, skipped = _choose(policy, facts, demanded, has_port=has_port or network is not None)
    env = {**(image.env if image else {}), **policy.env}
    network_bounds, network_warnings = _network_words(network, facts)
    bounds = (*isolation.bounds, *network_bounds)
    make: Callable[..., Plan]
    match isolation.shape:
        case OciShape() as shape:
            make = partial(OciPlan, oci=shape)
        case vm, guest:
            make = partial(MicrovmPlan, vm=vm, guest=guest)
    return make(
        policy=policy,
        risk=policy.risk,
        demanded_tier=demanded,
        tier=isolation.tier,
        emulated=isolation.emulated,
        image=image,
        layers=isolation.layers,
        jail=isolation.jail,
        jail_controllers=facts.cgroup.controllers,
        memory_by_rlimit=isolation.memory_by_rlimit,
        user=policy.user or (image.user if image else NO_IMAGE_USER),
        workdir=policy.workdir or (image.workdir if image else "/"),
        env=env,
        hostname="random",
        limits=policy.resources,
        bounds=bounds,
        blast_radius=explain.blast_radius(
            policy, image, env, bounds, tier=isolation.tier, network=network
        ),
        warnings=(
            *explain.common_warnings(image, policy.image, skipped=skipped),
            *isolation.warnings,
            *network_warnings,
            *touch_warnings(policy, isolation.tier, facts),
        ),
        network=network,
        rights=isolation.rights,
        skipped_tiers=tuple(printable(sentence) for sentence in skipped),
    )


def _network(policy: Policy, facts: HostFacts, base: Path | None) -> NetworkPlan | None:
    """The range's network, if the policy has one and this host can make it."""
    if policy.network is None:
        return None
    from belljar.plan.network import plan_network

    network = plan_network(
        policy.network, base, decoys=policy.decoys, open_files_max=facts.open_files_max
    )
    if found := network_obstacles(facts, {item.kind for item in network.stand_ins}):
        raise found[0].error()
    return replace(network, controllers=facts.cgroup.controllers)


def _network_words(
    network: NetworkPlan | None, facts: HostFacts
) -> tuple[tuple[Bound, ...], tuple[str, ...]]:
    """What holds the range's network, and what the author should know of it."""
    if network is None:
        return (), ()
    from belljar.plan.explain_network import bounds, warnings

    return bounds(network), warnings(network, facts)


def _choose(
    policy: Policy, facts: HostFacts, demanded: Tier, *, has_port: bool
) -> tuple[Isolation, tuple[str, ...]]:
    """The tier, and a sentence for each that was skipped."""
    candidates = [
        tier for tier in Tier if tier >= demanded and (policy.tier is None or tier is policy.tier)
    ]
    refused: dict[Tier, Obstacle] = {}
    for tier in candidates:
        if found := (*rights_obstacles(policy.rights, tier), *tier_obstacles(tier, facts)):
            refused[tier] = found[0]
            continue
        isolation = isolation_of(
            tier, policy.resources, facts, has_port=has_port, rights=policy.rights
        )
        if found := _too_much(policy, facts, isolation):
            refused[tier] = found[0]
            continue
        return isolation, _skipped(tier, refused)
    raise _refusal(refused).error()


def _skipped(tier: Tier, refused: dict[Tier, Obstacle]) -> tuple[str, ...]:
    """A sentence for each skipped tier; a hint for several is given once."""
    said, hints = [], set()
    for weaker, obstacle in refused.items():
        hint = f"; hint: {obstacle.hint}" if obstacle.hint not in hints else ""
        hints.add(obstacle.hint)
        said.append(f"using tier {tier}: tier {weaker} can't be used here: {obstacle.what}{hint}")
    return tuple(said)


def _too_much(policy: Policy, facts: HostFacts, isolation: Isolation) -> tuple[Obstacle, ...]:
    """What of this policy, though the tier could run, is more than this host has."""
    hardware = hardware_obstacle(facts) if needs_hardware(policy.risk) else None
    sizes = size_obstacles(
        policy.resources, isolation.jail.memory_max_bytes, facts, besides=isolation.besides
    )
    return ((hardware,) if hardware is not None else ()) + sizes


def _refusal(refused: dict[Tier, Obstacle]) -> Obstacle:
    """The least tier's own obstacle, with those of the others that were tried; a size is the same
    matter in all of them.
    """
    first, *others = refused.items()
    if not others or first[1].where.startswith("resources."):
        return first[1]
    whys = "; ".join(f"{tier}: {obstacle.what}" for tier, obstacle in (first, *others))
    return Obstacle(
        what=f"no tier that this risk allows can run here: {whys}",
        where=first[1].where,
        hint=first[1].hint,
    )
