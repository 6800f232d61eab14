"""A fleet's needs of Ray or Slurm: nodes, functions on them, units, heartbeats."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import Any, Final

from belljar.errors import PolicyError
from belljar.fleet.guard import START_S
from belljar.units import printable

BEAT_S: Final = 1.0  # often enough that one late answer is far from the end of a node's patience
CELLS: Final = "belljar_cells"
# Of cells: a sample's count with all that their policies allow them.
MEMORY: Final = "belljar_memory_mib"
# MicroVMs run on hardware virtualisation; a node without this marker emulates them.
HARDWARE: Final = "belljar_hardware"
CALL_S: Final = 660.0  # longer than a node's check of a task may take
CLEAR_S: Final = 120.0  # to remove a run's files: a busy node takes long to start a worker
# Shared address space (RFC 6598) is what EKS and Tailscale give machines.
_NEAR: Final = tuple(
    ipaddress.ip_network(each)
    for each in (
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
        *("169.254.0.0/16", "::1/128", "fe80::/10", "fc00::/7"),
    )
)


class Engine(ABC):
    """A connection to a cluster, for one evaluation.

    `last_heard_s`: when each node that is expected to answer did. `is_stopping`: nodes are to end
    their units. `needs_token`: nodes must have token authentication on.
    """

    needs_token = False

    def __init__(self) -> None:
        self.is_stopping = False
        self.closed = threading.Event()
        self.last_heard_s: dict[str, float] = {}

    @abstractmethod
    def offers(self, *, to_kill: bool = False) -> dict[str, Mapping[str, float]]:
        """Return the offers of live nodes with cells; `to_kill`: include draining ones."""

    @abstractmethod
    def on_each(
        self, nodes: Sequence[str], call: partial[Any], *, within_s: float = CALL_S
    ) -> dict[str, Any]:
        """Return the function's result on each node; exceptions are results."""

    @abstractmethod
    def start(
        self, arguments: Sequence[Any], *, cells: int, memory_mib: int, nodes: Sequence[str]
    ) -> object:
        """Run a unit on one of these nodes."""

    @abstractmethod
    def ready(self, units: Sequence[object], *, timeout_s: float) -> Iterator[tuple[object, Any]]:
        """Yield the units' messages: an item, None at the end, or its exception."""

    @abstractmethod
    def cancel(self, unit: Any) -> None:  # noqa: ANN401 - what `start` returned
        """Forget a unit; its guard ends it."""

    def watch(self, _fleet: str, nodes: Sequence[str]) -> None:
        """Exchange heartbeats in a thread, as verifying may take long."""
        # In the future: nothing is expected while what answers is started.
        self.last_heard_s = dict.fromkeys(nodes, time.monotonic() + START_S)
        threading.Thread(target=self._beat, name="fleet-beats", daemon=True).start()

    @abstractmethod
    def _beat(self) -> None:
        """Exchange heartbeats until `closed`."""

    @abstractmethod
    def close(self) -> None:
        """Leave the cluster."""


def joined(fleet: str) -> AbstractContextManager[Engine]:
    """Raises `PolicyError`, `HostError`."""
    name, _, address = fleet.partition("://")
    if name == "ray":
        from belljar.fleet.ray_engine import RayEngine

        return closing(RayEngine(address))
    if name == "slurm":
        from belljar.fleet.slurm_engine import SlurmEngine

        return closing(SlurmEngine(address))
    hint = "use ray, ray://HOST:PORT, slurm or slurm://PARTITION"
    raise PolicyError(f"the fleet `{printable(fleet)}` is not known", hint=hint)


def check_private(host: str, *, where: str) -> None:
    """Raise `PolicyError` for an address neither loopback nor private."""
    try:
        # An IPv6 address is in brackets before its port.
        found = {str(each[4][0]) for each in socket.getaddrinfo(host.strip("[]"), None)}
        addresses = map(ipaddress.ip_address, found)
        # All of them: a client may connect to any address of a name. A mapped one such as
        # ::ffff:192.0.2.1 reaches the IPv4 host, and is judged as that.
        plain = [getattr(each, "ipv4_mapped", None) or each for each in addresses]
        is_near = all(any(each in network for network in _NEAR) for each in plain)
    except (OSError, ValueError) as error:
        what, hint = f"the address can't be used: {error}", "write HOST:PORT of the cluster's head"
        raise PolicyError(what, where=printable(where), hint=hint) from error
    if not is_near:
        what = "its address is public, and whoever reaches Ray's port may run code on each node"
        hint = "use a private network, or a tunnel to loopback"
        raise PolicyError(what, where=printable(where), hint=hint)
