"""Converts a compose file's services to a policy's fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, TypeAlias

from belljar.compose import model, values
from belljar.compose.document import TaskFiles, services_of
from belljar.compose.interpolate import MAX_VARIABLES, read_dotenv
from belljar.compose.keys import KEYS, Converted, read_service
from belljar.compose.model import Condition, Healthcheck, Mount, Service, parse
from belljar.compose.values import CannotKeepError, Refusals, mapping, refusal
from belljar.dataclass import dataclass, field
from belljar.differences import Difference
from belljar.policy.files import list_tree, reason
from belljar.policy.guarding import OWN_CELL
from belljar.policy.reference import is_idle
from belljar.policy.sections import MAX_ENTRIES, CellData, TaskData, TaskFile
from belljar.units import format_size, printable

SECTIONS: Final = frozenset({"services", "version", "name", "networks", "volumes"})  # of a file
UNCHECKED: Final[Mapping[str, Any]] = {"image": False}  # `health` that the file switches off
_USUAL_S, _USUAL_RETRIES = 30.0, 3  # Docker's
# What a policy's `health` takes; asked at least once a second, a sample does not wait for nothing.
_MIN_S, _MAX_INTERVAL_S, _MAX_TIMEOUT_S, _MAX_WAIT_S = 0.1, 1.0, 300.0, 24 * 3600.0
_MAX_TRIES: Final = 1000  # likewise: a policy's `retries`
_TIMES: Final = ("interval", "timeout", "start_period")
_NO_DIRECTORY: Final = "the compose configuration is no file: the task's directory is not known"
_SHARED: Final = "cells share no directory, so one service would not see what another writes"
_DEFAULT: Final = "default"  # the implicit network, and the sample's own cell in a range
Waits: TypeAlias = Mapping[str, Mapping[str, Condition]]  # of each service
# A file may be anything at all: whatever reading it raises is a refusal, not a crash.
_FAULTS: Final = (TypeError, ValueError, AttributeError, LookupError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """`network` is None for one cell; `is_apart`: it has none."""

    service: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    program: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] | None = None
    is_apart: bool = False
    data: TaskData | None = None
    differences: tuple[Difference, ...] = ()


def read_compose(compose: Mapping[str, Any], files: TaskFiles | None = None) -> Composed:
    """Raises `CannotKeepError` with all that differs."""
    seen: list[Difference] = []
    try:
        return _read(compose, files, seen)
    except CannotKeepError as error:
        error.add(seen)
        raise
    except _FAULTS as error:
        why = printable(str(error), max_chars=200)
        raise CannotKeepError(f"its compose file can't be read: {why}") from error


def _read(
    compose: Mapping[str, Any], files: TaskFiles | None, differences: list[Difference]
) -> Composed:
    written = services_of(compose)  # first: of a file that has none, no key is shown
    refused = Refusals()
    for key in sorted(map(str, compose)):
        if compose.get(key) and key not in SECTIONS and not key.startswith("x-"):
            why = KEYS[key].why if key in KEYS else "cells have no use for this part of a file"
            refused.add("", key, why)
    marked = [name for name, of in written.items() if values.switch(of.get("x-default") or False)]
    named = [_DEFAULT] if _DEFAULT in written else []
    default = [*marked, *named, *written][0]
    cells = {name: read_service(name, of, files, refused) for name, of in written.items()}
    services = {name: each.model for name, each in cells.items()}
    waits = waits_of(services)
    order = in_order(waits, default=default)
    add_volumes(cells, compose.get("volumes"), refused)
    for each in cells.values():
        with refused.collected():
            add_env_files(each)
    with refused.collected():
        joined = read_networks(services, compose.get("networks"))
    differences += [fact for each in cells.values() for fact in each.differences]
    refused.raise_all()
    check_waits(waits, services, default=default)
    own, held = cells[default], dict[str, CellData]()
    for name, cell in cells.items():
        copied = tuple(sorted(cell.files, key=lambda file: file.target))
        data = CellData(files=copied, hosts=tuple(dict.fromkeys(cell.hosts)))
        if data != CellData():
            held[OWN_CELL if name == default else name] = data
    health = health_of(own.model.healthcheck)
    ordered = {name: cells[name] for name in order}
    return Composed(
        service=default,
        changes=own.words,
        program=program_of(own.model, own.directories) | ({"health": health} if health else {}),
        network=_network(ordered, joined, waits, own=default) if len(order) > 1 else None,
        is_apart=own.model.network_mode == "none",
        data=TaskData(cells=held, root=str(files.root) if files else "") if held else None,
        differences=tuple(dict.fromkeys(differences)),
    )


def add_volumes(converted: Mapping[str, Converted], volumes: object, refused: Refusals) -> None:
    declared = mapping(volumes, "volumes")
    for name, settings in declared.items():
        where = f"volume {name}"
        with refused.collected():
            parse(model.Volume, mapping(settings, where), where, refused)
    mounts = [(cell, mount) for cell in converted.values() for mount in cell.model.volumes]
    for cell, mount in mounts:
        try:
            _add_volume(cell, mount, declared)
        except (OSError, ValueError) as error:
            shown = printable(mount.source or mount.target, max_chars=100)
            refused.add(cell.where, "volumes", f"{shown}: {printable(reason(error))}")
    for name in declared:
        if len(cells := [cell for cell, mount in mounts if mount.source == name]) > 1:
            both = ", ".join(dict.fromkeys(cell.service for cell in cells))
            why = f"{printable(name)}: {printable(both)} have it: {_SHARED}"
            refused.add(cells[-1].where, "volumes", why)


def _add_volume(cell: Converted, mount: Mount, declared: Mapping[str, Any]) -> None:
    source, target = mount.source, mount.target
    if not source.startswith("."):
        if mount.read_only:
            raise ValueError("its service can't write to it, so it stays empty")
        if source and source not in declared:
            raise ValueError(f"there is no volume {source} in the file")
        cell.directories.append(target)
        return
    if cell.home is None:
        raise ValueError(_NO_DIRECTORY)
    path = cell.home.path(source)
    try:
        tree = list_tree(cell.home.root, path, max_entries=MAX_ENTRIES)
    except FileNotFoundError:
        if mount.read_only:  # Compose makes any other missing source
            raise
        cell.directories.append(target)
        cell.note("volumes", f"{source} does not exist: {target} is an empty directory")
        return
    cell.add_file(TaskFile(target=target, source=path), tree)
    later = "what is written there ends with the cell and does not reach this host"
    if mount.read_only:
        later = "root of the cell could change the copy"
    size = format_size(tree.total_bytes)
    cell.note("volumes", f"{source} is copied to {target} ({size}): {later}")


def add_env_files(cell: Converted) -> None:
    """Add a service's `env_file`. Raises `CannotKeepError`."""
    found = dict[str, str]()
    for file in cell.model.env_file:
        path = printable(file)
        try:
            if cell.home is None:
                raise ValueError(_NO_DIRECTORY)
            read = read_dotenv(cell.home.read_text(cell.home.path(file)))
        except (OSError, ValueError) as error:
            why = f"{path}: {printable(reason(error))}"
            raise refusal(cell.where, "env_file", why) from error
        found |= {name: value for name, value in read.items() if value is not None}
        if unset := ", ".join(sorted(name for name, value in read.items() if value is None)):
            cell.note("env_file", f"{path}: variables without a value are not set ({unset})")
    if len(found) > MAX_VARIABLES:
        raise refusal(cell.where, "env_file", f"more than {MAX_VARIABLES:,} variables")
    if cell.model.env_file:
        # As in Compose, `environment` wins over `env_file`.
        cell.words["env"] = {**found, **cell.words.get("env", {})}


