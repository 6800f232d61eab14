"""The cases of addresses, ports and protocols, of sockets, frames and devices."""

from __future__ import annotations

from typing import Final

from tests.security.egress.case import Case, tcp, udp
from tests.security.egress.evidence import (
    Both,
    Counted,
    Dropped,
    Either,
    Evidence,
    NeverSent,
    Refused,
    Word,
)

_NOT_GIVEN: Final = (
    "EPERM",
    "EACCES",
    "EPROTONOSUPPORT",
    "ESOCKTNOSUPPORT",
    "EAFNOSUPPORT",
    "EINVAL",
)
_NO_ADDRESS: Final = ("EADDRNOTAVAIL", "ENETUNREACH", "EHOSTUNREACH", "EINVAL", "EPERM")
_AN_ERROR: Final = tuple("123456789")
_RST: Final = "RST, on record"


def _not_given(
    name: str,
    tries: str,
    step: tuple[str, ...],
    leaves: Evidence,
    words: tuple[str, ...] = _NOT_GIVEN,
) -> Case:
    """What a workload isn't given: its own word that it got none, and the record that nothing
    left."""
    return Case(name, tries, step, "not given; nothing leaves", Both((Word(words), leaves)))


ADDRESSES: Final = (
    tcp("tcp-public", "TCP to a public address", "203.0.113.1", "address"),
    tcp("tcp-https", "the port of HTTPS of a public address", "203.0.113.2", "address", "443"),
    tcp("tcp-ssh", "SSH at a public address", "203.0.113.3", "address", "22"),
    tcp("tcp-port-0", "port 0 of a public address", "203.0.113.4", "address", "0"),
    tcp("tcp-tor", "a Tor relay's port", "203.0.113.5", "address", "9001"),
    tcp("tcp-free", "an address of the range that has no name", "{free}", "address", "80"),
    tcp("tcp-unused", "an address of the range's unused part", "{unused}", "address", "80"),
    tcp("tcp-network", "the range's first address", "{network}", "address", "80"),
    tcp("tcp-other-port", "another port of a stand-in", "{shop}", "port"),
    tcp("gateway-port", "any port of the gateway's own address", "{resolver}", "port"),
    tcp(
        "gateway-http",
        "the gateway's own address, at a stand-in's port",
        "{resolver}",
        "port",
        "80",
    ),
    tcp(
        "gateway-mail",
        "a stand-in's address, at a port that another one has",
        "{shop}",
        "port",
        "25",
    ),
    Case(
        "tcp-first-data",
        "data within the first segment (TCP Fast Open)",
        ("begin", "203.0.113.6", "{port}", "{token}"),
        "RST, or never begun",
        Either(
            (
                Refused("address", "203.0.113.6"),
                Both(
                    (
                        Word(("EPIPE", "EOPNOTSUPP", "ENOPROTOOPT")),
                        NeverSent("to", "203.0.113.6", "{port}"),
                    )
                ),
            )
        ),
    ),
    Case(
        "tcp-no-wait",
        "a first segment from a socket that is closed at once",
        ("ended", "203.0.113.7", "{port}"),
        _RST,
        Refused("address", "203.0.113.7"),
    ),
    udp("udp-public", "UDP to a public address", "203.0.113.8"),
    udp("udp-gateway", "UDP to the gateway's address", "{resolver}"),
    udp("udp-stand-in", "UDP to a stand-in's TCP port", "{shop}", port="80"),
    udp("quic-stand-in", "QUIC to a stand-in", "{shop}", port="443"),
    udp("quic-public", "QUIC to a public address", "203.0.113.9", port="443"),
    udp("ntp", "NTP", "203.0.113.10", port="123"),
    udp("stun", "STUN", "203.0.113.11", port="3478"),
    udp("wireguard", "WireGuard", "203.0.113.12", port="51820"),
    Case(
        "udp-from-53",
        "UDP from port 53, as an answer of a resolver's",
        ("udp", "203.0.113.13", "{port}", "{token}", "4", "53"),
        "refused, on record",
        Refused("udp", "203.0.113.13", protocol="udp"),
    ),
    udp(
        "subnet-broadcast",
        "the range's last address, its broadcast elsewhere",
        "{broadcast}",
        port="137",
    ),
    Case(
        "tcp-mapped",
        "an IPv4 address written as IPv6 (::ffff:a.b.c.d)",
        ("tcp", "::ffff:203.0.113.14", "{port}", "", "6"),
        _RST,
        Refused("address", "203.0.113.14"),
    ),
    Case(
        "tcp-mapped-lan",
        "an address of the host's, written so",
        ("tcp", "::ffff:{lan}", "{ear}", "", "6"),
        _RST,
        Refused("forbidden", "{lan}", "{ear}"),
    ),
    Case(
        "ipv6",
        "an IPv6 address",
        ("tcp", "2001:db8::1", "{port}", "", "6"),
        "no frame leaves, or it is dropped and counted",
        Either((NeverSent("ipv6"), Counted("ipv6"))),
    ),
    Case(
        "ipv6-metadata",
        "AWS's metadata service by IPv6",
        ("tcp", "fd00:ec2::254", "80", "", "6"),
        "no frame leaves, or it is dropped and counted",
        Either((NeverSent("ipv6"), Counted("ipv6"))),
    ),
    Case(
        "ipv6-multicast",
        "all IPv6 nodes of the link",
        ("udp", "ff02::1", "{port}", "{token}", "6"),
        "no frame leaves, or it is dropped and counted",
        Either((NeverSent("ipv6"), Counted("ipv6"))),
    ),
)


