"""Converts a compose file's services to the fields of a policy, or refuses what cells can't keep.

Pure.

One service is a cell. Several are a range: the default service's cell, and a target cell for each
other, which is reachable by its name from the cells of the range and from nowhere else. What would
widen the blast radius (`privileged`, mounts of this host, its network, devices, the container
runtime's socket) is refused by name; so is what a cell would silently not do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from belljar.compose.env_files import add_env_files
from belljar.compose.extends import read_services
from belljar.compose.health import UNCHECKED, read_health
from belljar.compose.networks import names_of, read_networks
from belljar.compose.order import Condition, Wait, awaited_by, check_waits, completed_of, in_order, restarts, waits_of
from belljar.compose.secrets import add_granted
from belljar.compose.service import Converted, program_of, read_service
from belljar.compose.task_files import TaskFiles
from belljar.compose.volumes import Mounts, mounts_of, tmpfs_of
from belljar.compose.words import CannotKeepError, Refusals, is_idle, names_in, refusal, switch
from belljar.differences import Difference, Kind
from belljar.policy.network import OWN_CELL
from belljar.policy.task_data import CellData, TaskData
from belljar.units import printable

__all__ = ["CannotKeepError", "Composed", "check_services", "default_service", "read_compose"]
_TOP: Final = frozenset({"services", "version", "name", "networks", "volumes", "secrets", "configs"})
"""The keys of a file that are read; others are refused. (`version` and `name` mean nothing to
Compose either.)"""
MAX_SERVICES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """What the file means.

    Attributes:
        service: the name of the service that the sample works in.
        changes: for its policy: image, user, workdir, env (pairs), resources.
        program: what runs in it, as a target cell's words: `command` or `arguments`, `directories`
            and `health`.
        network: for its range, in a policy's words; None: one cell alone.
        is_apart: the one service has `network_mode: none`: whatever network its policy has is not
            for it.
        data: what the cells hold besides their images; None: nothing.
        differences: every key that is not plainly kept.
    """

    service: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    program: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] | None = None
    is_apart: bool = False
    data: TaskData | None = None
    differences: tuple[Difference, ...] = ()


def read_compose(compose: Mapping[str, Any], files: TaskFiles | None = None) -> Composed:
    """What a compose file without references (`interpolate`) means for cells.

    Raises `CannotKeepError`, with what else differs as far as it was read.

    `files`: those of its task, which are looked at, and read where they hold variables.
    """
    seen: list[Difference] = []
    try:
        return _read(compose, files, seen)
    except CannotKeepError as error:
        error.add(seen)
        raise
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError, RecursionError) as error:
        raise CannotKeepError(f"its compose file can't be read: {printable(str(error), max_chars=200)}") from error


def check_services(compose: Mapping[str, Any]) -> None:
    """Raises `CannotKeepError` for more than `MAX_SERVICES`."""
    services = compose.get("services")
    if isinstance(services, Mapping) and len(services) > MAX_SERVICES:
        raise CannotKeepError(f"its compose file has {len(services):,} services; at most {MAX_SERVICES}")


def _read(compose: Mapping[str, Any], files: TaskFiles | None, differences: list[Difference]) -> Composed:
    check_services(compose)
    services, resting = _services(compose)  # first: of a file that has none, no key is shown
    differences += resting
    refused = Refusals()
    with refused.collected():
        _check_sections(compose)
    default = default_service(services)
    waits = waits_of(services)
    order = in_order(services, waits, default=default)
    converted: dict[str, Converted] = {}
    mounts: dict[str, Mounts] = {}
    for name, service in services.items():
        with refused.collected():
            converted[name] = read_service(name, service)
            add_env_files(converted[name], service.get("env_file"), files)
    with refused.collected():
        mounts = mounts_of(services, compose.get("volumes"), files, waits=waits, default=default)
        for name, service in services.items():
            with refused.collected():
                add_granted(mounts[name], service, compose, files)
    with refused.collected():
        joined, of_networks = read_networks(services, compose.get("networks"))
        differences += of_networks
    differences += [fact for service in converted.values() for fact in service.differences]
    differences += [fact for each in mounts.values() for fact in each.differences]
    refused.raise_all()
    differences += restarts(services)
    read = {name: _read_one(name, services[name], converted[name], mounts[name].directories) for name in order}
    unchecked = frozenset(name for name, service in read.items() if service.health == UNCHECKED)
    check_waits(waits, unchecked=unchecked, default=default, default_idles=read[default].idles)
    own = read[default]
    network = _network(read, names_of(services, default), joined, waits, own=default) if len(order) > 1 else None
    return Composed(
        service=default,
        changes=_changes(own.converted),
        program={**own.program, **({"health": own.health} if own.health else {})},
        network=network,
        is_apart=services[default].get("network_mode") == "none",
        data=_data(converted, mounts, files, own=default),
        differences=tuple(dict.fromkeys(differences)),
    )


def _check_sections(compose: Mapping[str, Any]) -> None:
    """Raises `CannotKeepError` for each section that is not read."""
    refused = Refusals()
    for key in sorted(map(str, compose)):
        with refused.collected():
            if key not in _TOP and not key.startswith("x-"):
                raise refusal("", key, "cells have no use for this part of a file")
    refused.raise_all()


def _data(
    converted: Mapping[str, Converted],
    mounts: Mapping[str, Mounts],
    files: TaskFiles | None,
    *,
    own: str,
) -> TaskData | None:
    """What the cells hold, by their names in the range."""
    held = {
        OWN_CELL if name == own else name: CellData(
            files=tuple(sorted(mounts[name].files, key=lambda file: file.target)),
            volumes=tuple(mounts[name].volumes),
            hosts=tuple(dict.fromkeys(converted[name].hosts)),
        )
        for name in converted
    }
    cells = {name: data for name, data in held.items() if data != CellData()}
    return TaskData(cells=cells, root=str(files.root) if files else "") if cells else None


@dataclass(frozen=True, slots=True)
class _Service:
    """What one service comes to: a policy's words, what runs, how its health is asked."""

    converted: Converted
    program: Mapping[str, Any]
    health: Mapping[str, Any] | None

    @property
    def idles(self) -> bool:
        """Whether the file gives it nothing to do."""
        return is_idle(self.program.get("arguments") or self.program.get("command") or ())


