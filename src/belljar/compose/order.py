"""In which order a compose file's services start, and what is waited for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from belljar.compose.words import CannotKeepError, mapping, names_in, switch
from belljar.differences import Difference, Kind
from belljar.units import printable

_KEYS: Final = frozenset({"condition", "restart", "required"})


class Condition(Enum):
    """What a service waits for in another."""

    STARTED = "service_started"
    HEALTHY = "service_healthy"
    COMPLETED = "service_completed_successfully"


@dataclass(frozen=True, slots=True)
class Wait:
    """`who` does not start before `what` has come to `condition`."""

    who: str
    what: str
    condition: Condition


def waits_of(services: Mapping[str, Mapping[str, Any]]) -> tuple[Wait, ...]:
    """All that is waited for. Raises `CannotKeepError` for an unknown condition or service."""
    return tuple(wait for name, service in services.items() for wait in _waits(name, service, services))


def _waits(name: str, service: Mapping[str, Any], services: Mapping[str, Any]) -> Iterator[Wait]:
    needed = service.get("depends_on")
    fields = needed if isinstance(needed, Mapping) else dict.fromkeys(names_in(needed))
    for what, settings in mapping(fields, f"service {name}'s depends_on").items():
        wait = _wait(name, what, mapping(settings, f"service {name}'s depends_on"))
        if what in services:
            yield wait
        elif settings is None or switch(settings.get("required", True)):
            raise CannotKeepError(
                f"its compose service {printable(name)} depends on {printable(what)}, which does not exist"
            )
    for link in names_in(service.get("links")):
        what = link.partition(":")[0]
        if what not in services:
            raise CannotKeepError(
                f"its compose service {printable(name)} has a link to {printable(what)}, which does not exist"
            )
        yield Wait(name, what, Condition.STARTED)


def _wait(name: str, what: str, settings: Mapping[str, Any]) -> Wait:
    extra = sorted(key for key in settings if key not in _KEYS and not key.startswith("x-"))
    condition = settings.get("condition", Condition.STARTED.value)
    if extra or condition not in {item.value for item in Condition}:
        asked = ", ".join(extra) or f"condition {condition}"
        raise CannotKeepError(
            f"its compose service {printable(name)} depends on {printable(what)} with {printable(asked)}"
        )
    return Wait(name, what, Condition(condition))


def restarts(services: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    """Where a service is to be started again with another.

    Raises `ValueError` for what can't be read.
    """
    asked = sorted(
        name
        for name, service in services.items()
        if isinstance(needed := service.get("depends_on"), Mapping)
        and any(switch(mapping(of, "depends_on").get("restart") or False) for of in needed.values())
    )
    why = "no service is started again with another"
    return [
        Difference(kind=Kind.DROPPED, where=f"service {name}", key="depends_on.restart", detail=why) for name in asked
    ]


def completed_of(waits: tuple[Wait, ...]) -> frozenset[str]:
    """The services whose program must have ended well before others start."""
    return frozenset(wait.what for wait in waits if wait.condition is Condition.COMPLETED)


def check_waits(waits: tuple[Wait, ...], *, unchecked: frozenset[str], default: str, default_idles: bool) -> None:
    """Whether all that is waited for can be. Raises `CannotKeepError`.

    Args:
        unchecked: the services whose file says that they have no health check.
        default: the service that the sample works in; it starts last.
        default_idles: nothing runs in it, so it makes no difference to others when it starts.
    """
    completed = completed_of(waits)
    for wait in waits:
        who = f"its compose service {printable(wait.who)} waits for {printable(wait.what)}"
        if wait.what == default and not (default_idles and wait.condition is Condition.STARTED):
            raise CannotKeepError(f"{who}, the service that the sample works in, which starts last")
        if wait.condition is Condition.HEALTHY and wait.what in completed:
            raise CannotKeepError(f"{who} to be healthy, and another for its end")
        if wait.condition is Condition.HEALTHY and wait.what in unchecked:
            raise CannotKeepError(f"{who} to be healthy, whose healthcheck the file switches off")


def awaited_by(name: str, waits: tuple[Wait, ...]) -> list[str]:
    """The services that must be healthy when this one starts."""
    return sorted({wait.what for wait in waits if wait.who == name and wait.condition is Condition.HEALTHY})


def in_order(services: Mapping[str, Any], waits: tuple[Wait, ...], *, default: str) -> list[str]:
    """Services so that each comes after those it waits for, `default` last, else as in the file.

    Raises `CannotKeepError` for a circle.
    """
    needs: dict[str, set[str]] = {name: set() for name in services}
    for wait in waits:
        needs[wait.who] |= {wait.what} - {default}
    done: dict[str, None] = {}
    waiting = [name for name in services if name != default]
    while waiting:
        ready = next((name for name in waiting if needs[name] <= done.keys()), None)
        if ready is None:
            circle = printable(", ".join(waiting))
            raise CannotKeepError(f"its compose file's services depend on each other in a circle: {circle}")
        done[ready] = None
        waiting.remove(ready)
    return [*done, default]