RAW: Final = (
    Case(
        "ping",
        "an ICMP echo with data in it, by a ping socket",
        ("open_socket", "2", "2", "1", "203.0.113.20", "0"),
        "no such socket, or refused",
        Either(
            (
                Both((Word(_NOT_GIVEN), NeverSent("protocol", port="1"))),
                Refused("icmp", "203.0.113.20", "0", "icmp"),
            )
        ),
    ),
    _not_given(
        "raw-icmp",
        "a raw ICMP socket: an ICMP tunnel",
        ("open_socket", "2", "3", "1", "203.0.113.21", "0"),
        NeverSent("to", "203.0.113.21"),
    ),
    _not_given(
        "raw-ip",
        "a raw IP socket: packets with any header",
        ("open_socket", "2", "3", "255", "203.0.113.22", "0"),
        NeverSent("to", "203.0.113.22"),
    ),
    _not_given(
        "raw-gre",
        "GRE, by a raw socket",
        ("open_socket", "2", "3", "47", "203.0.113.23", "0"),
        NeverSent("protocol", port="47"),
    ),
    _not_given(
        "raw-6in4",
        "IPv6 within IPv4, by a raw socket",
        ("open_socket", "2", "3", "41", "203.0.113.24", "0"),
        NeverSent("protocol", port="41"),
    ),
    _not_given(
        "raw-tcp",
        "TCP segments of one's own making",
        ("open_socket", "2", "3", "6", "203.0.113.25", "0"),
        NeverSent("to", "203.0.113.25"),
    ),
    _not_given(
        "raw-ipv6",
        "a raw IPv6 socket",
        ("open_socket", "10", "3", "58", "2001:db8::2", "0"),
        NeverSent("ipv6"),
    ),
    _not_given(
        "packet-arp",
        "an ARP answer for the gateway's address, by a packet socket",
        (
            "frame",
            "ffffffffffff02aabbccddee0806000108000604000202aabbccddee0a00000102aabbccddee0a000002",
        ),
        NeverSent("arp"),
    ),
    _not_given(
        "packet-mac",
        "a frame from another MAC",
        ("frame", "ffffffffffff02aabbccddee88b5" + "00" * 46),
        NeverSent("not ip"),
    ),
    _not_given(
        "packet-cooked",
        "a packet socket without link headers",
        ("open_socket", "17", "2", "8", "203.0.113.26", "0"),
        NeverSent("to", "203.0.113.26"),
        (*_NOT_GIVEN, "failed TypeError", "failed ValueError"),
    ),
    Case(
        "sctp",
        "SCTP",
        ("open_socket", "2", "1", "132", "203.0.113.27", "{port}"),
        "no such socket",
        Both((Word(_NOT_GIVEN), NeverSent("protocol", port="132"))),
    ),
    Case(
        "dccp",
        "DCCP",
        ("open_socket", "2", "6", "33", "203.0.113.28", "{port}"),
        "no such socket",
        NeverSent("protocol", port="33"),
    ),
    Case(
        "udp-lite",
        "UDP-Lite",
        ("open_socket", "2", "2", "136", "203.0.113.29", "{port}"),
        "no such socket, or refused",
        Either((Both((Word(_NOT_GIVEN), NeverSent("protocol", port="136"))), Counted("protocol"))),
    ),
    Case(
        "mptcp",
        "TCP over several paths (MPTCP)",
        ("open_socket", "2", "1", "262", "203.0.113.30", "{port}"),
        "no such socket, or RST",
        Either(
            (
                Both((Word(_NOT_GIVEN), NeverSent("to", "203.0.113.30"))),
                Refused("address", "203.0.113.30"),
            )
        ),
    ),
    Case(
        "fragments",
        "a datagram in fragments",
        ("fragments", "203.0.113.31", "{port}"),
        "dropped, none put together",
        Dropped("fragment", "203.0.113.31"),
    ),
    Case(
        "fragments-stand-in",
        "the same to a stand-in",
        ("fragments", "{shop}", "{port}"),
        "dropped, none put together",
        Dropped("fragment", "{shop}"),
    ),
    Case(
        "igmp",
        "a multicast group is joined: IGMP, by the cell's kernel",
        ("join_group", "239.1.2.3"),
        "no frame leaves, or it is dropped and counted",
        Either((NeverSent("protocol", port="2"), Counted("options"), Counted("multicast"))),
    ),
    *(
        Case(
            f"source-route-{name}",
            f"a {name} source route by the host",
            ("source_route", number, "{lan}", "203.0.113.32", "{port}"),
            "not given, or dropped or refused; nothing comes back",
            Either(
                (
                    Both((Word(_NOT_GIVEN), NeverSent("options"))),
                    Dropped("source_route", "{lan}"),
                    Both((NeverSent("options"), Refused("udp", "203.0.113.32", protocol="udp"))),
                )
            ),
        )
        for name, number in (("loose", "131"), ("strict", "137"))
    ),
    _not_given(
        "spoof-bind",
        "a datagram from another cell's address",
        ("from_address", "{db}", "203.0.113.33", "{port}", "0", "{token}"),
        NeverSent("source", "{db}"),
        _NO_ADDRESS,
    ),
    _not_given(
        "spoof-transparent",
        "the same with IP_TRANSPARENT",
        ("from_address", "{db}", "203.0.113.33", "{port}", "19", "{token}"),
        NeverSent("source", "{db}"),
        _NO_ADDRESS,
    ),
    _not_given(
        "spoof-freebind",
        "the same with IP_FREEBIND",
        ("from_address", "{db}", "203.0.113.33", "{port}", "15", "{token}"),
        NeverSent("source", "{db}"),
        (*_NO_ADDRESS, "sent"),
    ),
    Case(
        "spoof-packet-info",
        "another source address, datagram by datagram",
        ("packet_info", "203.0.113.99", "203.0.113.34", "{port}", "{token}"),
        "not given, or sent as its own and refused",
        Either(
            (
                Both((Word(_NO_ADDRESS), NeverSent("source", "203.0.113.99"))),
                Both(
                    (
                        NeverSent("source", "203.0.113.99"),
                        Refused("udp", "203.0.113.34", protocol="udp"),
                    )
                ),
                Counted("spoofed"),
            )
        ),
    ),
    _not_given(
        "spoof-loopback",
        "a datagram from 127.0.0.1 to outside",
        ("from_address", "127.0.0.1", "203.0.113.35", "{port}", "0", "{token}"),
        NeverSent("source", "127.0.0.1"),
        _NO_ADDRESS,
    ),
    *(
        _not_given(name, tries, ("run", *words.split()), leaves, _AN_ERROR)
        for name, tries, words, leaves in (
            (
                "set-mac",
                "another MAC for the device",
                "ip link set dev eth0 address 02:00:00:00:00:99",
                NeverSent("not ip"),
            ),
            (
                "set-address",
                "another cell's address for the device",
                "ip addr add {db}/32 dev eth0",
                NeverSent("source", "{db}"),
            ),
            (
                "set-neighbour",
                "another MAC for the gateway",
                "ip neigh replace {resolver} lladdr 02:00:00:00:00:98 dev eth0",
                NeverSent("arp"),
            ),
            (
                "set-route",
                "a default route without the gateway",
                "ip route replace default dev eth0",
                NeverSent("arp"),
            ),
            (
                "set-ipv6",
                "an IPv6 address for the device",
                "ip -6 addr add 2001:db8::99/64 dev eth0",
                NeverSent("ipv6"),
            ),
            (
                "set-tunnel",
                "a tunnel device",
                "ip tunnel add t0 mode gre remote 203.0.113.36 local {own}",
                NeverSent("to", "203.0.113.36"),
            ),
            ("set-tun", "a tun device", "ip tuntap add t0 mode tun", NeverSent("not ip")),
            (
                "set-namespace",
                "a network namespace with rights in it",
                "unshare --user --map-root-user --net true",
                NeverSent("not ip"),
            ),
        )
    ),
    _not_given(
        "set-ipv6-on",
        "IPv6 switched on",
        ("write", "/proc/sys/net/ipv6/conf/all/disable_ipv6", "0"),
        NeverSent("ipv6"),
        ("EROFS", "EPERM", "EACCES", "ENOENT"),
    ),
    _not_given(
        "set-forwarding",
        "the cell as a router",
        ("write", "/proc/sys/net/ipv4/conf/all/forwarding", "1"),
        NeverSent("source", "{db}"),
        ("EROFS", "EPERM", "EACCES", "ENOENT"),
    ),
)
