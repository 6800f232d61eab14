"""`open_range`: policy in, the cells of one sample on a network of their own out, and nothing left
afterwards.

The network stands first, with its rules, and goes last. Then the target cells, in the policy's
order, each after those that it awaits are healthy (all, unless it says which); the range's own cell
comes last, so that nothing of a sample runs before everything it may reach is there.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType
from typing import Final

import anyio
import anyio.to_thread

from belljar.cell.cell import Cell
from belljar.cell.decoys import mint_services
from belljar.cell.guarded import GuardedRecorder, guarded_recorder
from belljar.cell.model_requests import ModelRequests
from belljar.cell.open import OnTarget, decoys_in, open_cell, prepare, ready_cell, refused
from belljar.cell.parts import MachineParts, Parts, describe, start_run
from belljar.cell.targets import Wait, start_serving, target_policy
from belljar.cell.task_data import ENVIRONMENT, bring_volumes, trust
from belljar.cell.trips import tripping
from belljar.descriptors import exhaustion_as_host_error, require_free
from belljar.errors import BelljarError, ContainmentBreach, HostError
from belljar.events import Actor, Recorder
from belljar.host.settings import PolicyLike, resolve_here
from belljar.isolation.hold import refuse_if_held, refuse_if_stopped
from belljar.isolation.renewal import PortSettings
from belljar.ledger import RunDirectory
from belljar.network.gateway.config import GuardConfig
from belljar.network.owner.budget import RunSpending
from belljar.network.owner.making import RangeSpec
from belljar.network.owner.processes import started_fork_server
from belljar.network.owner.range import Range as Network
from belljar.network.owner.range import open_range as open_network
from belljar.network.owner.reading import Task, read_back
from belljar.network.stand_ins.author import check_stand_ins
from belljar.plan.addresses import MIN_RANDOM_BYTES, RangeLayout, lay_out
from belljar.plan.network import NetworkPlan, StandInPlan
from belljar.policy import LoadedPolicy
from belljar.policy.guarding import METADATA_ADDRESS, Action, Place
from belljar.policy.network import OWN_CELL
from belljar.probe.judge import Sight, known_answers
from belljar.store.home import belljar_home

PORT_NAME: Final = "eth0"
_RANGE_DESCRIPTORS: Final = 64
"""A range with one cell keeps some thirty open."""
RANGES: Final = "ranges"
"""Where in a run directory its ranges' packet records are, each in a directory that `range.opening`
names.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The cells of one sample, by name, its own first; and their network, None when the policy has
    none.
    """

    cells: Mapping[str, Cell]
    network: Network | None = None

    @property
    def cell(self) -> Cell:
        """The one that a sample works in."""
        return self.cells[OWN_CELL]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A cell to be: its name in the range, its policy, what it is made of."""

    name: str
    policy: LoadedPolicy
    parts: Parts


class RangePort:
    """One cell's port, as isolation needs it."""

    def __init__(self, network: Network, name: str, *, is_machine: bool) -> None:
        port = network.layout.cell(name)
        gateway = IPv4Address(network.layout.resolver)
        self.settings = PortSettings(
            address=IPv4Address(port.address),
            gateway=gateway,
            mac=port.mac,
            gateway_mac=port.gateway_mac,
            resolver=gateway,
        )
        self._network, self._name, self._is_machine = network, name, is_machine

    @property
    def range_id(self) -> str:
        """The range's name."""
        return self._network.id

    @property
    def user_namespace(self) -> int | None:
        """The range's user namespace; None as root."""
        return self._network.user_namespace

    async def attach(self, pid: int) -> None:
        """Put the link there. Raises `BelljarError`."""
        # A machine takes frames as they are: nobody behind its device would finish what a link's
        # offloads leave undone.
        await self._network.attach(self._name, pid, offloads=not self._is_machine)


