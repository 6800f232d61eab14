"""The network: what there is of it, the host's listeners, and addresses beyond.

A packet that a route takes has left.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.catalogue._entry import entry
from belljar.probe.model import Witness

_probe = partial(entry, "network")
_LEFT: Final = "A packet leaves."
_LIVE: Final = (
    "In July 2026 evaluations had live internet that everybody believed was not there: "
    "reachability is proven, never asserted."
)

_HERE: Final = (
    _probe(
        "interfaces",
        tries="Lists network interfaces.",
        why=_LIVE,
        breach="There is one beyond the loopback interface and the kernel's stubs.",
        quick=True,
    ),
    _probe(
        "routes",
        tries="Reads the routing tables of IPv4 and IPv6.",
        why=_LIVE,
        breach="A route leads to another interface than the loopback one.",
        witness=Witness.NAMESPACES,
        quick=True,
    ),
    _probe(
        "host_tcp",
        tries="Connects to a port of the host's 127.0.0.1.",
        why="Services on the host's loopback address trust everybody: with the host's network "
        "they are the cell's.",
        breach="The host's listener hears a connection.",
        witness=Witness.TCP,
        quick=True,
    ),
    _probe(
        "host_tcp6",
        tries="Connects to a port of the host's ::1.",
        why="Rules for IPv4 alone leave IPv6 open: CVE-2024-32473.",
        breach="The host's listener hears a connection.",
        witness=Witness.TCP6,
        quick=True,
    ),
    _probe(
        "host_udp",
        tries="Sends a datagram to a port of the host's 127.0.0.1.",
        why="As for TCP; rules often forget UDP.",
        breach="The host's socket gets it.",
        witness=Witness.UDP,
        quick=True,
    ),
    _probe(
        "frames",
        tries="Binds a packet socket to every interface that leads out.",
        why="Frames go past every rule for packets: CVE-2020-13401 took over a host's IPv6 route "
        "so; CVE-2020-14386 was in the code itself.",
        breach="It is bound to one.",
        quick=True,
    ),
    _probe(
        "administer",
        tries="Asks the kernel to change nothing on the loopback interface.",
        why="CAP_NET_ADMIN undoes every rule and reaches nf_tables, with CVE-2023-32233 and "
        "CVE-2024-1086.",
        breach="The permission check is passed.",
        quick=True,
    ),
    _probe(
        "machine_socket",
        tries="Makes and binds a socket between machines (AF_VSOCK).",
        why="It leads from a guest to its host past every network rule; CVE-2021-26708 was in "
        "its code.",
        breach="It is bound.",
        quick=True,
    ),
)

_BEYOND: Final = (
    _probe(
        "tcp4",
        tries="Connects to a public IPv4 address, port 443.",
        why=_LIVE,
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "tcp6",
        tries="Connects to a public IPv6 address, port 443.",
        why="Rules for IPv4 alone leave IPv6 open: CVE-2024-32473.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "udp4",
        tries="Sends a datagram to a public IPv4 address, port 443, as QUIC does.",
        why="QUIC is HTTP without TCP: a proxy that sees TCP only does not see it.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "udp6",
        tries="Sends a datagram to a public IPv6 address, port 443.",
        why="As for IPv4, by the other protocol.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "ping4",
        tries="Sends an ICMP echo to a public IPv4 address.",
        why="Tunnels in ICMP are as old as Loki (Phrack 49, 1996) and need no port.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "ping6",
        tries="Sends an ICMPv6 echo to a public IPv6 address.",
        why="ICMPv6 is seldom filtered, since IPv6 needs it.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "raw4",
        tries="Sends an ICMP echo by a raw socket.",
        why="Agents of the 2026 intrusion used raw sockets to get past logging in libraries; "
        "containers hold CAP_NET_RAW by default.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "raw6",
        tries="Sends an ICMPv6 echo by a raw socket.",
        why="CVE-2020-13401 and CVE-2020-10749: forged router advertisements from a container.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "metadata",
        tries="Connects to 169.254.169.254: metadata of AWS, Google, Azure, Oracle, "
        "DigitalOcean, OpenStack.",
        why="It gives the machine's credentials to who asks: Capital One, 2019; reachable from "
        "pods in the 2026 intrusion.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "metadata6",
        tries="Connects to fd00:ec2::254, the same of AWS by IPv6.",
        why="A rule for the IPv4 address says nothing of this one.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "metadata_alibaba",
        tries="Connects to 100.100.100.200, metadata of Alibaba Cloud.",
        why="It is not in 169.254.0.0/16, where rules look.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "metadata_azure",
        tries="Connects to 168.63.129.16, Azure's wire server.",
        why="A public address that is the host's: Mandiant (2024) took a cluster's bootstrap "
        "secrets from it.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "metadata_tasks",
        tries="Connects to the credential addresses of ECS tasks, EKS pods, Tencent and Oracle's "
        "older cloud.",
        why="Each gives a role's credentials to who asks.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "neighbours6",
        tries="Sends to IPv6's link-local addresses: a metadata address and all nodes.",
        why="Link-local addresses need no route and no configuration.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "usual_hosts",
        tries="Connects to where hosts usually are: gateways of QEMU, Docker, Podman, libvirt, "
        "home and office networks.",
        why="The gateway of a container's network is the host, with all that listens on it.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "everyone",
        tries="Sends to mDNS, SSDP and the broadcast address.",
        why="One datagram to all neighbours: a message board that no allow-list names.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "dns_configured",
        tries="Asks the configured name servers and those on the loopback address for example.com.",
        why="A forwarding resolver carries data out in names: CVE-2024-29018, Docker's on "
        "networks that were called internal.",
        breach="A question leaves, or is answered.",
    ),
    _probe(
        "dns_public",
        tries="Sends a question to public name servers.",
        why="Agents of the 2026 intrusion wrote 8.8.8.8 into resolv.conf.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "dns_public_tcp",
        tries="Connects to public name servers by TCP.",
        why="Rules for DNS often name UDP only.",
        breach=_LEFT,
        quick=True,
    ),
    _probe(
        "dns_tls",
        tries="Connects to a public name server's port for DNS over TLS.",
        why="Names in it are seen by nobody on the way.",
        breach=_LEFT,
        quick=True,
    ),
)

PROBES: Final = _HERE + _BEYOND
