"""A compose file's services as a policy's words. Pure: the parsed file in, what the cells take over, or what they can't keep, out.

One service is a cell. Several are a range: the default service's cell, and a target cell for each other, which is reachable by its name from the cells
of the range and from nowhere else. What would widen the blast radius (`privileged`, mounts of this host, its network, devices, the container runtime's
socket) is refused by name; so is what a cell would silently not do.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from belljar.units import printable

_FULFILLED: Final = frozenset(
    {
        *("init", "stop_grace_period", "stop_signal", "platform", "pull_policy", "stdin_open", "tty", "depends_on"),
        *(
            "healthcheck",
            "expose",
            "networks",
            "hostname",
            "container_name",
            "x-default",
            "x-local",
            "logging",
            "labels",
        ),
        *("attach", "annotations", "cap_drop"),
    }
)
"""Read elsewhere, or kept by a cell anyway."""
_IDLE: Final = frozenset({"tail -f /dev/null", "sleep infinity", "sleep inf"})
_SHELLS: Final = frozenset({"sh", "bash", "/bin/sh", "/bin/bash"})
_STAND_INS: Final = frozenset({"", "aisiuk/inspect-tool-support"})
"""Images that only mean *some ordinary Linux with the usual tools*: the default image is one."""
_TOP: Final = frozenset({"services", "version", "name", "networks"})
_TIME: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?", re.ASCII)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([bkmg]?)b?", re.ASCII | re.IGNORECASE)
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LEAST_INTERVAL_S: Final = 0.1
_MOST_INTERVAL_S: Final = 1.0
_MOST_TRIES: Final = 1000
_USUAL_INTERVAL_S: Final = 30.0
_USUAL_RETRIES: Final = 3


class CannotKeepError(ValueError):
    """A cell would not be what the file says; the text names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """What the file means: `changes` for the default service's policy, `network` for its range in a policy's words (None: one cell alone), `notes` for the operator."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def read_compose(compose: Mapping[str, Any]) -> Composed:
    """What a compose file means for cells. Raises `CannotKeepError`."""
    try:
        return _read(compose)
    except CannotKeepError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
        raise CannotKeepError(f"its compose file can't be read: {printable(str(error), max_chars=200)}") from error


def _read(compose: Mapping[str, Any]) -> Composed:
    extra = sorted(str(key) for key in compose if key not in _TOP and not str(key).startswith("x-"))
    if extra:
        raise CannotKeepError(f"its compose file has {printable(', '.join(extra))}")
    services = compose.get("services")
    if not isinstance(services, Mapping) or not services:
        raise CannotKeepError("its compose file has no services")
    named = {str(name): _mapping(service, f"service {name}") for name, service in services.items()}
    default = default_service(named)
    notes: list[str] = []
    changes = _cell_of(default, named[default], notes)
    if len(named) == 1:
        return Composed(changes=changes, notes=tuple(notes))
    _one_network(named, compose.get("networks"))
    stand_ins = {name: _target_of(name, named[name], notes) for name in _in_order(named) if name != default}
    own = {"names": _names(default, named[default]), "ports": ["all"]}
    network = {"stand_ins": stand_ins, "own_cell": own}
    return Composed(changes=changes, network=network, notes=tuple(dict.fromkeys(notes)))


def default_service(services: Mapping[str, Mapping[str, Any]]) -> str:
    """The service that a task's tools work in, as Inspect chooses it: the one with `x-default: true`, else `default`, else the first."""
    marked = [name for name, service in services.items() if service.get("x-default") is True]
    return next(iter([*marked, *(name for name in services if name == "default"), *services]))


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise CannotKeepError(f"{printable(where)} is no mapping")
    return value


# ---- one service