class RangeRouter:
    """What a cell's port leads to, as probes see it."""

    interface = PORT_NAME

    def __init__(self, network: Network, plan: NetworkPlan, name: str) -> None:
        self._network, self._name = network, name
        self.mac = network.layout.cell(name).mac
        has_metadata = any(name.address == METADATA_ADDRESS for name in network.layout.names)
        self.known = known_answers(
            sinks=plan.sink, simulates=plan.default == "simulate", metadata=has_metadata
        )

    @property
    def namespace(self) -> int | None:
        """Where the port's inner end was put."""
        return self._network.namespace_of(self._name)

    def look(self) -> Sight:
        """Ask the range's supervisor whether rules and links are those of the plan."""
        try:
            self._network.check_now()
        except ContainmentBreach as error:
            return Sight(touched=True, what=f"the range's network is not as planned: {error.what}")
        except BelljarError as error:
            return Sight(touched=None, what=f"the range's rules could not be read: {error.what}")
        return Sight(
            touched=False,
            what="the range's rules are the plan's, and nothing but its own ports hangs on it",
        )


@asynccontextmanager
async def open_range(
    policy: PolicyLike = None,
    *,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
    ahead: bool = False,
    on_target: OnTarget | None = None,
) -> AsyncIterator[Range]:
    """The cells of one sample on a network of their own, destroyed when the block is left, however
    it is left. Arguments and errors as `open_cell`; besides:

    Raises:
        CellError: a target cell does not become healthy; the gateway or its supervisor died.
        ContainmentBreach: the network's rules were changed by somebody.

    A policy without a network gives a range of one cell.
    """
    home = home or belljar_home()
    refuse_if_held(home)
    loaded = resolve_here(policy)
    async with AsyncExitStack() as stack:
        require_free(_RANGE_DESCRIPTORS)
        with exhaustion_as_host_error():
            if run is None:
                run = stack.enter_context(start_run("range", loaded.source, [], home=home))
            refuse_if_stopped(home, run.run_id)
            if loaded.policy.network is None:
                cell = await stack.enter_async_context(
                    open_cell(loaded, run=run, home=home, actor=actor, ahead=ahead)
                )
                opened = Range(cells={OWN_CELL: cell})
            else:
                run.enter_once(
                    f"fork server {home}", partial(started_fork_server, home)
                )  # it imports while the templates are looked at
                members = await prepare_range(loaded, run=run, home=home)
                opened = await _open(
                    stack,
                    members,
                    run=run,
                    home=home,
                    actor=actor,
                    ahead=ahead,
                    on_target=on_target,
                )
                if loaded.policy.decoys and not ahead:
                    await stack.enter_async_context(decoys_in(opened.cell, loaded, run))
        yield opened
        _raise_if_dead(opened.network)


async def prepare_range(
    loaded: LoadedPolicy, *, run: RunDirectory, home: Path
) -> tuple[_Member, ...]:
    """As `prepare`, for every cell of the range, its own last; and the stand-ins' files are looked
    at. Refusals are recorded and raised.
    """
    own = await prepare(loaded, recorder=run.recorder, home=home)
    describe(run, loaded, own)
    plan = own.plan.network
    if plan is None:
        return (_Member(name=OWN_CELL, policy=loaded, parts=own),)
    members = []
    try:
        check_stand_ins(loaded)
        targets = [(target.id, target_policy(loaded, target)) for target in plan.targets]
    except BelljarError as error:
        run.recorder.record(refused(loaded, error))
        raise
    for name, policy in targets:
        parts = await prepare(policy, recorder=run.recorder, home=home, has_port=True)
        members.append(_Member(name=name, policy=policy, parts=parts))
    return (*members, _Member(name=OWN_CELL, policy=loaded, parts=own))


