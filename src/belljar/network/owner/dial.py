"""Real upstreams, the owner's side: whether, and at which address, one may be dialled.

A name is resolved once a range, by the host's resolver, and pinned against DNS rebinding; every
address must be public.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final

from belljar.errors import HostError
from belljar.events import JsonValue
from belljar.host.settings import environment_at_start
from belljar.network.owner.relay import NotDialledError, RunSpending
from belljar.network.supervisor import netlink
from belljar.plan import rules
from belljar.plan.network import NetworkPlan, UpstreamPlan
from belljar.units import printable

CONNECT_TIMEOUT_S: Final = 10.0
MAX_ADDRESSES: Final = 64  # An answer with more is refused.
_MAX_BUNDLE_BYTES: Final = 4 << 20
# Of a route without a gateway: a wider one leads to the world (a tunnel's `0.0.0.0/1`).
_MIN_PREFIX: Final = {4: 8, 6: 16}

# Beside what no cell may reach (`plan.rules`), what IANA's special-purpose registries (RFC 6890)
# hold as of 2024, spelled out: what `ipaddress` calls global differs between Python's versions.
_SPECIAL: Final = (
    # Documentation, 6to4 relays (RFC 7526), multicast
    *("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "192.88.99.0/24", "224.0.0.0/4"),
    # Unspecified, loopback, IPv4-mapped and -compatible; NAT64 (RFC 6052, RFC 8215), discard,
    # protocol assignments and Teredo, documentation (RFC 9637), 6to4, segment routing, unique local
    # (fd00:ec2::254 is a metadata service), link-local, site-local (RFC 3879), multicast
    *("::/8", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32"),
    *("3fff::/20", "2002::/16", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
)
Network = IPv4Network | IPv6Network
FORBIDDEN: Final[tuple[Network, ...]] = (*rules.FORBIDDEN, *map(ip_network, _SPECIAL))
_BUNDLE: Final = "/etc/ssl/certs/ca-certificates.crt"


class NotAnUpstreamError(ValueError):
    """The plan lacks it: the gateway is compromised."""


def wanted(body: bytes, network: NetworkPlan) -> tuple[UpstreamPlan, int]:
    """Return the request's upstream and port. Raises `NotAnUpstreamError`."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict) or set(asked) != {"host", "port", "stand_in"}:
        raise NotAnUpstreamError("a dial request that is none")
    host, port, stand_in = asked["host"], asked["port"], asked["stand_in"]
    for upstream in network.upstreams:
        # A port that is `true` or 443.0 equals no port of ours.
        is_named = (upstream.host, upstream.id) == (host, stand_in)
        if is_named and type(port) is int and port in upstream.ports:
            return upstream, port
    what = printable(f"{host}:{port} as {stand_in}", max_chars=300)
    raise NotAnUpstreamError(f"a dial request for what is no upstream of this range: {what}")


def problem_of(address: str, near: Collection[Network] = ()) -> str:
    """Return why it may not be dialled, or ""."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return "is no address"
    if isinstance(parsed, IPv6Address) and parsed.scope_id is not None:
        return "is of one link"
    is_special = parsed.is_multicast or parsed.is_reserved or parsed.is_unspecified
    if is_special or not parsed.is_global or any(parsed in net for net in FORBIDDEN):
        return "is not a public one"
    if any(parsed in net for net in near):
        return "is of this host, or of a network that it is on"
    return ""


def resolve(host: str, port: int) -> tuple[str, ...]:
    # An absolute name gets no search domain (resolv.conf(5))
    found = socket.getaddrinfo(f"{host}.", port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def networks_near() -> tuple[Network, ...]:
    """Return this host's addresses and directly routed networks. Raises `OSError`."""
    with netlink.open_socket() as kernel:
        routes = netlink.list_routes(kernel)
    near = (route.to for route in routes if route.is_near())
    return tuple(to for to in near if to.prefixlen >= _MIN_PREFIX[to.version])


def connect(address: str, port: int) -> socket.socket:
    return socket.create_connection((address, port), CONNECT_TIMEOUT_S)


