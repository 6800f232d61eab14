"""Probing a cell that hangs on a range's router. Pure, but for the look that the router gives.

Such a cell has a route, so "a packet left" says nothing: it came as far as the router. What counts
is whether something answered, which the cell says, and whether the router let anything through that
the plan does not name, which the host sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from belljar.probe.judge import Sight
from belljar.probe.model import Probe, Side, Witness

_BEYOND: Final = frozenset(
    f"network.{name}"
    for name in (
        *(
            "tcp4",
            "tcp6",
            "udp4",
            "udp6",
            "ping4",
            "ping6",
            "raw4",
            "raw6",
            "metadata",
            "metadata6",
            "metadata_alibaba",
        ),
        *(
            "metadata_azure",
            "metadata_tasks",
            "neighbours6",
            "usual_hosts",
            "everyone",
            "dns_configured",
            "dns_public",
        ),
        *("dns_public_tcp", "dns_tls"),
    )
)
_TCP: Final = ("tcp4", "dns_public_tcp", "dns_tls", "usual_hosts")


class Router(Protocol):
    """What stands at the other end of a cell's port; a range's network is one."""

    @property
    def interface(self) -> str:
        """What the port is called in the cell."""
        ...

    @property
    def mac(self) -> str:
        """The port's hardware address in the cell."""
        ...

    @property
    def namespace(self) -> int | None:
        """The number of the network namespace that holds the port's inner end; None before it is
        attached.
        """
        ...

    @property
    def known(self) -> Mapping[str, str]:
        """Probe → why something answers it, by the policy's own will."""
        ...

    def look(self) -> Sight:
        """Whether its rules are those of the plan, and nothing but the range's own ports hangs on
        it. Blocking.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRouter:
    """A cell without a network device."""

    interface: str = ""
    mac: str = ""
    namespace: int | None = None
    known: Mapping[str, str] = field(default_factory=dict)

    def look(self) -> Sight:
        """Nothing to see."""
        return Sight(touched=False, what="the cell has no network device")


def routed(probes: Sequence[Probe], router: Router | None, *, tier: str) -> tuple[Probe, ...]:
    """The probes as they are meant in a cell with this router; without one, as they are."""
    if router is None:
        return tuple(probes)
    return tuple(_routed(probe, router.known.get(probe.name, ""), tier) for probe in probes)


def _routed(probe: Probe, known: str, tier: str) -> Probe:
    if probe.name not in _BEYOND:
        return probe
    expected = {**probe.expected, tier: known} if known else probe.expected
    return replace(probe, side=Side.HOST, witness=Witness.ROUTER, expected=expected)


def known_answers(*, sinks: bool, simulates: bool, metadata: bool) -> Mapping[str, str]:
    """Which of the probes are answered by the policy's own will, and why."""
    sink = (
        {f"network.{name}": "the range's sink takes what nobody has" for name in _TCP}
        if sinks
        else {}
    )
    simulated = {"network.dns_configured": "the range simulates unknown names"} if simulates else {}
    service = {"network.metadata": "a stand-in of the range has that address"} if metadata else {}
    return {**sink, **simulated, **service}