async def _open(
    stack: AsyncExitStack,
    members: tuple[_Member, ...],
    *,
    run: RunDirectory,
    home: Path,
    actor: Actor,
    ahead: bool,
    on_target: OnTarget | None,
) -> Range:
    own = members[-1]
    plan = own.parts.plan.network
    if plan is None:
        raise RuntimeError("a policy with a network has a plan of it")
    cells: dict[str, Cell] = {}
    model_requests = ModelRequests()
    upstreams = frozenset(upstream.id for upstream in plan.upstreams)
    rules = stack.enter_context(tripping(run, own.policy.policy, home))
    recorder = stack.enter_context(guarded_recorder(rules, own.policy, upstreams=upstreams))
    recorder.services = mint_services(own.policy.policy.decoys, run)
    network = await _open_network(
        stack, plan, own.parts, cells, run=run, recorder=recorder, home=home, answer=model_requests
    )
    stand = partial(
        ready_cell,
        recorder=recorder,
        run_id=run.run_id,
        home=home,
        actor=actor,
        ahead=ahead,
    )
    stack.callback(model_requests.close)  # when the cells are gone, and before the network's end
    stand_ins = {target.id: target for target in plan.targets}
    waits: dict[str, Wait] = {}
    for member in members:
        await _wait_for(waits, stand_ins.get(member.name))
        cell = cells[member.name] = await stack.enter_async_context(
            _at_port(stand, member, network, plan)
        )
        await _settle(cell, network, plan, on_target if member.name in stand_ins else None)
        if member.policy.data is not None:
            await bring_volumes(cell, member.policy.data, cells)
        if member.name in stand_ins:
            waits[member.name] = await start_serving(cell, stand_ins[member.name])
    own_cell = cells[OWN_CELL]
    own_cell.model_requests = model_requests
    own_cell.others = {name: cell for name, cell in cells.items() if name != OWN_CELL}
    return Range(cells={OWN_CELL: own_cell, **own_cell.others}, network=network)


async def _open_network(
    stack: AsyncExitStack,
    plan: NetworkPlan,
    parts: Parts,
    cells: Mapping[str, Cell],
    *,
    run: RunDirectory,
    recorder: GuardedRecorder,
    home: Path,
    answer: ModelRequests,
) -> Network:
    """The network of `cells`, which are still to come: its death is theirs.

    What they said to each other is read before it is left.
    """
    layout = _layout(plan, parts)
    services = {
        item.id: item.service.settings for item in recorder.services if item.service is not None
    }
    recorder.service_addresses = {
        name.address: name.stand_in for name in layout.names if name.stand_in in services
    }
    network = await stack.enter_async_context(
        open_network(
            RangeSpec(
                network=plan,
                layout=layout,
                directory=_packet_directory(run),
                spending=_spending_of(run),
                guard=guard_config(recorder, plan),
                services=services,
            ),
            recorder=recorder,
            home=home,
            handle_request=answer,
            on_failure=partial(_mark_failed, cells),
        )
    )
    stack.push_async_exit(partial(_after, network, plan, home, recorder))
    return network


_spending: Final[dict[Path, RunSpending]] = {}
"""Of each run that is open in this process, by its directory."""


def _spending_of(run: RunDirectory) -> RunSpending:
    """What the run has spent on real upstreams: one count for all its ranges."""

    @contextmanager
    def counted() -> Iterator[None]:
        _spending[run.path] = RunSpending()
        try:
            yield
        finally:
            del _spending[run.path]

    run.enter_once("spending", counted)
    return _spending[run.path]


def guard_config(recorder: GuardedRecorder, plan: NetworkPlan) -> GuardConfig | None:
    """What the range's gateway holds back; None where its policy only flags."""
    rules = recorder.rules
    places = {Place.RANGE, *((Place.UPSTREAM,) if plan.upstreams else ())}
    if all(rules.action(place) is Action.FLAG for place in places):
        return None
    return GuardConfig(spec=recorder.spec, actions={place: rules.action(place) for place in Place})