def read_authorities() -> str:
    """Return this host's public CAs, PEM. Raises `HostError`."""
    # As at the start: no `.env` file of a task names the roots of trust.
    named = environment_at_start().get("SSL_CERT_FILE")
    for path in (named or ssl.get_default_verify_paths().openssl_cafile, _BUNDLE):
        with suppress(OSError, UnicodeError):
            text = Path(path).read_text("utf-8")
            if "BEGIN CERTIFICATE" in text and len(text) <= _MAX_BUNDLE_BYTES:
                return text
    what = "this host has no bundle of public certification authorities to check upstreams by"
    raise HostError(what, where=_BUNDLE, hint="install the package ca-certificates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    resolve: Callable[[str, int], tuple[str, ...]] = resolve
    networks_near: Callable[[], tuple[Network, ...]] = networks_near
    connect: Callable[[str, int], socket.socket] = connect
    read_authorities: Callable[[], str] = read_authorities


# Record a `network.upstream`; returns when that is done.
Record = Callable[[Mapping[str, JsonValue]], None]


class Dialler:
    """Its methods block, and are thread-safe."""

    def __init__(self, network: NetworkPlan, reach: Reach, spending: RunSpending) -> None:
        self._network, self._reach, self._spending = network, reach, spending
        self.number = next(spending.numbers)
        self._locks = {upstream.host: threading.Lock() for upstream in network.upstreams}
        self._pins: dict[str, tuple[str, ...]] = {}
        self._refused: dict[str, str] = {}

    def dial(self, body: bytes, record: Record) -> socket.socket:
        """Return the end of a relay, to be closed; recorded before it is dialled or refused.

        Raises `NotDialledError`, `OSError`; `NotAnUpstreamError`: the range is to be ended.
        """
        upstream = port = None
        try:
            upstream, port = wanted(body, self._network)
            with self._spending.dialling(self.number, upstream):
                # One alone, as the resolver orders them: each dial costs budget.
                address = self._pinned(upstream, port, record)[0]
                record(_event(upstream, port, verdict="dialled", address=address))
                try:
                    end = self._reach.connect(address, port)
                except OSError as exc:
                    problem = printable(exc.strerror or type(exc).__name__, max_chars=200)
                    record(
                        _event(upstream, port, verdict="failed", address=address, problem=problem)
                    )
                    with self._locks[upstream.host]:  # last: the next request tries another
                        others = [each for each in self._pins[upstream.host] if each != address]
                        self._pins[upstream.host] = (*others, address)
                    raise OSError(f"no answer there: {problem}") from exc
                return self._spending.relay(self.number, upstream, end)
        except (NotAnUpstreamError, NotDialledError) as exc:
            record(_event(upstream, port, verdict="refused", problem=str(exc)))
            raise

    def close(self) -> None:
        """End every connection. Idempotent."""
        self._spending.close(self.number)

    def _pinned(self, upstream: UpstreamPlan, port: int, record: Record) -> tuple[str, ...]:
        # The first answer's addresses, judged at each dial; a refused answer stays refused.
        host = upstream.host
        with self._locks[host]:
            if host in self._refused:
                raise NotDialledError(self._refused[host])
            addresses = self._pins.get(host)
            if not addresses:
                record(_event(upstream, port, verdict="looked_up"))
            try:
                addresses = addresses or self._reach.resolve(host, port)
            except (OSError, UnicodeError) as exc:
                reason = printable(str(exc), max_chars=200)
                raise NotDialledError(f"the name can't be resolved: {reason}") from exc
            try:
                near = self._reach.networks_near()
            except OSError as exc:
                reason = exc.strerror or type(exc).__name__
                raise NotDialledError(f"this host's own networks can't be read: {reason}") from exc
            if 0 < len(addresses) <= MAX_ADDRESSES:
                # A name that also stands for something private is not what the author meant.
                judged = ((each, problem_of(each, near)) for each in addresses)
                problems = [f"{printable(each, max_chars=80)} {why}" for each, why in judged if why]
            else:
                problems = [f"the name has {len(addresses) or 'no'} addresses"]
            if problems:
                self._refused[host] = problems[0]
                raise NotDialledError(problems[0])
            self._pins[host] = addresses
            return addresses


def _event(upstream: UpstreamPlan | None, port: int | None, **more: str) -> dict[str, JsonValue]:
    host, reason = ("", "") if upstream is None else (upstream.host, upstream.reason)
    return {"host": host, "port": port, "reason": reason, "address": "", "problem": "", **more}