def _cell_of(name: str, service: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The policy fields of the default service. Its cell runs what the task says, and nothing beside that."""
    changes = _common(name, service, notes)
    if (command := _command(service)) and not _is_idle(command):
        raise CannotKeepError(_asks("command", name=name))
    return changes


def _is_idle(command: Sequence[str]) -> bool:
    """Whether it only keeps a container from ending."""
    words = command[2:] if command[0] in _SHELLS and command[1:2] == ["-c"] else command
    return " ".join(words).strip() in _IDLE


def _target_of(name: str, service: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """A target cell in a policy's words. Within a compose network every port of a service can be reached."""
    common = _common(name, service, notes)
    env = dict(common.pop("env", ()))
    command = _command(service)
    words: dict[str, Any] = {"kind": "cell", "names": _names(name, service), "ports": ["all"], **common}
    words |= {"env": env} if env else {}
    words |= {"command": command} if command else {}
    health = _health(service.get("healthcheck"))
    return words | ({"health": health} if health else {})


def _common(name: str, service: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    refused = []
    for key, value in service.items():
        if value is None or key in _FULFILLED or (str(key).startswith("x-")):
            continue
        try:
            known = key in _FIELDS and _FIELDS[key](value, changes, notes)
        except (TypeError, ValueError, AttributeError):
            known = False
        if not known:
            refused.append(str(key))
    if "image" not in service and "build" not in refused:
        refused += ["no image"] if "build" in service else []
    if refused:
        raise CannotKeepError(_asks(*refused, name=name))
    return changes


def _asks(*keys: str, name: str = "") -> str:
    whose = f" {printable(name)}" if name else ""
    return f"its compose service{whose} asks for {printable(', '.join(sorted(keys)))}, which a cell can't honour"


def _command(service: Mapping[str, Any]) -> list[str]:
    """Entrypoint and command as one list; text is split as a shell would."""
    words: list[str] = []
    for key in ("entrypoint", "command"):
        value = service.get(key)
        if isinstance(value, str):
            words += shlex.split(value)
        elif isinstance(value, Sequence):
            words += [str(word) for word in value]
    return words


def _names(name: str, service: Mapping[str, Any]) -> list[str]:
    aliases = [str(service[key]) for key in ("hostname", "container_name") if service.get(key)]
    networks = service.get("networks")
    for settings in networks.values() if isinstance(networks, Mapping) else ():
        aliases += [str(alias) for alias in (settings or {}).get("aliases") or ()]
    return list(dict.fromkeys([name.lower(), *(alias.lower() for alias in aliases)]))


def _health(check: object) -> dict[str, Any] | None:
    if not isinstance(check, Mapping) or check.get("disable") is True:
        return None
    test = check.get("test")
    words = ["CMD-SHELL", test] if isinstance(test, str) else [str(word) for word in test or ()]
    if not words or words[0] == "NONE":
        return None
    command = ["sh", "-c", words[1]] if words[0] == "CMD-SHELL" else words[1:]
    # As patient as compose, a start-up period included in which a failure would not count, but asking oftener.
    interval_s = _time(check, "interval", _USUAL_INTERVAL_S)
    patience_s = int(check.get("retries") or _USUAL_RETRIES) * interval_s + _time(check, "start_period", 0.0)
    every_s = min(max(interval_s, _LEAST_INTERVAL_S), _MOST_INTERVAL_S)
    tries = min(max(1, math.ceil(patience_s / every_s)), _MOST_TRIES)
    health = {"command": command, "retries": tries, "interval": f"{every_s:g}s"}
    return health | ({"timeout": f"{_time(check, 'timeout', 0.0):g}s"} if check.get("timeout") else {})


def _time(check: Mapping[str, Any], key: str, usual_s: float) -> float:
    return _seconds(str(check[key])) if check.get(key) else usual_s


def _seconds(text: str) -> float:
    found = _TIME.fullmatch(text.strip())
    if found is None or not found[0]:
        raise CannotKeepError(f"its compose file has {printable(text, max_chars=40)}, which is no time")
    hours, minutes, seconds, thousandths = found.groups(default="0")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds) + int(thousandths) / 1000


# ---- the fields that are taken over: each True when a cell keeps it

_Take = Callable[[Any, dict[str, Any], list[str]], bool]


def _image(value: Any, changes: dict[str, Any], _notes: list[str]) -> bool:  # noqa: ANN401 - YAML
    if str(value).removesuffix(":latest") not in _STAND_INS:
        changes["image"] = str(value)
    return True


def _network_mode(value: Any, _changes: dict[str, Any], _notes: list[str]) -> bool:  # noqa: ANN401 - YAML
    return bool(value == "none")


def _text(name: str) -> _Take:
    def take(value: Any, changes: dict[str, Any], _notes: list[str]) -> bool:  # noqa: ANN401 - YAML
        changes[name] = str(value)
        return isinstance(value, (str, int))

    return take


def _environment(value: Any, changes: dict[str, Any], _notes: list[str]) -> bool:  # noqa: ANN401 - YAML
    pairs = value.items() if isinstance(value, Mapping) else [str(line).partition("=")[::2] for line in value]
    env = tuple((str(name), "" if text is None else str(text)) for name, text in pairs)
    if any("${" in text and "SAMPLE_METADATA_" not in text for _, text in env):
        return False
    changes["env"] = env
    return True


def _resource(name: str, read: Callable[[Any], Any]) -> _Take:
    def take(value: Any, changes: dict[str, Any], _notes: list[str]) -> bool:  # noqa: ANN401 - YAML
        changes["resources"] = {**changes.get("resources", {}), name: read(value)}
        return True

    return take


def _deploy(value: Any, changes: dict[str, Any], notes: list[str]) -> bool:  # noqa: ANN401 - YAML
    if set(value) - {"resources"} or set(value.get("resources") or ()) - {"limits", "reservations"}:
        return False
    limits = (value.get("resources") or {}).get("limits") or {}
    return all(key in _DEPLOYED and _FIELDS[_DEPLOYED[key]](limit, changes, notes) for key, limit in limits.items())


def _published(value: Any, _changes: dict[str, Any], notes: list[str]) -> bool:  # noqa: ANN401 - YAML
    notes.append("no port of a cell is published on this host, whatever `ports` says; the cells of the range reach it")
    return isinstance(value, Sequence)


def _restart(value: Any, _changes: dict[str, Any], notes: list[str]) -> bool:  # noqa: ANN401 - YAML
    if value not in (False, "no"):
        notes.append("a target cell whose program ends is not started again, whatever `restart` says")
    return True


def _is_command(value: Any, _changes: dict[str, Any], _notes: list[str]) -> bool:  # noqa: ANN401 - YAML
    return isinstance(value, (str, Sequence))


def _is_false(value: Any, _changes: dict[str, Any], _notes: list[str]) -> bool:  # noqa: ANN401 - YAML
    return value is False


def _size(value: Any) -> str:  # noqa: ANN401 - YAML
    found = _SIZE.fullmatch(str(value).strip())
    if found is None:
        raise ValueError("no size")
    return f"{int(float(found[1]) * _UNITS[found[2].lower()])}B"


def _cpus(value: Any) -> int:  # noqa: ANN401 - YAML
    """Whole processors, as a cell has them; a part of one is rounded up."""
    return max(1, int(-(-float(value) // 1)))


_FIELDS: Final[Mapping[str, _Take]] = {
    "image": _image,
    "network_mode": _network_mode,
    "command": _is_command,
    "entrypoint": _is_command,
    "environment": _environment,
    "working_dir": _text("workdir"),
    "user": _text("user"),
    "cpus": _resource("cpus", _cpus),
    "mem_limit": _resource("memory", _size),
    "pids_limit": _resource("processes", int),
    "deploy": _deploy,
    "ports": _published,
    "restart": _restart,
    "privileged": _is_false,
    "read_only": _is_false,
}
_DEPLOYED: Final = {"cpus": "cpus", "memory": "mem_limit", "pids": "pids_limit"}


# ---- several services


def _one_network(services: Mapping[str, Mapping[str, Any]], networks: object) -> None:
    """All cells of a range reach each other's services; a file that keeps some apart means something else. Raises `CannotKeepError`."""
    for name, settings in _mapping(networks, "networks").items():
        if isinstance(settings, Mapping) and settings.get("external"):
            raise CannotKeepError(
                f"its compose file's network {printable(str(name))} is external, which a range never joins"
            )
    joined = {name: frozenset(service.get("networks") or {"default"}) for name, service in services.items()}
    if any(services[name].get("network_mode") == "none" for name in services):
        raise CannotKeepError("its compose file has several services, and one without a network")
    if not frozenset.intersection(*joined.values()):
        apart = ", ".join(f"{name} ({', '.join(sorted(map(str, of)))})" for name, of in joined.items())
        raise CannotKeepError(f"its compose file keeps services apart by networks: {printable(apart)}")


def _in_order(services: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Services so that each comes after those it depends on. Raises `CannotKeepError` for a circle."""
    done: set[str] = set()
    waiting = list(services)
    while waiting:
        ready = [name for name in waiting if _needs(services[name]) <= done | (_needs(services[name]) - set(services))]
        if not ready:
            raise CannotKeepError(
                f"its compose file's services depend on each other in a circle: {printable(', '.join(waiting))}"
            )
        yield from ready
        done |= set(ready)
        waiting = [name for name in waiting if name not in done]


def _needs(service: Mapping[str, Any]) -> set[str]:
    needed = service.get("depends_on") or ()
    return {str(name) for name in needed}