def _at_port(
    stand: Callable[..., AbstractAsyncContextManager[Cell]],
    member: _Member,
    network: Network,
    plan: NetworkPlan,
) -> AbstractAsyncContextManager[Cell]:
    """The member's cell, to stand at its port of the network."""
    parts = _trusting(member.parts) if plan.has_tls else member.parts
    return stand(
        member.policy,
        parts,
        port=RangePort(network, member.name, is_machine=isinstance(parts, MachineParts)),
        router=RangeRouter(network, plan, member.name),
        place={"range": network.id, "name": member.name},
    )


async def _wait_for(waits: dict[str, Wait], target: StandInPlan | None) -> None:
    """Until those that a target awaits are healthy; the range's own cell (None) awaits all.

    Each is waited for once.
    """
    names = (
        list(waits)
        if target is None or target.awaits is None
        else [name for name in target.awaits if name in waits]
    )
    for name in names:
        await waits.pop(name)()


async def _settle(
    cell: Cell, network: Network, plan: NetworkPlan, on_target: OnTarget | None
) -> None:
    """What is done in a cell that stands, before anything of its own runs: trust, and a target's
    calls `on_target`.
    """
    await network.check()
    if plan.has_tls:
        await trust(cell, network.certificate)
    if on_target is not None:
        await on_target(cell)


def _packet_directory(run: RunDirectory) -> Path:
    """A directory of the run for one range's packet record. Raises `HostError`."""
    directory = run.path / RANGES / secrets.token_hex(4)
    try:
        directory.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise HostError(
            f"the packet record can't be made: {error.strerror}",
            where=str(directory),
            hint="check the free space",
        ) from error
    return directory


def _mark_failed(cells: Mapping[str, Cell], error: BelljarError) -> None:
    for cell in list(cells.values()):
        cell.mark_failed(error)


def _raise_if_dead(network: Network | None) -> None:
    """Raises what the range died of, if it has."""
    if network is not None and network.error is not None:
        raise network.error


async def _after(
    network: Network,
    plan: NetworkPlan,
    home: Path,
    recorder: Recorder,
    _kind: type[BaseException] | None,
    error: BaseException | None,
    _trace: TracebackType | None,
) -> None:
    """End the range; when its packet record is whole, what its cells asked of each other; then
    raise what its end found, if nothing is raised already.
    """
    with anyio.CancelScope(shield=True):
        await network.destroy()
        await anyio.to_thread.run_sync(_read_back, network, plan, home, recorder)
    if error is None:
        _raise_if_dead(network)
        _raise_if_left(network)


def _raise_if_left(network: Network) -> None:
    found = network.destruction
    if found is not None and found.survivors:
        raise ContainmentBreach(
            f"the end of its network left: {', '.join(found.survivors)}",
            where=f"range {network.id}",
            hint="it was removed and recorded; do not count this sample as contained",
        )
    if found is not None and found.unproven:
        raise HostError(
            f"the end of its network could not be proven; not looked for: "
            f"{'; '.join(found.unproven)}",
            where=f"range {network.id}",
            hint="do not count this sample as contained; `belljar reap` looks again",
        )


def _read_back(network: Network, plan: NetworkPlan, home: Path, recorder: Recorder) -> None:
    if plan.reached_cells:
        task = Task.of(
            network.packet_files,
            network.counters(),
            range_id=network.id,
            layout=network.layout,
            network=plan,
        )
        read_back(task, home=home, recorder=recorder)


def _layout(plan: NetworkPlan, parts: Parts) -> RangeLayout:
    return lay_out(
        plan,
        (OWN_CELL,),
        random_bytes=secrets.token_bytes(2 * MIN_RANDOM_BYTES),
        avoid=parts.facts.routes,
    )


def _trusting(parts: Parts) -> Parts:
    """The same with the variables that point programs to the cell's authorities; the policy's own
    win.
    """
    env = {**ENVIRONMENT, **parts.plan.env}
    if isinstance(parts, MachineParts):
        return replace(parts, plan=replace(parts.plan, env=env))
    return replace(parts, plan=replace(parts.plan, env=env))
