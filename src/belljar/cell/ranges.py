"""The cells of one sample on a network of their own: made in order, nothing left afterwards.

The network and its rules are made first and end last. Each target cell comes after those that it
awaits are healthy (default: all), the range's own cell last.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias

from belljar.cell.cell import Cell
from belljar.cell.decoys import mint_services
from belljar.cell.guarded import GuardedRecorder, guarded_recorder
from belljar.cell.parts import MachineParts, Parts, describe, prepare, refused
from belljar.cell.range import ModelRequests, Opening, Range
from belljar.cell.stop_rules import stop_rules
from belljar.cell.targets import Wait, start_serving, target_policy
from belljar.cell.task_data import ENVIRONMENT, trust
from belljar.errors import BelljarError, ContainmentBreach, first_of, host_errors
from belljar.isolation.renewal import GivenPort, PortSettings
from belljar.ledger.rundir import RunDirectory
from belljar.network.gateway.config import GuardConfig
from belljar.network.owner.processes import RangeSpec, started_fork_server
from belljar.network.owner.range import NetworkRange as Network
from belljar.network.owner.relay import RunSpending
from belljar.network.stand_ins import modules_of
from belljar.network.stand_ins.author import check_stand_ins
from belljar.plan.addresses import MIN_RANDOM_BYTES, lay_out
from belljar.plan.network import NetworkPlan, plan_network
from belljar.policy.guarding import METADATA_ADDRESS, OWN_CELL, Action, Place
from belljar.policy.loaded import LoadedPolicy
from belljar.probe.judge import Router, Sight, known_answers
from belljar.store.home import HINT_SPACE

PORT_NAME: Final = "eth0"
# In a run directory: packet records, each in a directory that `range.opening` names.
RANGES: Final = "ranges"
# A cell to be made: its name in the range, its policy, and what it is made from.
_Member: TypeAlias = tuple[str, LoadedPolicy, Parts]
# `ready_cell` of one sample: a cell at its port of the range's network, if it has one.
MakeCell: TypeAlias = Callable[..., AbstractAsyncContextManager[Cell]]


def range_port(network: Network, name: str, *, is_machine: bool) -> GivenPort:
    port = network.layout.cell(name)
    settings = PortSettings(
        address=IPv4Address(port.address),
        gateway=IPv4Address(network.layout.resolver),
        mac=port.mac,
        gateway_mac=port.gateway_mac,
    )
    # A machine takes frames as they are: nothing behind its device would finish what a link's
    # offloads leave undone.
    attach = partial(network.attach, name, offloads=not is_machine)
    return GivenPort(settings=settings, user_namespace=network.user_namespace, attach=attach)


def range_router(network: Network, plan: NetworkPlan, name: str) -> Router:
    def look() -> Sight:
        try:
            network.check_now()
        except BelljarError as error:
            is_breach = isinstance(error, ContainmentBreach)
            what = "the range's network is not as planned" if is_breach else "it can't be looked at"
            return Sight(touched=True if is_breach else None, what=f"{what}: {error.what}")
        return Sight(touched=False, what="the range's rules are the plan's")

    has_metadata = any(each.address == METADATA_ADDRESS for each in network.layout.names)
    return Router(
        interface=PORT_NAME,
        mac=network.layout.cell(name).mac,
        known=known_answers(
            sinks=plan.sink, simulates=plan.default == "simulate", metadata=has_metadata
        ),
        namespace=partial(network.namespace_of, name),
        look=look,
    )


async def open_with_network(stack: AsyncExitStack, opening: Opening, make: MakeCell) -> Range:
    """Open a range, which `stack` ends. Raise as `open_range`."""
    loaded, run, home = opening.loaded, opening.run, opening.home
    wanted = loaded.policy.network
    if wanted is not None and wanted.has_cells:
        kinds: list[str] = [item.kind for item in wanted.stand_ins.values()]
        kinds += [decoy.kind.value for decoy in loaded.policy.decoys if decoy.is_service]
        # It imports while the templates are looked at
        server = partial(started_fork_server, home, imports=modules_of(kinds))
        run.enter_once(f"fork server {home}", server)
    members = await prepare_range(loaded, run=run, home=home)
    own = members[-1][2]
    if (plan := own.plan.network) is None:
        raise RuntimeError("the policy has no network")
    rules = stack.enter_context(stop_rules(run, loaded.policy, home))
    upstreams = frozenset(upstream.id for upstream in plan.upstreams)
    guarded = guarded_recorder(rules, loaded, upstreams=upstreams)
    recorder = await stack.enter_async_context(guarded)
    recorder.services = mint_services(loaded.policy.decoys, run)
    cells: dict[str, Cell] = {}
    network = model_requests = None
    if plan.has_cells:
        spec = _spec(plan, own, run, recorder)
        network, model_requests = await _enter_network(stack, spec, recorder, cells, home)
    targets = {target.id: target for target in plan.targets}
    waits: dict[str, Wait] = {}
    routers: dict[str, Router] = {}
    for name, policy, parts in members:
        target = targets.get(name)
        awaited = None if target is None else target.awaits  # None: all
        for other in [other for other in waits if awaited is None or other in awaited]:
            await waits.pop(other)()
        port, place = None, {"name": name}
        # What ends together has one name, also where there is no network
        part_of = next((cell.id for cell in cells.values()), "")
        if network is not None:
            part_of = place["range"] = network.id
        has_port = plan.has_own_cell if target is None else not target.is_detached
        attached = network if has_port else None
        if attached is not None:
            parts = trusting(parts) if plan.has_tls else parts
            port = range_port(attached, name, is_machine=isinstance(parts, MachineParts))
        cell = cells[name] = await stack.enter_async_context(
            make(policy, parts, recorder=recorder, port=port, place=place, part_of=part_of)
        )
        if attached is not None:
            routers[cell.id] = range_router(attached, plan, name)
            await attached.check()  # before anything of its own runs
            if plan.has_tls:
                await trust(cell, attached.certificate)
        if target is not None:
            if opening.on_target is not None:
                await opening.on_target(cell, routers.get(cell.id))
            waits[name] = await start_serving(cell, target)
    return Range(
        cell=cells[OWN_CELL],
        targets={name: cell for name, cell in cells.items() if name != OWN_CELL},
        network=network,
        routers=routers,
        model_requests=model_requests,
    )


async def _enter_network(
    stack: AsyncExitStack,
    spec: RangeSpec,
    recorder: GuardedRecorder,
    cells: Mapping[str, Cell],
    home: Path,
) -> tuple[Network, ModelRequests]:
    model_requests = ModelRequests()

    def mark_failed(error: BelljarError) -> None:
        for cell in list(cells.values()):
            cell.mark_failed(error)

    network = await stack.enter_async_context(
        Network(
            spec,
            recorder=recorder,
            home=home,
            handle_request=model_requests,
            on_failure=mark_failed,
        )
    )
    stack.push_async_exit(partial(_after, network))
    # when the cells are gone, and before the network's end
    stack.callback(model_requests.close)
    return network, model_requests


async def prepare_range(loaded: LoadedPolicy, *, run: RunDirectory, home: Path) -> list[_Member]:
    """Prepare each cell of the range, its own last."""
    network = loaded.policy.network
    try:
        check_stand_ins(loaded)  # before a template or anything else is started
        targets = () if network is None else plan_network(network, loaded.base).targets
        policies = [(target, target_policy(loaded, target)) for target in targets]
    except BelljarError as error:
        run.recorder.record(refused(loaded, error))
        raise
    own = await prepare(loaded, recorder=run.recorder, home=home)
    describe(run, loaded, own)
    members = list[_Member]()
    for target, policy in policies:
        has_port = not target.is_detached
        parts = await prepare(policy, recorder=run.recorder, home=home, has_port=has_port)
        members.append((target.id, policy, parts))
    return [*members, (OWN_CELL, loaded, own)]


def _spec(
    plan: NetworkPlan, parts: Parts, run: RunDirectory, recorder: GuardedRecorder
) -> RangeSpec:
    """Make the packet record's directory. Raise `HostError`."""
    random_bytes = secrets.token_bytes(2 * MIN_RANDOM_BYTES)
    own, plan = (OWN_CELL,) if plan.has_own_cell else (), plan.attached()
    layout = lay_out(plan, own, random_bytes=random_bytes, avoid=parts.facts.routes)
    services = {item.id: item.settings for item in recorder.services}
    recorder.service_addresses = {
        name.address: name.stand_in for name in layout.names if name.stand_in in services
    }
    guard, rules = None, recorder.rules  # the gateway holds nothing back where rules only flag
    places = {Place.RANGE, *((Place.UPSTREAM,) if plan.upstreams else ())}
    if any(rules.action(place) is not Action.FLAG for place in places):
        actions = {place: rules.action(place) for place in Place}
        guard = GuardConfig(spec=recorder.spec, actions=actions)
    directory = run.path / RANGES / secrets.token_hex(4)
    with host_errors("the packet record can't be made", where=directory, hint=HINT_SPACE):
        directory.mkdir(mode=0o700, parents=True)
    return RangeSpec(
        network=plan,
        layout=layout,
        directory=directory,
        # One count of real upstreams for all ranges of the run
        spending=run.enter_once("spending", lambda: nullcontext(RunSpending())),
        guard=guard,
        services=services,
    )


async def _after(
    network: Network,
    _kind: type[BaseException] | None,
    error: BaseException | None,
    _trace: TracebackType | None,
) -> None:
    """End the range; raise its findings, a breach always."""
    await network.destroy()
    found = network.error
    if network.destruction is not None:
        network.destruction.raise_if_unclean(
            "the end of its network", where=f"range {network.id}", beside=error or found
        )
    is_breach = isinstance(found, ContainmentBreach) and not first_of(error, ContainmentBreach)
    if found is not None and (error is None or is_breach):
        raise found


def trusting(parts: Parts) -> Parts:
    env = {**ENVIRONMENT, **parts.plan.env}
    return replace(parts, plan=replace(parts.plan, env=env))  # type: ignore[arg-type]
