"""Starts a range's processes. Blocking."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import json_of
from belljar.errors import HostError
from belljar.host.tools import SEARCH_PATH
from belljar.network import ipc
from belljar.network.gateway.config import (
    FILES_ROOT,
    HTTP_PORT,
    Bounds,
    GatewayConfig,
    GuardConfig,
    as_neighbour,
    as_stand_in,
)
from belljar.network.owner.dial import Reach
from belljar.network.owner.processes import SERVE, ForkServer, RangeProcesses
from belljar.network.owner.relay import RunSpending
from belljar.network.stand_ins import modules_of
from belljar.plan.addresses import RangeLayout
from belljar.plan.network import NetworkPlan
from belljar.plan.rules import render_rules

# Between two, the kernel's own notices report a change of rules at once.
CHECK_EVERY_S: Final = 5.0
TIMEOUT_S: Final = 30.0
# What the kernel holds longer after a SIGKILL is found by the search for survivors.
END_DEADLINE_S: Final = 5.0
PACKETS: Final = "packets.pcapng"
_SEED_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSpec:
    """What a range is made from.

    Args:
        network: the plan; `layout`: addresses for it and its cells.
        directory: an existing directory for the packet record, which stays.
        check_every_s: interval of rule checks and of the gateway's heartbeat.
        timeout_s: beyond that, how long a part may be silent to an owner that listens, and the
            supervisor may wait for an owner that doesn't.
        serve: `module:function` of the gateway.
        reach: how upstreams are reached; `spending`: what the run has spent on them.
        guard: what holds back cells' data, if anything.
        services: decoy services' secret settings, by stand-in.
    """

    network: NetworkPlan
    layout: RangeLayout
    directory: Path
    check_every_s: float = CHECK_EVERY_S
    timeout_s: float = TIMEOUT_S
    serve: str = SERVE
    reach: Reach = field(default_factory=Reach)
    spending: RunSpending = field(default_factory=RunSpending)
    guard: GuardConfig | None = None
    services: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)


def fork_pair(
    fork_server: ForkServer,
    spec: RangeSpec,
    held: Sequence[int],
    *,
    supervisor_uid: int | None,
    gateway_uid: int | None,
) -> RangeProcesses:
    """Supervisor and gateway, waiting for `go`; the supervisor keeps `held` open.

    Uids are None for an ordinary user's. Raises `HostError`, `CellError`.
    """
    directories = _directories(spec.network, gateway_uid)
    nft = shutil.which("nft", path=f"{os.environ.get('PATH', '')}:{SEARCH_PATH}")
    if nft is None:
        hint = "run `belljar setup`, or install the package nftables"
        raise HostError("nft can't be found", where="PATH", hint=hint)
    task: dict[str, Any] = {"nft": str(Path(nft).resolve()), "uid": supervisor_uid}
    task |= {"check_every_s": spec.check_every_s, "timeout_s": spec.timeout_s}
    task |= {"layout": json_of(spec.layout), "network": json_of(spec.network)}

    with ExitStack() as theirs, ExitStack() as ours:

        def closed_by(stack: ExitStack, fd: int) -> int:
            stack.callback(os.close, fd)
            return fd

        def pair(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
            one, other = ipc.pair()
            return stack.enter_context(one), theirs.enter_context(other)

        control, supervisors_control = pair(ours)
        events, gateways_events = pair(ours)
        to_gateway, to_supervisor = pair(theirs)
        stderr, stderr_write = map(closed_by, (ours, theirs), os.pipe())
        rules, supervisor_document, gateway_document = (
            closed_by(theirs, ipc.new_file()) for _ in range(3)
        )
        # A record is written once.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = closed_by(theirs, os.open(spec.directory / PACKETS, flags, 0o600))
        except OSError as exc:
            what, where = f"the packet record can't be made: {exc.strerror}", str(spec.directory)
            raise HostError(what, where=where, hint="free some space there") from exc
        supervisors = [supervisors_control.fileno(), to_gateway.fileno(), supervisor_document]
        gateways = [gateways_events.fileno(), to_supervisor.fileno(), gateway_document]
        given = {
            "supervisor": [*supervisors, stderr_write, rules, file, *held],
            "gateway": [*gateways, stderr_write],
        }
        kinds = [item.kind for item in spec.network.stand_ins if not item.is_target]
        kinds += ["catch_all"] if spec.layout.catch_all is not None else []
        supervisor, gateway = fork_server.fork(given, modules_of(kinds))
        for child in (supervisor, gateway):
            ours.callback(os.close, child.pidfd)
            ours.callback(child.wait_ended, END_DEADLINE_S)  # no journal entry names it yet
            ours.callback(child.kill)
        # They read these when they are told to go: meanwhile both have their modules to import.
        ipc.fill(rules, render_rules(spec.layout, spec.network))
        ipc.fill(supervisor_document, task)
        ipc.fill(gateway_document, _for_gateway(spec, gateway_uid, directories))
        ours.pop_all()  # they are the caller's
        return RangeProcesses(
            supervisor=supervisor,
            gateway=gateway,
            control=control,
            events=events,
            stderr=stderr,
            fork_server=fork_server,
        )


def _for_gateway(spec: RangeSpec, uid: int | None, directories: dict[str, str]) -> dict[str, Any]:
    network = spec.network
    inside = (
        replace(
            item,
            directory=Path(FILES_ROOT, item.id) if item.id in directories else None,
            settings={**item.settings, **spec.services.get(item.id, {})},
        )
        for item in network.stand_ins
        if not item.is_target
    )
    neighbours = map(as_neighbour, network.reached_cells)
    has_encrypted = any({*upstream.ports} - {HTTP_PORT} for upstream in network.upstreams)
    config = GatewayConfig(
        layout=spec.layout,
        stand_ins=(*inside, *neighbours, *map(as_stand_in, network.upstreams)),
        authorities=spec.reach.read_authorities() if has_encrypted else "",
        range_seed=os.urandom(_SEED_BYTES).hex(),
        bounds=Bounds.of(network.bounds, alive_every_s=spec.check_every_s),
        guard=spec.guard,
    )
    about = {"uid": uid, "directories": directories}
    memory_bytes = network.bounds.gateway_memory_bytes
    return {"config": json_of(config), "memory_bytes": memory_bytes, **about}


def _directories(network: NetworkPlan, uid: int | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in network.stand_ins:
        if item.directory is None or item.is_target:
            continue
        path, wanted = item.directory, 0o005
        what = f"the files of the stand-in {item.id} are missing"
        hint = "put them there; `belljar policy check FILE` looks at them again"
        if not path.is_dir():
            raise HostError(what, where=str(path), hint=hint)
        # Root's gateway has a uid of its own: it would answer with errors instead of the files.
        if uid is not None and path.stat().st_mode & wanted != wanted:
            what = f"the gateway, whose uid is its own, can't read files of the stand-in {item.id}"
            raise HostError(what, where=str(path), hint=f"chmod -R o+rX {path}")
        found[item.id] = str(path)
    return found
