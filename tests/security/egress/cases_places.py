"""The cases of places: addresses that no policy can allow, the host, other cells and ranges; and a
range that lets more be asked for."""

from __future__ import annotations

from typing import Final

from tests.security.egress.case import Case, get, tcp, udp
from tests.security.egress.evidence import (
    Attempt,
    Both,
    Dns,
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

_ANY: Final = "0.0.0.0"  # noqa: S104 - nobody binds
_RST: Final = "RST, on record"
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
    *(tcp(name, f"{what}, by TCP", address, "forbidden", "80") for name, address, what in _NEVER),
    *(
        udp(f"{name}-udp", f"{what}, by UDP", address, "forbidden", "53")
        for name, address, what in _NEVER
    ),
    tcp(
        "metadata-kubelet",
        "a kubelet's port at the metadata address",
        "169.254.169.254",
        "forbidden",
        "10250",
    ),
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
        ("tcp", _ANY, "{ear}", "{token}"),
        "no frame leaves",
        NeverSent("to", _ANY),
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
    tcp(
        "host-lan",
        "an address of the host's private network, where something listens",
        "{lan}",
        "forbidden",
        "{ear}",
    ),
    tcp(
        "host-public",
        "a public address of the host, where something listens",
        "{lan_public}",
        "address",
        "{ear}",
    ),
    udp("host-lan-udp", "the same by UDP, private", "{lan}", "forbidden", "{ear}"),
    udp("host-public-udp", "the same by UDP, public", "{lan_public}", "udp", "{ear}"),
    tcp("host-ssh", "SSH of the host", "{lan}", "forbidden", "22"),
    tcp("host-docker", "Docker's TCP port of the host", "{lan}", "forbidden", "2375"),
)


NEIGHBOURS: Final = (
    Case(
        "target",
        "a target cell at its named port",
        ("tcp", "{db}", "5432", "{token}"),
        "answered",
        Both((Forwarded("{db}", "5432"), Reached("{db}", "5432"))),
    ),
    tcp("target-other-port", "a target cell at another port", "{db}", "neighbour"),
    tcp("target-ssh", "SSH of a target cell", "{db}", "neighbour", "22"),
    udp("target-udp", "a target cell's port by UDP", "{db}", port="5432"),
    Case(
        "target-to-agent",
        "the agent's cell from a target cell",
        ("tcp", "{own}", "{port}", "{token}"),
        _RST,
        Refused("neighbour", "{own}"),
        "db",
    ),
    Case(
        "target-to-public",
        "a public address from a target cell",
        ("tcp", "203.0.113.40", "{port}", "{token}"),
        _RST,
        Refused("address", "203.0.113.40"),
        "db",
    ),
    Case(
        "target-to-host",
        "the host from a target cell",
        ("tcp", "{lan}", "{ear}", "{token}"),
        _RST,
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
    tcp(
        "neighbour-stand-in",
        "a stand-in of the range beside, at its port",
        "{n_private}",
        "forbidden",
        "8080",
    ),
    tcp("neighbour-http", "its catch-all", "{n_catch_all}", "forbidden", "80"),
    tcp("neighbour-dns-tcp", "its resolver by TCP", "{n_resolver}", "forbidden", "53"),
    udp("neighbour-dns", "its resolver by UDP", "{n_resolver}", "forbidden", "53"),
    tcp("neighbour-cell", "its cell", "{n_own}", "forbidden"),
    udp("neighbour-cell-udp", "its cell by UDP", "{n_own}", "forbidden"),
    tcp(
        "neighbour-unused",
        "an address of the range beside that nobody has",
        "{n_unused}",
        "forbidden",
        "80",
    ),
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
    tcp(
        "sink-lan",
        "with a sink: an address of the host's network",
        "{lan}",
        "forbidden",
        "{ear}",
        "open",
    ),
    tcp("sink-private", "with a sink: a private address", "172.17.0.1", "forbidden", where="open"),
    tcp(
        "sink-neighbour",
        "with a sink: the range beside, its stand-in",
        "{n_shop}",
        "forbidden",
        "80",
        "open",
    ),
    tcp(
        "sink-neighbour-target",
        "with a sink: the range beside, its target cell",
        "{n_db}",
        "forbidden",
        "5432",
        "open",
    ),
    udp("sink-udp", "with a sink: UDP to a public address", "203.0.113.62", where="open"),
    udp(
        "sink-neighbour-dns",
        "with a sink: the resolver of the range beside",
        "{n_resolver}",
        "forbidden",
        "53",
        "open",
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
        Both(
            (
                Tls("{token}.test", "{catch_all}"),
                Http("https://{token}.test/{token}", stand_in="catch-all"),
            )
        ),
        "open",
    ),
    Case(
        "simulate-post",
        "with simulation: data is sent out",
        (
            "http",
            "{catch_all}",
            "80",
            (
                "POST /up/{token} HTTP/1.1|Host: {token}.test|Content-Length: 6|Connection:"
                " close||secret"
            ),
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
    tcp(
        "metadata-beside",
        "with a metadata stand-in: an address beside it",
        "169.254.169.253",
        "forbidden",
        "80",
        "open",
    ),
    udp(
        "metadata-ntp",
        "with a metadata stand-in: its UDP",
        "169.254.169.254",
        port="123",
        where="open",
    ),
)
