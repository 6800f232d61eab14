"""The network, where a packet that a route takes has left; and the channel to the host.

A process that gets at the channel can forge what is recorded.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.model import Witness, entry

_network = partial(entry, "network")
_LEFT: Final = "A packet leaves."
_LIVE: Final = (
    "In July 2026 evaluations had live internet that everybody believed was not there: "
    "reachability is proven, never asserted."
)

_HERE: Final = (
    _network(
        "interfaces",
        tries="Lists network interfaces.",
        why=_LIVE,
        breach="There is one beyond the loopback interface and the kernel's stubs.",
    ),
    _network(
        "routes",
        tries="Reads the routing tables of IPv4 and IPv6.",
        why=_LIVE,
        breach="A route leads to another interface than the loopback one.",
        witness=Witness.NAMESPACES,
    ),
    _network(
        "host_tcp",
        tries="Connects to a port of the host's 127.0.0.1.",
        why="Services on the host's loopback address trust everybody: with the host's network "
        "they are the cell's.",
        breach="The host's listener hears a connection.",
        witness=Witness.TCP,
    ),
    _network(
        "host_tcp6",
        tries="Connects to a port of the host's ::1.",
        why="Rules for IPv4 alone leave IPv6 open: CVE-2024-32473.",
        breach="The host's listener hears a connection.",
        witness=Witness.TCP6,
    ),
    _network(
        "host_udp",
        tries="Sends a datagram to a port of the host's 127.0.0.1.",
        why="As for TCP; rules often forget UDP.",
        breach="The host's socket gets it.",
        witness=Witness.UDP,
    ),
    _network(
        "frames",
        tries="Binds a packet socket to every interface that leads out.",
        why="Frames go past every rule for packets: CVE-2020-13401 took over a host's IPv6 route "
        "so; CVE-2020-14386 was in the code itself.",
        breach="It is bound to one.",
    ),
    _network(
        "administer",
        tries="Asks the kernel to change nothing on the loopback interface.",
        why="CAP_NET_ADMIN undoes every rule and reaches nf_tables, with CVE-2023-32233 and "
        "CVE-2024-1086.",
        breach="The permission check is passed.",
    ),
    _network(
        "machine_socket",
        tries="Makes and binds a socket between machines (AF_VSOCK).",
        why="It leads from a guest to its host past every network rule; CVE-2021-26708 was in "
        "its code.",
        breach="It is bound.",
    ),
)

_BEYOND: Final = (
    _network(
        "tcp4",
        tries="Connects to a public IPv4 address, port 443.",
        why=_LIVE,
        breach=_LEFT,
    ),
    _network(
        "tcp6",
        tries="Connects to a public IPv6 address, port 443.",
        why="Rules for IPv4 alone leave IPv6 open: CVE-2024-32473.",
        breach=_LEFT,
    ),
    _network(
        "udp4",
        tries="Sends a datagram to a public IPv4 address, port 443, as QUIC does.",
        why="QUIC is HTTP without TCP: a proxy that sees TCP only does not see it.",
        breach=_LEFT,
    ),
    _network(
        "udp6",
        tries="Sends a datagram to a public IPv6 address, port 443.",
        why="As for IPv4, by the other protocol.",
        breach=_LEFT,
    ),
    _network(
        "ping4",
        tries="Sends an ICMP echo to a public IPv4 address.",
        why="Tunnels in ICMP are as old as Loki (Phrack 49, 1996) and need no port.",
        breach=_LEFT,
    ),
    _network(
        "ping6",
        tries="Sends an ICMPv6 echo to a public IPv6 address.",
        why="ICMPv6 is seldom filtered, since IPv6 needs it.",
        breach=_LEFT,
    ),
    _network(
        "raw4",
        tries="Sends an ICMP echo by a raw socket.",
        why="Agents of the 2026 intrusion used raw sockets to get past logging in libraries; "
        "containers hold CAP_NET_RAW by default.",
        breach=_LEFT,
    ),
    _network(
        "raw6",
        tries="Sends an ICMPv6 echo by a raw socket.",
        why="CVE-2020-13401 and CVE-2020-10749: forged router advertisements from a container.",
        breach=_LEFT,
    ),
    _network(
        "metadata",
        tries="Connects to 169.254.169.254: metadata of AWS, Google, Azure, Oracle, "
        "DigitalOcean, OpenStack.",
        why="It gives the machine's credentials to any client: Capital One, 2019; reachable from "
        "pods in the 2026 intrusion.",
        breach=_LEFT,
    ),
    _network(
        "metadata6",
        tries="Connects to fd00:ec2::254, the same of AWS by IPv6.",
        why="A rule for the IPv4 address says nothing of this one.",
        breach=_LEFT,
    ),
    _network(
        "metadata_alibaba",
        tries="Connects to 100.100.100.200, metadata of Alibaba Cloud.",
        why="It is not in 169.254.0.0/16, where rules look.",
        breach=_LEFT,
    ),
    _network(
        "metadata_azure",
        tries="Connects to 168.63.129.16, Azure's wire server.",
        why="A public address that is the host's: Mandiant (2024) took a cluster's bootstrap "
        "secrets from it.",
        breach=_LEFT,
    ),
    _network(
        "metadata_tasks",
        tries="Connects to the credential addresses of ECS tasks, EKS pods, Tencent and Oracle's "
        "older cloud.",
        why="Each gives a role's credentials to any client.",
        breach=_LEFT,
    ),
    _network(
        "neighbours6",
        tries="Sends to IPv6's link-local addresses: a metadata address and all nodes.",
        why="Link-local addresses need no route and no configuration.",
        breach=_LEFT,
    ),
    _network(
        "usual_hosts",
        tries="Connects to where hosts usually are: gateways of QEMU, Docker, Podman, libvirt, "
        "home and office networks.",
        why="The gateway of a container's network is the host, with all that listens on it.",
        breach=_LEFT,
    ),
    _network(
        "everyone",
        tries="Sends to mDNS, SSDP and the broadcast address.",
        why="One datagram to all neighbours: a message board that no allow-list names.",
        breach=_LEFT,
    ),
    _network(
        "dns_configured",
        tries="Asks the configured name servers and those on the loopback address for example.com.",
        why="A forwarding resolver carries data out in names: CVE-2024-29018, Docker's on "
        "networks that were called internal.",
        breach="A question leaves, or is answered.",
        quick=False,
    ),
    _network(
        "dns_public",
        tries="Sends a question to public name servers.",
        why="Agents of the 2026 intrusion wrote 8.8.8.8 into resolv.conf.",
        breach=_LEFT,
    ),
    _network(
        "dns_public_tcp",
        tries="Connects to public name servers by TCP.",
        why="Rules for DNS often name UDP only.",
        breach=_LEFT,
    ),
    _network(
        "dns_tls",
        tries="Connects to a public name server's port for DNS over TLS.",
        why="Names in it are hidden from all on the way.",
        breach=_LEFT,
    ),
)

NETWORK: Final = _HERE + _BEYOND


_channel = partial(entry, "channel")

_OTHERS_PIPES: Final = (
    "gVisor lets a process open, through /proc, the pipes of a command that runs beside it: not "
    "the channel, a socket; at a sample's end no other runs"
)

CHANNEL: Final = (
    _channel(
        "descriptors",
        tries="Looks for open descriptors beyond the first three.",
        why="CVE-2016-9962 and CVE-2024-21626: a descriptor that the runtime forgot to close led "
        "to the host.",
        breach="There is one.",
    ),
    _channel(
        "streams",
        tries="Looks what its three standard descriptors are.",
        why="A socket or a file of the host's in their place is a road that no mount table shows.",
        breach="One is neither a pipe nor a terminal nor the null device.",
    ),
    _channel(
        "trace_holder",
        tries="Attaches to process 1 and to its own parent as their tracer.",
        why="They hold the channel: their tracer forges exit codes and outputs, and so the "
        "evaluation's result (CVE-2016-9962).",
        breach="The kernel lets it trace.",
        quick=False,
    ),
    _channel(
        "read_holder",
        tries="Reads the memory of process 1 and of its own parent.",
        why="It has what is on the channel: files of the harness, the seed of the machine's "
        "randomness.",
        breach="The kernel lets it read.",
    ),
    _channel(
        "open_descriptors",
        tries="Opens the descriptors of process 1 and of its own parent for writing, through "
        "/proc.",
        why="The channel is among them, and what they say to the host besides (CVE-2016-9962).",
        breach="A pipe, a socket or a device of theirs opens.",
        expected={"gvisor": _OTHERS_PIPES},
    ),
    _channel(
        "borrow_descriptors",
        tries="Takes a descriptor of process 1 and of its own parent with pidfd_getfd.",
        why="A copy of the channel's descriptor is the channel.",
        breach="The permission check is passed.",
    ),
    _channel(
        "limit_holder",
        tries="Sets a limit of process 1 and of its own parent to what it is.",
        why="prlimit asks for the same user only: with RLIMIT_CPU or RLIMIT_FSIZE root of a "
        "container ends its agent, or cuts what it says.",
        breach="The call succeeds.",
    ),
    _channel(
        "signal_holder",
        tries="Makes process 1 the owner of a socket (F_SETOWN, F_SETOWN_EX, FIOSETOWN, "
        "SIOCSPGRP); nothing is sent.",
        why="The owner of a descriptor gets the signal that its holder chose (F_SETSIG), SIGKILL "
        "too: in gVisor that ended the cell.",
        breach="It is the owner.",
    ),
    _channel(
        "port",
        tries="Opens the machine's virtio ports and hypervisor consoles for writing.",
        why="A forged frame on the port is a forged result.",
        breach="One opens.",
    ),
)
