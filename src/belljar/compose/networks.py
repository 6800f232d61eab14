"""A compose file's networks. Pure.

A range's cells reach each other's services where they share a network, at addresses drawn for that range, and nothing beyond it. A file that fixes what a
range draws means something else, and is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from belljar.compose.words import CannotKeepError, Refusals, mapping, names_in, refusal, switch, text
from belljar.units import printable

_CELL_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_IMPLICIT: Final = "default"
_OWN: Final = "default"
TOP_KEYS: Final[Mapping[str, str]] = {
    "name": "",
    "driver": "only `bridge`",
    "driver_opts": "none",
    "ipam": "no subnet or driver of its own: addresses are drawn for each range",
    "external": "a range never joins a network of others",
    "internal": "",
    "enable_ipv4": "it has IPv4",
    "enable_ipv6": "it has no IPv6",
    "attachable": "",
    "labels": "",
}
"""Every key that Compose knows of a network; what is said when a range can't keep it, "" where it keeps any."""
SERVICE_KEYS: Final[Mapping[str, str]] = {
    "aliases": "",
    "interface_name": "only `eth0`",
    "ipv4_address": "addresses are drawn for each range",
    "ipv6_address": "it has no IPv6",
    "link_local_ips": "addresses are drawn for each range",
    "mac_address": "addresses are drawn for each range",
    "driver_opts": "none",
    "priority": "",
    "gw_priority": "",
}
"""Likewise of a service's place in one."""


def read_networks(services: Mapping[str, Mapping[str, Any]], networks: object) -> dict[str, list[str]]:
    """The networks of each service, by its name; empty where all share one, so that none is kept apart. Raises `CannotKeepError` for what a range can't be."""
    declared = mapping(networks, "networks")
    refused = Refusals()
    for name, settings in declared.items():
        with refused.collected():
            fields = mapping(settings, f"network {name}")
            _refuse(f"network {name}", fields, TOP_KEYS, _keeps_network)
    for name, service in services.items():
        with refused.collected():
            _check_service(name, service, declared)
    refused.raise_all()
    return _apart(services) if len(services) > 1 else {}


def _check_service(name: str, service: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
    joined = service.get("networks")
    if joined is not None and service.get("network_mode") is not None:
        raise CannotKeepError(f"its compose service {printable(name)} has both networks and network_mode")
    for network in names_in(joined):
        if network not in declared and network != _IMPLICIT:
            raise CannotKeepError(
                f"its compose service {printable(name)} joins a network that is not declared: {printable(network)}"
            )
    for network, settings in mapping(joined, "networks").items() if isinstance(joined, Mapping) else ():
        where = f"service {name} in network {network}"
        _refuse(where, mapping(settings, "networks"), SERVICE_KEYS, _keeps_place)


def _apart(services: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    alone = [name for name, service in services.items() if service.get("network_mode") == "none"]
    if alone:
        raise CannotKeepError(
            f"its compose file has several services, and one without a network: {printable(', '.join(alone))}"
        )
    joined = {name: names_in(service.get("networks")) or [_IMPLICIT] for name, service in services.items()}
    shared = set.intersection(*(set(of) for of in joined.values()))
    return {} if shared else joined


def _refuse(where: str, settings: Mapping[str, Any], keys: Mapping[str, str], keeps: Any) -> None:  # noqa: ANN401 - one of those below
    refused = Refusals()
    for key, value in settings.items():
        if value is None or key.startswith("x-") or (key in keys and keeps(key, value)):
            continue
        with refused.collected():
            raise refusal(where, key, keys.get(key) or "a range does not have it")
    refused.raise_all()


def _keeps_network(key: str, value: Any) -> bool:  # noqa: ANN401 - YAML
    if key in ("external", "enable_ipv6"):
        return value in (False, "false")
    if key == "enable_ipv4":
        return switch(value)
    if key == "driver":
        return bool(value in ("bridge", "default"))
    if key == "ipam":
        return not value or (set(value) == {"driver"} and value["driver"] == "default")
    return not value if key == "driver_opts" else True


def _keeps_place(key: str, value: Any) -> bool:  # noqa: ANN401 - YAML
    if key == "interface_name":
        return bool(value == "eth0")
    return True if key in ("aliases", "priority", "gw_priority") else not value


# ---- names


def names_of(services: Mapping[str, Mapping[str, Any]], default: str) -> dict[str, list[str]]:
    """By what names each service is known. Raises `CannotKeepError` for a name that two have, and for one that a cell can't have."""
    linked = list(_linked(services))
    names: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for name, service in services.items():
        if name != default and (name == _OWN or not _CELL_NAME.fullmatch(name)):
            why = (
                "the cell that the sample works in is called so"
                if name == _OWN
                else "letters in lower case, digits, `.`, `_` and `-`"
            )
            raise CannotKeepError(f"its compose service can't be called {printable(name)} here: {why}")
        given = [*_names(name, service), *(alias for target, alias in linked if target == name)]
        names[name] = list(dict.fromkeys(item.lower() for item in given))
        for item in names[name]:
            if owner.setdefault(item, name) != name:
                both = f"{owner[item]} and {name}"
                raise CannotKeepError(f"its compose services {printable(both)} have the same name: {printable(item)}")
    return names


def _names(name: str, service: Mapping[str, Any]) -> Iterator[str]:
    yield name
    yield from (text(service[key]) for key in ("hostname", "container_name") if service.get(key))
    networks = service.get("networks")
    for settings in networks.values() if isinstance(networks, Mapping) else ():
        yield from names_in(mapping(settings, "networks").get("aliases"))


def _linked(services: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Services and the aliases that links give them."""
    for service in services.values():
        for link in names_in(service.get("links")):
            target, _, alias = link.partition(":")
            yield target, alias or target