def program_of(service: Service, directories: Iterable[str] = ()) -> dict[str, Any]:
    """`arguments` follow the image's entrypoint; `command` replaces it."""
    program: dict[str, Any] = {}
    if service.entrypoint is not None:
        entrypoint = [] if service.entrypoint == [""] else service.entrypoint
        program["command"] = [*entrypoint, *(service.command or ())]
    elif service.command is not None:
        program["arguments"] = service.command
    if made := [*directories, *service.tmpfs]:
        program["directories"] = made
    return program | ({"restart": service.restart} if service.restart else {})


def read_health(check: Mapping[str, Any]) -> dict[str, Any]:
    """Return a target cell's `health`. Raises `CannotKeepError`."""
    try:
        return health_of(model.read_part(Healthcheck, check))
    except ValueError as error:
        raise refusal("", "healthcheck", str(error)) from None


def health_of(check: Healthcheck | None) -> dict[str, Any]:
    """Wait as long as Inspect does, and ask each second."""
    if check is None or not check.model_fields_set:
        return {}
    written = check.model_fields_set
    if check.disable or ("test" in written and check.test is None):
        return dict(UNCHECKED)
    if not check.test:
        given = {name: getattr(check, name) for name in _TIMES}
        times = {name: f"{value:.6f}s" for name, value in given.items() if value}
        times |= {"retries": str(check.retries)} if check.retries else {}
        found = {"image": True, **({"times": times} if times else {})}
        return {} if written == {"test"} else found
    interval_s, timeout_s = check.interval or _USUAL_S, check.timeout or _USUAL_S
    retries, start_s = check.retries or _USUAL_RETRIES, check.start_period
    wait_s = min(retries * interval_s + start_s, _MAX_WAIT_S)
    # Seldom enough that as many tries as a policy takes last for the whole wait.
    every_s = max(min(interval_s, _MAX_INTERVAL_S), _MIN_S, wait_s / _MAX_TRIES)
    within_s = start_s + (timeout_s if start_s else 0.0) + retries * (interval_s + timeout_s)
    return {
        "command": check.test,
        "retries": min(max(1, math.ceil(wait_s / every_s)), _MAX_TRIES),
        "interval": f"{every_s:g}s",
        "timeout": f"{min(max(timeout_s, _MIN_S), _MAX_TIMEOUT_S):g}s",
        "within": f"{min(max(math.ceil(within_s), 1), _MAX_WAIT_S):g}s",
    }