def _read_one(name: str, service: Mapping[str, Any], converted: Converted, directories: list[str]) -> _Service:
    directories = [*directories, *tmpfs_of(service.get("tmpfs"))]
    made = (
        [converted.words["workdir"], *directories] if "workdir" in converted.words else directories
    )  # as Docker makes both
    program = program_of(name, service) | ({"directories": made} if made else {})
    return _Service(converted, program, read_health(service.get("healthcheck"), name=name))


def _services(compose: Mapping[str, Any]) -> tuple[dict[str, Mapping[str, Any]], list[Difference]]:
    """The services that run, and those that don't: no profile is ever active."""
    named = read_services(compose)
    resting = [name for name, service in named.items() if names_in(service.get("profiles"))]
    services = {name: service for name, service in named.items() if name not in resting}
    if not services:
        raise CannotKeepError("its compose file has no services")
    why = "no profile is active: the service does not run"
    return services, [
        Difference(kind=Kind.DROPPED, where=f"service {name}", key="profiles", detail=why) for name in resting
    ]


def default_service(services: Mapping[str, Mapping[str, Any]]) -> str:
    """The service that a task's tools work in, as Inspect chooses it: the one with
    `x-default: true`, else `default`, else the first."""
    marked = [name for name, service in services.items() if switch(service.get("x-default") or False)]
    return next(iter([*marked, *(name for name in services if name == "default"), *services]))


def _changes(own: Converted) -> dict[str, Any]:
    env = own.words.get("env")
    return {**own.words, **({"env": tuple(env.items())} if env is not None else {})}


def _network(
    read: Mapping[str, _Service],
    names: Mapping[str, list[str]],
    joined: Mapping[str, list[str]],
    waits: tuple[Wait, ...],
    *,
    own: str,
) -> dict[str, Any]:
    """Within a compose network every port of a service can be reached, so `ports` is all."""

    def reached(name: str) -> dict[str, Any]:
        networks = {"networks": joined[name]} if name in joined else {}
        return {"names": names[name], "ports": ["all"], **networks}

    completed = completed_of(waits)
    stand_ins = {
        name: {
            "kind": "cell",
            **reached(name),
            **service.converted.words,
            **service.program,
            "awaits": awaited_by(name, waits),
            **_end_of_start(name, service, completed, waits),
        }
        for name, service in read.items()
        if name != own
    }
    return {"stand_ins": stand_ins, "own_cell": reached(own)}


def _end_of_start(name: str, service: _Service, completed: frozenset[str], waits: tuple[Wait, ...]) -> dict[str, Any]:
    """When a target has started, for others.

    One whose health is waited for, without a check in the file, has its image's.
    """
    if name in completed:
        return {"completes": True}
    is_awaited = any(wait.what == name and wait.condition is Condition.HEALTHY for wait in waits)
    health = service.health or ({"image": True} if is_awaited else None)
    return {"health": health} if health else {}
