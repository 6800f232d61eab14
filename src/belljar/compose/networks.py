"""A compose file's networks. Pure.

A range's cells reach each other's services where they share a network, at addresses drawn for that
range, and nothing beyond it. A file that fixes what a range draws means something else, and is
refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Final

from belljar.compose.words import CannotKeepError, Refusals, mapping, names_in, refusal, switch, text
from belljar.differences import Difference, Kind
from belljar.units import printable

_CELL_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_IMPLICIT: Final = "default"
_OWN: Final = "default"
_DRAWN: Final = "addresses are drawn for each range"
_OF_HOST: Final = "it is about a host's side of the network, which a range does not have"
_HOSTS_OPTIONS: Final = frozenset(
    {
        "com.docker.network.bridge.name",
        "com.docker.network.bridge.enable_ip_masquerade",
        "com.docker.network.bridge.host_binding_ipv4",
        "com.docker.network.driver.mtu",
    }
)
_ADDRESS: Final = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])", re.ASCII)
TOP_KEYS: Final[Mapping[str, str]] = {
    "name": "",
    "driver": "only `bridge`",
    "driver_opts": "only those of a host's side of a bridge",
    "ipam": "only subnets and gateways: addresses are drawn for each range",
    "external": "a range never joins a network of others",
    "internal": "",
    "enable_ipv4": "it has IPv4",
    "enable_ipv6": "it has no IPv6",
    "attachable": "",
    "labels": "",
}
"""Every key that Compose knows of a network, with the reason when a range can't keep it; "" where
it keeps any value."""
SERVICE_KEYS: Final[Mapping[str, str]] = {
    "aliases": "",
    "interface_name": "only `eth0`",
    "ipv4_address": "addresses are drawn for each range",
    "ipv6_address": "it has no IPv6",
    "link_local_ips": "addresses are drawn for each range",
    "mac_address": "",
    "driver_opts": "none",
    "priority": "",
    "gw_priority": "",
}
"""Likewise of a service's place in one."""


def read_networks(
    services: Mapping[str, Mapping[str, Any]], networks: object
) -> tuple[dict[str, list[str]], list[Difference]]:
    """The networks of each service, by its name; empty where all share one, so that none is kept
    apart.

    And what is not kept of them. Raises `CannotKeepError` for what a range can't be.
    """
    declared = mapping(networks, "networks")
    refused = Refusals()
    for name, settings in declared.items():
        with refused.collected():
            fields = mapping(settings, f"network {name}")
            _refuse(f"network {name}", fields, TOP_KEYS, _keeps_network)
    for name, service in services.items():
        with refused.collected():
            _check_service(name, service, declared)
    with refused.collected():
        _check_subnets(services, declared)
    refused.raise_all()
    differences = [*_dropped_of_networks(declared), *_dropped_of_places(services)]
    return _apart(services) if len(services) > 1 else {}, differences


def _dropped_of_networks(declared: Mapping[str, Any]) -> Iterator[Difference]:
    for name, settings in declared.items():
        fields = mapping(settings, f"network {name}")
        where = f"network {name}"
        if _subnets(fields):
            yield Difference(kind=Kind.CHANGED, where=where, key="ipam", detail=_DRAWN)
        if fields.get("driver_opts"):
            yield Difference(kind=Kind.DROPPED, where=where, key="driver_opts", detail=_OF_HOST)


def _dropped_of_places(services: Mapping[str, Mapping[str, Any]]) -> Iterator[Difference]:
    for name, service in services.items():
        joined = service.get("networks")
        for network, place in joined.items() if isinstance(joined, Mapping) else ():
            if mapping(place, "networks").get("mac_address"):
                where = f"service {name} in network {network}"
                yield Difference(kind=Kind.DROPPED, where=where, key="mac_address", detail=_DRAWN)


def _subnets(fields: Mapping[str, Any]) -> list[IPv4Network]:
    """What a network's `ipam` fixes. Raises `ValueError` for what is no IPv4 network."""
    ipam = mapping(fields.get("ipam"), "ipam")
    configs = ipam.get("config") or []
    if not isinstance(configs, list):
        raise ValueError("no list of subnets")
    fixed = [mapping(config, "ipam") for config in configs]
    return [IPv4Network(text(config["subnet"]), strict=False) for config in fixed if config.get("subnet")]


def _check_subnets(services: Mapping[str, Mapping[str, Any]], declared: Mapping[str, Any]) -> None:
    """Addresses are drawn for each range: a file that names one of a subnet of its own relies on
    it."""
    for name, settings in declared.items():
        for subnet in _subnets(mapping(settings, f"network {name}")):
            if found := next((at for at in _addresses(str(services)) if at in subnet), None):
                raise refusal(f"network {name}", "ipam", f"the file names {found}; {_DRAWN}")


def _addresses(written: str) -> Iterator[IPv4Address]:
    for found in _ADDRESS.findall(written):
        with suppress(ValueError):
            yield IPv4Address(found)


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
        usual = value.get("driver") in (None, "default") and not set(value) - {"driver", "config"}
        return usual and all(set(each) <= {"subnet", "gateway"} for each in value.get("config") or ())
    return set(value or ()) <= _HOSTS_OPTIONS if key == "driver_opts" else True


def _keeps_place(key: str, value: Any) -> bool:  # noqa: ANN401 - YAML
    if key == "interface_name":
        return bool(value == "eth0")
    return True if key in ("aliases", "priority", "gw_priority", "mac_address") else not value


# ---- names


def names_of(services: Mapping[str, Mapping[str, Any]], default: str) -> dict[str, list[str]]:
    """By what names each service is known.

    Raises `CannotKeepError` for a name that two have, and for one that a cell can't have.
    """
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
