"""The cases of packets: addresses, ports and protocols, whatever names say."""

from __future__ import annotations

from typing import Final

from tests.security.egress.case import Case, get
from tests.security.egress.evidence import (
    Attempt,
    Both,
    Counted,
    Dns,
    Dropped,
    Either,
    Evidence,
    Forwarded,
    Http,
    NeverSent,
    Reached,
    Refused,
    RefusedEach,
    Sunk,
    Tls,
    Word,
)

_NOT_GIVEN: Final = ("EPERM", "EACCES", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EAFNOSUPPORT", "EINVAL")
_NO_ADDRESS: Final = ("EADDRNOTAVAIL", "ENETUNREACH", "EHOSTUNREACH", "EINVAL", "EPERM")
_AN_ERROR: Final = tuple("123456789")
RST: Final = "RST, on record"


def _tcp(name: str, tries: str, address: str, reason: str, port: str = "{port}", where: str = "deny") -> Case:
    return Case(name, tries, ("tcp", address, port, "{token}"), RST, Refused(reason, address, port), where)


def _udp(name: str, tries: str, address: str, reason: str = "udp", port: str = "{port}", where: str = "deny") -> Case:
    return Case(
        name,
        tries,
        ("udp", address, port, "{token}"),
        "refused, on record",
        Refused(reason, address, port, "udp"),
        where,
    )


def _not_given(
    name: str, tries: str, step: tuple[str, ...], leaves: Evidence, words: tuple[str, ...] = _NOT_GIVEN
) -> Case:
    """What a workload isn't given: its own word that it got none, and the record that nothing left."""
    return Case(name, tries, step, "not given; nothing leaves", Both((Word(words), leaves)))


ADDRESSES: Final = (
    _tcp("tcp-public", "TCP to a public address", "203.0.113.1", "address"),
    _tcp("tcp-https", "the port of HTTPS of a public address", "203.0.113.2", "address", "443"),
    _tcp("tcp-ssh", "SSH at a public address", "203.0.113.3", "address", "22"),
    _tcp("tcp-port-0", "port 0 of a public address", "203.0.113.4", "address", "0"),
    _tcp("tcp-tor", "a Tor relay's port", "203.0.113.5", "address", "9001"),
    _tcp("tcp-free", "an address of the range that has no name", "{free}", "address", "80"),
    _tcp("tcp-unused", "an address of the range's unused part", "{unused}", "address", "80"),
    _tcp("tcp-network", "the range's first address", "{network}", "address", "80"),
    _tcp("tcp-other-port", "another port of a stand-in", "{shop}", "port"),
    _tcp("gateway-port", "any port of the gateway's own address", "{resolver}", "port"),
    _tcp("gateway-http", "the gateway's own address, at a stand-in's port", "{resolver}", "port", "80"),
    _tcp("gateway-mail", "a stand-in's address, at a port that another one has", "{shop}", "port", "25"),
    Case(
        "tcp-first-data",
        "data within the first segment (TCP Fast Open)",
        ("begin", "203.0.113.6", "{port}", "{token}"),
        "RST, or never begun",
        Either(
            (
                Refused("address", "203.0.113.6"),
                Both((Word(("EPIPE", "EOPNOTSUPP", "ENOPROTOOPT")), NeverSent("to", "203.0.113.6", "{port}"))),
            )
        ),
    ),
    Case(
        "tcp-no-wait",
        "a first segment from a socket that is closed at once",
        ("ended", "203.0.113.7", "{port}"),
        RST,
        Refused("address", "203.0.113.7"),
    ),
    _udp("udp-public", "UDP to a public address", "203.0.113.8"),
    _udp("udp-gateway", "UDP to the gateway's address", "{resolver}"),
    _udp("udp-stand-in", "UDP to a stand-in's TCP port", "{shop}", port="80"),
    _udp("quic-stand-in", "QUIC to a stand-in", "{shop}", port="443"),
    _udp("quic-public", "QUIC to a public address", "203.0.113.9", port="443"),
    _udp("ntp", "NTP", "203.0.113.10", port="123"),
    _udp("stun", "STUN", "203.0.113.11", port="3478"),
    _udp("wireguard", "WireGuard", "203.0.113.12", port="51820"),
    Case(
        "udp-from-53",
        "UDP from port 53, as an answer of a resolver's",
        ("udp", "203.0.113.13", "{port}", "{token}", "4", "53"),
        "refused, on record",
        Refused("udp", "203.0.113.13", protocol="udp"),
    ),
    _udp("subnet-broadcast", "the range's last address, its broadcast elsewhere", "{broadcast}", port="137"),
    Case(
        "tcp-mapped",
        "an IPv4 address written as IPv6 (::ffff:a.b.c.d)",
        ("tcp", "::ffff:203.0.113.14", "{port}", "", "6"),
        RST,
        Refused("address", "203.0.113.14"),
    ),
    Case(
        "tcp-mapped-lan",
        "an address of the host's, written so",
        ("tcp", "::ffff:{lan}", "{ear}", "", "6"),
        RST,
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
            (Both((Word(_NOT_GIVEN), NeverSent("protocol", port="1"))), Refused("icmp", "203.0.113.20", "0", "icmp"))
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
        "raw-ipv6", "a raw IPv6 socket", ("open_socket", "10", "3", "58", "2001:db8::2", "0"), NeverSent("ipv6")
    ),
    _not_given(
        "packet-arp",
        "an ARP answer for the gateway's address, by a packet socket",
        ("frame", "ffffffffffff02aabbccddee08060001080006040002" + "02aabbccddee0a00000102aabbccddee0a000002"),
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
        Either((Both((Word(_NOT_GIVEN), NeverSent("to", "203.0.113.30"))), Refused("address", "203.0.113.30"))),
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
                Both((NeverSent("source", "203.0.113.99"), Refused("udp", "203.0.113.34", protocol="udp"))),
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
            ("set-route", "a default route without the gateway", "ip route replace default dev eth0", NeverSent("arp")),
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

_NEVER: Final = (
    (
        "metadata",
        "169.254.169.254",
        "the metadata service of AWS, Google, Azure, Oracle, DigitalOcean, OpenStack, Hetzner",
    ),
    ("metadata-ecs", "169.254.170.2", "AWS's credentials of containers (ECS)"),
    ("metadata-eks", "169.254.170.23", "AWS's credentials of pods (EKS)"),
    ("metadata-dns", "169.254.169.253", "AWS's resolver"),
    ("metadata-tencent", "169.254.0.23", "Tencent's metadata service"),
    ("metadata-alibaba", "100.100.100.200", "Alibaba's metadata service"),
    ("metadata-azure", "168.63.129.16", "Azure's host"),
    ("metadata-oracle", "192.0.0.192", "Oracle's older metadata service"),
    ("private-10", "10.255.255.254", "a private address (10/8)"),
    ("private-172", "172.17.0.1", "Docker's usual bridge"),
    ("private-172-last", "172.31.255.254", "the end of 172.16/12"),
    ("private-192", "192.168.0.1", "a home router"),
    ("private-libvirt", "192.168.122.1", "libvirt's usual bridge"),
    ("private-carrier", "100.64.0.1", "a carrier's network (100.64/10)"),
    ("link-local", "169.254.1.1", "a link-local address"),
    ("benchmark", "198.18.0.1", "the network for benchmarks"),
    ("reserved", "240.0.0.1", "a reserved address"),
)
NEVER: Final = (
    *(_tcp(name, f"{what}, by TCP", address, "forbidden", "80") for name, address, what in _NEVER),
    *(_udp(f"{name}-udp", f"{what}, by UDP", address, "forbidden", "53") for name, address, what in _NEVER),
    _tcp("metadata-kubelet", "a kubelet's port at the metadata address", "169.254.169.254", "forbidden", "10250"),
    Case(
        "metadata-name",
        "the metadata service as Host of a stand-in",
        ("http", "{shop}", "80", get("169.254.169.254")),
        "refused",
        Http("/{token}", "the policy does not have this name"),
    ),
    Case(
        "zero",
        "address 0.0.0.0, which is the cell itself",
        ("tcp", "0.0.0.0", "{ear}", "{token}"),  # noqa: S104 - a target
        "no frame leaves",
        NeverSent("to", "0.0.0.0"),  # noqa: S104 - a target
    ),
    Case(
        "loopback",
        "the loopback: the cell's own, not the host's",
        ("each", "127.0.0.1,127.0.0.53,127.1.2.3", "{ear}", "{token}"),
        "no frame leaves; the host hears nothing",
        Both(
            (
                NeverSent("to", "127.0.0.1"),
                NeverSent("to", "127.0.0.53"),
                NeverSent("to", "127.1.2.3"),
                Word(("ECONNREFUSED",)),
            )
        ),
    ),
)

HOST: Final = (
    Case(
        "host-every-address",
        "every address of the host, where something listens",
        ("each", "{host}", "{ear}", "{token}"),
        "each refused; the host hears nothing",
        RefusedEach(("forbidden", "address"), "{host}", "{ear}"),
    ),
    _tcp(
        "host-lan", "an address of the host's private network, where something listens", "{lan}", "forbidden", "{ear}"
    ),
    _tcp("host-public", "a public address of the host, where something listens", "{lan_public}", "address", "{ear}"),
    _udp("host-lan-udp", "the same by UDP, private", "{lan}", "forbidden", "{ear}"),
    _udp("host-public-udp", "the same by UDP, public", "{lan_public}", "udp", "{ear}"),
    _tcp("host-ssh", "SSH of the host", "{lan}", "forbidden", "22"),
    _tcp("host-docker", "Docker's TCP port of the host", "{lan}", "forbidden", "2375"),
)

NEIGHBOURS: Final = (
    Case(
        "target",
        "a target cell at its named port",
        ("tcp", "{db}", "5432", "{token}"),
        "answered",
        Both((Forwarded("{db}", "5432"), Reached("{db}", "5432"))),
    ),
    _tcp("target-other-port", "a target cell at another port", "{db}", "neighbour"),
    _tcp("target-ssh", "SSH of a target cell", "{db}", "neighbour", "22"),
    _udp("target-udp", "a target cell's port by UDP", "{db}", port="5432"),
    Case(
        "target-to-agent",
        "the agent's cell from a target cell",
        ("tcp", "{own}", "{port}", "{token}"),
        RST,
        Refused("neighbour", "{own}"),
        "db",
    ),
    Case(
        "target-to-public",
        "a public address from a target cell",
        ("tcp", "203.0.113.40", "{port}", "{token}"),
        RST,
        Refused("address", "203.0.113.40"),
        "db",
    ),
    Case(
        "target-to-host",
        "the host from a target cell",
        ("tcp", "{lan}", "{ear}", "{token}"),
        RST,
        Refused("forbidden", "{lan}", "{ear}"),
        "db",
    ),
    Case(
        "target-dns",
        "a name outside from a target cell",
        ("dns", "{resolver}", "53", "{token}.test"),
        "NXDOMAIN, on record",
        Dns("{token}.test", "NXDOMAIN"),
        "db",
    ),
    _tcp("neighbour-stand-in", "a stand-in of the range beside, at its port", "{n_private}", "forbidden", "8080"),
    _tcp("neighbour-http", "its catch-all", "{n_catch_all}", "forbidden", "80"),
    _tcp("neighbour-dns-tcp", "its resolver by TCP", "{n_resolver}", "forbidden", "53"),
    _udp("neighbour-dns", "its resolver by UDP", "{n_resolver}", "forbidden", "53"),
    _tcp("neighbour-cell", "its cell", "{n_own}", "forbidden"),
    _udp("neighbour-cell-udp", "its cell by UDP", "{n_own}", "forbidden"),
    _tcp("neighbour-unused", "an address of the range beside that nobody has", "{n_unused}", "forbidden", "80"),
)

OPEN: Final = (
    Case(
        "sink",
        "with a sink: TCP to a public address",
        ("tcp", "203.0.113.60", "{port}", "{token}"),
        "the sink has its first bytes, nobody else",
        Sunk("203.0.113.60"),
        "open",
    ),
    Case(
        "sink-stand-in",
        "with a sink: another port of a stand-in",
        ("tcp", "{private}", "{port}", "{token}"),
        "the sink has it",
        Sunk("{private}"),
        "open",
    ),
    Case(
        "sink-smtp",
        "with a sink: mail to a public server",
        ("tcp", "203.0.113.61", "25", "EHLO {token}\r\n"),
        "the sink has it",
        Sunk("203.0.113.61", "25"),
        "open",
    ),
    Case(
        "sink-host-public",
        "with a sink: a public address of the host",
        ("tcp", "{lan_public}", "{ear}", "{token}"),
        "the sink has it; the host hears nothing",
        Sunk("{lan_public}", "{ear}"),
        "open",
    ),
    _tcp("sink-lan", "with a sink: an address of the host's network", "{lan}", "forbidden", "{ear}", "open"),
    _tcp("sink-private", "with a sink: a private address", "172.17.0.1", "forbidden", where="open"),
    _tcp("sink-neighbour", "with a sink: the range beside, its stand-in", "{n_shop}", "forbidden", "80", "open"),
    _tcp(
        "sink-neighbour-target", "with a sink: the range beside, its target cell", "{n_db}", "forbidden", "5432", "open"
    ),
    _udp("sink-udp", "with a sink: UDP to a public address", "203.0.113.62", where="open"),
    _udp(
        "sink-neighbour-dns", "with a sink: the resolver of the range beside", "{n_resolver}", "forbidden", "53", "open"
    ),
    Case(
        "simulate-dns",
        "with simulation: an unknown name",
        ("dns", "{resolver}", "53", "{token}.test"),
        "the catch-all's address, on record",
        Dns("{token}.test", "{catch_all}"),
        "open",
    ),
    Case(
        "simulate-rebinding",
        "with simulation: a public name that leads to a private address",
        ("dns", "{resolver}", "53", "127.0.0.1.{token}.nip.io"),
        "the catch-all's address",
        Dns("127.0.0.1.{token}.nip.io", "{catch_all}"),
        "open",
    ),
    Case(
        "simulate-wpad",
        "with simulation: a proxy's configuration (WPAD)",
        ("dns", "{resolver}", "53", "wpad.{token}.test"),
        "NXDOMAIN",
        Dns("wpad.{token}.test", "NXDOMAIN"),
        "open",
    ),
    Case(
        "simulate-neighbour",
        "with simulation: a name that only the range beside has",
        ("dns", "{resolver}", "53", "shop.example"),
        "the catch-all's address, not the stand-in's",
        Dns("shop.example", "{catch_all}"),
        "open",
    ),
    Case(
        "simulate-http",
        "with simulation: a page of an unknown name",
        ("http", "{catch_all}", "80", get("{token}.test")),
        "the catch-all's answer, on record",
        Http("{token}.test/{token}", stand_in="catch-all"),
        "open",
    ),
    Case(
        "simulate-https",
        "with simulation: the same by TLS",
        ("tls", "{catch_all}", "443", "{token}.test", get("{token}.test")),
        "the catch-all's answer, on record",
        Both((Tls("{token}.test", "{catch_all}"), Http("https://{token}.test/{token}", stand_in="catch-all"))),
        "open",
    ),
    Case(
        "simulate-post",
        "with simulation: data is sent out",
        (
            "http",
            "{catch_all}",
            "80",
            "POST /up/{token} HTTP/1.1|Host: {token}.test|Content-Length: 6|Connection: close||secret",
        ),
        "taken, on record as an attempt",
        Both((Http("/up/{token}", stand_in="catch-all"), Attempt("send", "{token}"))),
        "open",
    ),
    Case(
        "simulate-quic",
        "with simulation: QUIC to the catch-all",
        ("udp", "{catch_all}", "443", "{token}"),
        "refused",
        Refused("udp", "{catch_all}", "443", "udp"),
        "open",
    ),
    Case(
        "metadata-stand-in",
        "with a metadata stand-in: its credentials",
        ("http", "169.254.169.254", "80", get("169.254.169.254", "/latest/meta-data/?{token}")),
        "the stand-in's answer, on record",
        Http("/latest/meta-data/?{token}", stand_in="cloud"),
        "open",
    ),
    _tcp(
        "metadata-beside",
        "with a metadata stand-in: an address beside it",
        "169.254.169.253",
        "forbidden",
        "80",
        "open",
    ),
    _udp("metadata-ntp", "with a metadata stand-in: its UDP", "169.254.169.254", port="123", where="open"),
)
