"""A cell's port on its range's network, as isolation needs it: who puts the link there, and what
the cell is told of it.

The network room makes ports, isolation makes cells; neither knows the other. What they share is
here.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Protocol

from belljar.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSettings:
    """What is configured at the cell's end.

    The address stands alone (/32): nobody else is on the link but the gateway, whose neighbour
    entry is permanent.

    Attributes:
        mac, gateway_mac: six octets, lower case hexadecimal with colons; locally administered,
            unicast.
        resolver: the one name server, reached by the gateway as everything else is.
        mtu: bytes of a packet of the link, at most 65535.
    """

    address: IPv4Address
    gateway: IPv4Address
    mac: str
    gateway_mac: str
    resolver: IPv4Address
    mtu: int = 1500


class Port(Protocol):
    """One port of a range, made for one cell."""

    @property
    def settings(self) -> PortSettings:
        """What the cell is told."""
        ...

    @property
    def range_id(self) -> str:
        """The range that it is of; "" when it is nobody's."""
        ...

    @property
    def user_namespace(self) -> int | None:
        """A descriptor of the user namespace below which the cell's jail must be made: an ordinary
        user's supervisor may put links nowhere else. It is the port's, open as long as that. None:
        anywhere (the supervisor is the host's root).

        In it 0 is the user himself and 1 to 65536 are his subordinate ids in order, for groups too;
        `setgroups` is allowed.
        """
        ...

    async def attach(self, pid: int) -> None:
        """Put the cell's end of the link into the network namespace of that process of the host,
        configured as `settings` say, and up.

        Called before anything of the cell's runs there, and again only when the cell's start is
        tried again, after the last namespace's end. The namespace holds nothing but `lo`; its end
        is the link's end.

        Raises:
            BelljarError: the link can't be made, or the range is gone. The cell is then ended.
        """
        ...
