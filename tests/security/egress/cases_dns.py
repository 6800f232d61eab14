"""The cases of names: the resolver and its like."""

from __future__ import annotations

from typing import Final

from tests.security.egress.case import Case, get
from tests.security.egress.evidence import (
    Both,
    Dns,
    DnsBelow,
    Dropped,
    Http,
    Refused,
    Word,
)

NX: Final = "NXDOMAIN, on record"


_TYPES: Final = {
    "A": 1,
    "MX": 15,
    "TXT": 16,
    "AAAA": 28,
    "NULL": 10,
    "SRV": 33,
    "CNAME": 5,
    "PTR": 12,
    "HTTPS": 65,
    "ANY": 255,
    "AXFR": 252,
    "NS": 2,
}


def _dns(name: str, asked: str, answer: str, tries: str, kind: str = "A", over: str = "udp", **told: float) -> Case:
    return Case(
        name,
        tries,
        ("dns", "{resolver}", "53", asked, str(_TYPES[kind]), over),
        f"{answer.strip('{}')}, on record",
        Dns(asked, answer, kind, over, **told),  # type: ignore[arg-type]
    )


RESOLVER: Final = (
    _dns("name-exact", "mail.example", "{mail}", "a name of the policy's"),
    _dns("name-case", "ShOp.eXaMpLe", "{shop}", "the same in mixed case"),
    Case(
        "name-libc",
        "a name of the policy's with a dot at its end, as programs ask",
        ("resolve", "{token}.shop.example."),
        "its address",
        Dns("{token}.shop.example", "{wild}"),
    ),
    _dns("name-wildcard", "{token}.shop.example", "{wild}", "a name that a wildcard stands for"),
    _dns("name-two-labels", "a.{token}.shop.example", "NXDOMAIN", "two labels under a wildcard of one"),
    _dns("name-exact-wins", "pay.shop.example", "{pay}", "an exact name beside the wildcard"),
    _dns("name-parent", "example", "NXDOMAIN", "the policy's parent domain"),
    _dns("name-prefix", "xshop.example", "NXDOMAIN", "a name that ends as a name of the policy's does"),
    _dns("name-suffix", "shop.example.{token}.test", "NXDOMAIN", "a name of the policy's in front of another domain"),
    _dns("name-unknown", "{token}.test", "NXDOMAIN", "a name that nobody has"),
    Case(
        "name-unknown-libc",
        "the same, as programs ask",
        ("resolve", "{token}.test"),
        NX,
        Dns("{token}.test", "NXDOMAIN"),
    ),
    Case(
        "name-idn-bytes",
        "a name with bytes beyond ASCII",
        ("dns", "{resolver}", "53", "{token}sh\xc3\xb6p.example"),
        NX,
        Dns("{token}shöp.example", "NXDOMAIN"),
    ),
    _dns("name-idn", "xn--shp-sna.example", "NXDOMAIN", "a name that looks like the policy's (shöp, as its A-label)"),
    _dns("name-space", "shop.example {token}", "NXDOMAIN", "a name with a space in it"),
    _dns("name-aaaa", "{token}aaaa.shop.example", "NODATA", "the IPv6 address of a name that exists", "AAAA"),
    _dns(
        "name-https", "{token}h.shop.example", "NODATA", "its HTTPS record (keys for an encrypted ClientHello)", "HTTPS"
    ),
    _dns("name-metadata", "metadata.google.internal", "NXDOMAIN", "a cloud's metadata service, by name"),
    _dns("name-neighbours", "private.example", "NXDOMAIN", "a name that only the range beside has"),
    _dns("name-host", "host.docker.internal", "NXDOMAIN", "the host, by the name that Docker gives it"),
    _dns("name-wpad", "wpad.shop.example", "NXDOMAIN", "a proxy's configuration (WPAD), below the wildcard"),
    _dns("name-doh", "dns.google", "NXDOMAIN", "a public DoH server's name"),
    _dns("name-canary", "use-application-dns.net", "NXDOMAIN", "the name that tells browsers to leave DoH off"),
    _dns("ptr-own", "1.2.0.192.in-addr.arpa", "NXDOMAIN", "who has an address (PTR)", "PTR"),
    _dns("dns-tcp", "{token}.tcp.test", "NXDOMAIN", "a query over TCP", over="tcp"),
    _dns("dns-txt", "{token}.txt.test", "NXDOMAIN", "TXT, as tunnels use it", "TXT"),
    _dns("dns-null", "{token}.null.test", "NXDOMAIN", "NULL, as iodine uses it", "NULL"),
    _dns("dns-mx", "{token}.mx.test", "NXDOMAIN", "MX", "MX"),
    _dns("dns-srv", "_x._tcp.{token}.test", "NXDOMAIN", "SRV", "SRV"),
    _dns("dns-cname", "{token}.cname.test", "NXDOMAIN", "CNAME", "CNAME"),
    _dns("dns-ns", "{token}.ns.test", "NXDOMAIN", "NS of a domain outside: who is to be asked", "NS"),
    _dns("dns-axfr", "example", "REFUSED", "a transfer of the zone: all names at once", "AXFR", over="tcp"),
    Case(
        "dns-chaos",
        "the resolver's version (class CHAOS)",
        ("dns", "{resolver}", "53", "version.bind", "16", "udp", "3"),
        "REFUSED",
        Dns("version.bind", "REFUSED", "TXT"),
    ),
    Case(
        "dns-update",
        "a dynamic update",
        ("dns_odd", "{resolver}", "update", "{token}.test"),
        "NOTIMP, on record",
        Dns("", "NOTIMP", "UPDATE"),
    ),
    Case(
        "dns-no-question",
        "a query without a question",
        ("dns_odd", "{resolver}", "none", ""),
        "FORMERR, on record",
        Dns("", "FORMERR", "", times=1),
    ),
    Case(
        "dns-pointer",
        "a name that points to itself",
        ("dns_odd", "{resolver}", "pointer", ""),
        "FORMERR, on record",
        Both((Word(("FORMERR",)), Dns("", "FORMERR", "", times=2))),
    ),
    Case(
        "dns-subnet",
        "an option with an address for an upstream (RFC 7871)",
        ("dns_odd", "{resolver}", "subnet", "{token}.test"),
        NX,
        Dns("{token}.test", "NXDOMAIN"),
    ),
    _dns("dns-labels", "{long}", "NXDOMAIN", "180 bytes of data in labels of 60", longest_label=60, entropy=3.5),
    Case(
        "dns-many",
        "data in 40 names, one after the other",
        ("many", "{resolver}", "{token}.out.test", "40"),
        "each NXDOMAIN, each on record",
        DnsBelow("{token}.out.test", "NXDOMAIN", 40),
    ),
    Case(
        "dns-rebinding",
        "one name 20 times: does its address change",
        ("again", "{resolver}", "{token}.shop.example", "20"),
        "always the same",
        Dns("{token}.shop.example", "{wild}", times=20),
    ),
    _dns("dns-rebinding-name", "127.0.0.1.{token}.nip.io", "NXDOMAIN", "a public name that leads to a private address"),
    Case(
        "dns-elsewhere-udp",
        "the resolver, at a stand-in's address",
        ("dns", "{shop}", "53", "{token}.test"),
        "refused",
        Refused("udp", "{shop}", "53", "udp"),
    ),
    Case(
        "dns-elsewhere-tcp",
        "the same over TCP",
        ("dns", "{shop}", "53", "{token}.test", "1", "tcp"),
        "RST",
        Refused("port", "{shop}", "53"),
    ),
    Case(
        "dns-public-udp",
        "a public resolver",
        ("dns", "203.0.113.53", "53", "{token}.test"),
        "refused",
        Refused("udp", "203.0.113.53", "53", "udp"),
    ),
    Case(
        "dns-public-tcp",
        "the same over TCP",
        ("dns", "203.0.113.53", "53", "{token}.test", "1", "tcp"),
        "RST",
        Refused("address", "203.0.113.53", "53"),
    ),
    Case(
        "dot-own",
        "DNS over TLS at the resolver",
        ("tls", "{resolver}", "853", "-"),
        "RST",
        Refused("port", "{resolver}", "853"),
    ),
    Case(
        "dot-public",
        "DNS over TLS at a public address",
        ("tls", "203.0.113.53", "853", "dns.test"),
        "RST",
        Refused("address", "203.0.113.53", "853"),
    ),
    Case(
        "doq",
        "DNS over QUIC at the resolver",
        ("udp", "{resolver}", "853", "{token}"),
        "refused",
        Refused("udp", "{resolver}", "853", "udp"),
    ),
    Case(
        "doh-own",
        "DNS over HTTPS at the resolver",
        ("tls", "{resolver}", "443", "shop.example"),
        "RST",
        Refused("port", "{resolver}", "443"),
    ),
    Case(
        "doh-stand-in",
        "DNS over HTTPS at a stand-in",
        ("tls", "{shop}", "443", "shop.example", get("shop.example", "/dns-query?dns=AAABAAAB{token}")),
        "the stand-in's own answer, on record",
        Http("/dns-query?dns=AAABAAAB{token}", stand_in="shop"),
    ),
    Case(
        "mdns",
        "multicast DNS",
        ("udp", "224.0.0.251", "5353", "{token}"),
        "dropped",
        Dropped("multicast", "224.0.0.251", "5353"),
    ),
    Case(
        "llmnr",
        "LLMNR",
        ("udp", "224.0.0.252", "5355", "{token}"),
        "dropped",
        Dropped("multicast", "224.0.0.252", "5355"),
    ),
    Case(
        "ssdp",
        "SSDP",
        ("udp", "239.255.255.250", "1900", "{token}"),
        "dropped",
        Dropped("multicast", "239.255.255.250", "1900"),
    ),
    Case(
        "netbios",
        "NetBIOS, by broadcast",
        ("udp", "255.255.255.255", "137", "{token}"),
        "dropped",
        Dropped("broadcast", "255.255.255.255", "137"),
    ),
    Case(
        "dhcp",
        "DHCP, by broadcast",
        ("udp", "255.255.255.255", "67", "{token}", "4", "68"),
        "dropped",
        Dropped("broadcast", "255.255.255.255", "67"),
    ),
    Case(
        "dhcp-own",
        "DHCP, of the resolver's address",
        ("udp", "{resolver}", "67", "{token}"),
        "refused",
        Refused("udp", "{resolver}", "67", "udp"),
    ),
)