def waits_of(services: Mapping[str, Service]) -> Waits:
    """Raises `CannotKeepError` for an unknown service."""
    waits: dict[str, dict[str, Condition]] = {}
    for name, service in services.items():
        waits[name] = {}
        for needed, how in service.depends_on.items():
            if needed not in services:
                what = f"{printable(name)} depends on {printable(needed)}, which does not exist"
                raise CannotKeepError(f"its compose service {what}")
            waits[name][needed] = how.condition
    return waits


def awaited(waits: Waits, condition: Condition) -> set[str]:
    return {name for of in waits.values() for name, state in of.items() if state is condition}


def check_waits(waits: Waits, services: Mapping[str, Service], *, default: str) -> None:
    """Raises `CannotKeepError` for an endless wait: `default` starts last."""
    completed = awaited(waits, Condition.COMPLETED)
    program = program_of(services[default])
    idles = is_idle(program.get("arguments") or program.get("command") or ())
    for name, of in waits.items():
        for needed, condition in of.items():
            # Only an idle one can be taken as started before it is.
            is_late = needed == default and not (idles and condition is Condition.STARTED)
            health = health_of(services[needed].healthcheck)
            is_unasked = needed in completed or health == UNCHECKED
            if is_late or (is_unasked and condition is Condition.HEALTHY):
                why = "which starts last" if is_late else "whose health is not asked for"
                shown = f"{printable(name)} waits for {printable(needed)}, {why}"
                raise CannotKeepError(f"its compose service {shown}")


def in_order(waits: Waits, *, default: str) -> list[str]:
    """Sort services behind those they await. Raises `CannotKeepError`."""
    needs = {  # the default service is last whatever it waits for
        name: [needed for needed in of if needed != default]
        for name, of in waits.items()
        if name != default
    }
    try:
        return [*TopologicalSorter(needs).static_order(), default]
    except CycleError as error:
        circle = printable(", ".join(error.args[1][:-1]))
        why = f"its compose file's services depend on each other in a circle: {circle}"
        raise CannotKeepError(why) from None


def read_networks(services: Mapping[str, Service], networks: object) -> dict[str, list[str]]:
    """Leave out a network of all. Raises `CannotKeepError`."""
    refused = Refusals()
    declared = mapping(networks, "networks")
    for name, settings in declared.items():
        where = f"network {name}"
        parse(model.ComposeNetwork, mapping(settings, where), where, refused)
    alone: dict[str, list[str]] = {}
    joined: dict[str, list[str]] = {}
    for name, service in services.items():
        where = f"service {name}"
        if "networks" in service.model_fields_set and service.network_mode is not None:
            refused.add(where, "networks", "it has both networks and network_mode")
        if unknown := {*service.networks} - {*declared, _DEFAULT}:
            why = f"it joins a network that is not declared: {printable(min(unknown))}"
            refused.add(where, "networks", why)
        if service.network_mode == "none":
            alone[name] = []
        else:
            joined[name] = service.networks or [_DEFAULT]
    refused.raise_all()
    # With a network for all there is nothing to keep apart.
    is_shared = len(services) == 1 or (joined and set.intersection(*map(set, joined.values())))
    return (alone if len(services) > 1 else {}) if is_shared else {**joined, **alone}


def _network(
    cells: Mapping[str, Converted], joined: Mapping[str, list[str]], waits: Waits, *, own: str
) -> dict[str, Any]:
    def reached(name: str) -> dict[str, Any]:
        service = cells[name].model
        given = [name, service.hostname, service.container_name]
        # DNS compares names without regard to case (RFC 4343).
        names = list(dict.fromkeys(item.lower() for item in given if item))
        networks = {"networks": joined[name]} if name in joined else {}
        return {"names": names, "ports": ["all"], **networks}

    completed, healthy = (awaited(waits, each) for each in (Condition.COMPLETED, Condition.HEALTHY))
    stand_ins = {}
    for name, cell in cells.items():
        if name == own:
            continue
        # A service whose health is waited for, without a check in the file, has its image's.
        health = health_of(cell.model.healthcheck) or ({"image": True} if name in healthy else None)
        start = {"completes": True} if name in completed else {"health": health} if health else {}
        stand_ins[name] = {
            "kind": "cell",
            **reached(name),
            **cell.words,
            **program_of(cell.model, cell.directories),
            "awaits": sorted(
                needed for needed, state in waits[name].items() if state is Condition.HEALTHY
            ),
            **start,
        }
    return {"stand_ins": stand_ins, "own_cell": reached(own)}
