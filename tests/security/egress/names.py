"""The cases of names: DNS, TLS, HTTP, and what a cell can edit of its own."""

from __future__ import annotations

from typing import Final

from tests.security.egress.case import Case, get
from tests.security.egress.evidence import (
    Attempt,
    Both,
    Counted,
    Dns,
    DnsBelow,
    Dropped,
    Either,
    Http,
    NeverSent,
    Reached,
    Refused,
    Tls,
    Word,
)

NX: Final = "NXDOMAIN, on record"
_OTHER: Final = "the name has another address"
_UNKNOWN: Final = "the policy does not have this name"
_TYPES: Final = {"A": 1, "MX": 15, "TXT": 16, "AAAA": 28, "NULL": 10, "SRV": 33, "CNAME": 5, "PTR": 12, "HTTPS": 65, "ANY": 255, "AXFR": 252, "NS": 2}


def _dns(name: str, asked: str, answer: str, tries: str, kind: str = "A", over: str = "udp", **told: float) -> Case:
    return Case(
        name,
        tries,
        ("dns", "{resolver}", "53", asked, str(_TYPES[kind]), over),
        f"{answer.strip('{}')}, on record",
        Dns(asked, answer, kind, over, **told),  # type: ignore[arg-type]
    )


RESOLVER: Final = (
    _dns("name-exact", "shop.example", "{shop}", "a name of the policy's"),
    _dns("name-case", "ShOp.eXaMpLe", "{shop}", "the same in mixed case"),
    Case("name-libc", "a name of the policy's with a dot at its end, as programs ask", ("resolve", "shop.example."), "its address", Dns("shop.example", "{shop}")),
    _dns("name-wildcard", "{token}.shop.example", "{wild}", "a name that a wildcard stands for"),
    _dns("name-two-labels", "a.{token}.shop.example", "NXDOMAIN", "two labels under a wildcard of one"),
    _dns("name-exact-wins", "pay.shop.example", "{pay}", "an exact name beside the wildcard"),
    _dns("name-parent", "example", "NXDOMAIN", "the policy's parent domain"),
    _dns("name-prefix", "xshop.example", "NXDOMAIN", "a name that ends as a name of the policy's does"),
    _dns("name-suffix", "shop.example.{token}.test", "NXDOMAIN", "a name of the policy's in front of another domain"),
    _dns("name-unknown", "{token}.test", "NXDOMAIN", "a name that nobody has"),
    Case("name-unknown-libc", "the same, as programs ask", ("resolve", "{token}.test"), NX, Dns("{token}.test", "NXDOMAIN")),
    Case("name-idn-bytes", "a name with bytes beyond ASCII", ("dns", "{resolver}", "53", "{token}sh\xc3\xb6p.example"), NX, Dns("{token}shöp.example", "NXDOMAIN")),
    _dns("name-idn", "xn--shp-sna.example", "NXDOMAIN", "a name that looks like the policy's (shöp, as its A-label)"),
    _dns("name-space", "shop.example {token}", "NXDOMAIN", "a name with a space in it"),
    _dns("name-aaaa", "{token}aaaa.shop.example", "NODATA", "the IPv6 address of a name that exists", "AAAA"),
    _dns("name-https", "{token}h.shop.example", "NODATA", "its HTTPS record (keys for an encrypted ClientHello)", "HTTPS"),
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
    Case("dns-chaos", "the resolver's version (class CHAOS)", ("dns", "{resolver}", "53", "version.bind", "16", "udp", "3"), "REFUSED", Dns("version.bind", "REFUSED", "TXT")),
    Case("dns-update", "a dynamic update", ("dns_odd", "{resolver}", "update", "{token}.test"), "NOTIMP, on record", Dns("", "NOTIMP", "UPDATE")),
    Case("dns-no-question", "a query without a question", ("dns_odd", "{resolver}", "none", ""), "FORMERR, on record", Dns("", "FORMERR", "", times=1)),
    Case("dns-pointer", "a name that points to itself", ("dns_odd", "{resolver}", "pointer", ""), "FORMERR, on record", Both((Word(("FORMERR",)), Dns("", "FORMERR", "", times=2)))),
    Case("dns-subnet", "an option with an address for an upstream (RFC 7871)", ("dns_odd", "{resolver}", "subnet", "{token}.test"), NX, Dns("{token}.test", "NXDOMAIN")),
    _dns("dns-labels", "{long}", "NXDOMAIN", "180 bytes of data in labels of 60", longest_label=60, entropy=3.5),
    Case("dns-many", "data in 40 names, one after the other", ("many", "{resolver}", "{token}.out.test", "40"), "each NXDOMAIN, each on record", DnsBelow("{token}.out.test", "NXDOMAIN", 40)),
    Case("dns-rebinding", "one name 20 times: does its address change", ("again", "{resolver}", "{token}.shop.example", "20"), "always the same", Dns("{token}.shop.example", "{wild}", times=20)),
    _dns("dns-rebinding-name", "127.0.0.1.{token}.nip.io", "NXDOMAIN", "a public name that leads to a private address"),
    Case("dns-elsewhere-udp", "the resolver, at a stand-in's address", ("dns", "{shop}", "53", "{token}.test"), "refused", Refused("udp", "{shop}", "53", "udp")),
    Case("dns-elsewhere-tcp", "the same over TCP", ("dns", "{shop}", "53", "{token}.test", "1", "tcp"), "RST", Refused("port", "{shop}", "53")),
    Case("dns-public-udp", "a public resolver", ("dns", "203.0.113.53", "53", "{token}.test"), "refused", Refused("udp", "203.0.113.53", "53", "udp")),
    Case("dns-public-tcp", "the same over TCP", ("dns", "203.0.113.53", "53", "{token}.test", "1", "tcp"), "RST", Refused("address", "203.0.113.53", "53")),
    Case("dot-own", "DNS over TLS at the resolver", ("tls", "{resolver}", "853", "-"), "RST", Refused("port", "{resolver}", "853")),
    Case("dot-public", "DNS over TLS at a public address", ("tls", "203.0.113.53", "853", "dns.test"), "RST", Refused("address", "203.0.113.53", "853")),
    Case("doq", "DNS over QUIC at the resolver", ("udp", "{resolver}", "853", "{token}"), "refused", Refused("udp", "{resolver}", "853", "udp")),
    Case("doh-own", "DNS over HTTPS at the resolver", ("tls", "{resolver}", "443", "shop.example"), "RST", Refused("port", "{resolver}", "443")),
    Case(
        "doh-stand-in",
        "DNS over HTTPS at a stand-in",
        ("tls", "{shop}", "443", "shop.example", get("shop.example", "/dns-query?dns=AAABAAAB{token}")),
        "the stand-in's own answer, on record",
        Http("/dns-query?dns=AAABAAAB{token}", stand_in="shop"),
    ),
    Case("mdns", "multicast DNS", ("udp", "224.0.0.251", "5353", "{token}"), "dropped", Dropped("multicast", "224.0.0.251", "5353")),
    Case("llmnr", "LLMNR", ("udp", "224.0.0.252", "5355", "{token}"), "dropped", Dropped("multicast", "224.0.0.252", "5355")),
    Case("ssdp", "SSDP", ("udp", "239.255.255.250", "1900", "{token}"), "dropped", Dropped("multicast", "239.255.255.250", "1900")),
    Case("netbios", "NetBIOS, by broadcast", ("udp", "255.255.255.255", "137", "{token}"), "dropped", Dropped("broadcast", "255.255.255.255", "137")),
    Case("dhcp", "DHCP, by broadcast", ("udp", "255.255.255.255", "67", "{token}", "4", "68"), "dropped", Dropped("broadcast", "255.255.255.255", "67")),
    Case("dhcp-own", "DHCP, of the resolver's address", ("udp", "{resolver}", "67", "{token}"), "refused", Refused("udp", "{resolver}", "67", "udp")),
)

WEB: Final = (
    Case("http", "a stand-in by name", ("http", "{shop}", "80", get("shop.example")), "answered", Both((Http("/{token}", stand_in="shop"), Reached("{shop}", "80")))),
    Case("http-case", "its name in mixed case, with a dot at the end and the port", ("http", "{shop}", "80", get("ShOp.Example.:80")), "answered", Http("/{token}", stand_in="shop")),
    Case("http-by-address", "a stand-in by its address", ("http", "{shop}", "80", get("{shop}")), "refused", Http("/{token}", "Host is an address")),
    Case("http-other-host", "Host of another stand-in", ("http", "{shop}", "80", get("pay.shop.example")), "refused", Http("/{token}", _OTHER)),
    Case("http-unknown-host", "Host that nobody has", ("http", "{shop}", "80", get("{token}.test")), "refused", Http("/{token}", _UNKNOWN)),
    Case("http-private-host", "Host of a private address (rebinding)", ("http", "{shop}", "80", get("127.0.0.1")), "refused", Http("/{token}", "Host is an address")),
    Case("http-two-labels", "Host with two labels under the wildcard", ("http", "{wild}", "80", get("a.b.shop.example")), "refused", Http("/{token}", _UNKNOWN)),
    Case("http-other-port", "Host with another port", ("http", "{shop}", "80", get("shop.example:8080")), "refused", Http("/{token}", "the port in Host is not the one that was dialled")),
    Case("http-userinfo", "Host with a user and another host behind", ("http", "{shop}", "80", get("shop.example@{token}.test")), "refused", Http("/{token}", "Host is no host name")),
    Case("http-no-host", "no Host (HTTP/1.0)", ("http", "{wild}", "80", "GET /{token} HTTP/1.0||"), "refused", Http("/{token}", "no Host")),
    Case("http-absolute", "an absolute target of a name outside", ("http", "{shop}", "80", get("shop.example", "http://{token}.test/{token}")), "refused", Http("/{token}", "Host and target differ")),
    Case("http-absolute-both", "the same, in Host too", ("http", "{shop}", "80", get("{token}.test", "http://{token}.test/{token}")), "refused", Http("/{token}", _UNKNOWN)),
    Case("http-absolute-own", "an absolute target of the stand-in's own name", ("http", "{shop}", "80", get("shop.example", "http://shop.example/{token}")), "answered", Http("/{token}", stand_in="shop")),
    Case("http-absolute-scheme", "an absolute target of another scheme", ("http", "{shop}", "80", get("shop.example", "https://shop.example/{token}")), "refused", Http("/{token}", "the target's scheme is another")),
    Case("connect", "CONNECT through the gateway", ("http", "{shop}", "80", "CONNECT {token}.test:443 HTTP/1.1|Host: {token}.test:443||"), "refused", Http("{token}.test:443", "CONNECT")),
    Case("connect-own", "CONNECT to the gateway's own other service", ("http", "{shop}", "80", "CONNECT {resolver}:53 HTTP/1.1|Host: {resolver}:53|X: {token}||"), "refused", Http("{resolver}:53", "CONNECT")),
    Case("connect-tls", "CONNECT within TLS", ("tls", "{shop}", "443", "shop.example", "CONNECT {token}.test:22 HTTP/1.1|Host: {token}.test:22||"), "refused", Http("{token}.test:22", "CONNECT")),
    Case("http-smuggled", "a second request hidden in the first one's framing", ("http", "{shop}", "80", "POST /{token} HTTP/1.1|Host: shop.example|Content-Length: 6|Transfer-Encoding: chunked||0||GET /hidden{token} HTTP/1.1|Host: {token}.test||"), "refused, nothing of it seen as a request", Both((Word(("HTTP/1.1 400", "closed", "ECONNRESET")), Http("http://{shop}:80", "both Content-Length and Transfer-Encoding")))),
    Case("http-h2c", "an upgrade to HTTP/2 without TLS", ("http", "{pay}", "80", "GET /{token} HTTP/1.1|Host: pay.shop.example|Connection: Upgrade, HTTP2-Settings|Upgrade: h2c|HTTP2-Settings: AAMAAABkAAQAAP__||"), "refused", Http("http://{pay}:80", "an upgrade to HTTP/2 without TLS")),
    Case("websocket", "a WebSocket to a name outside", ("http", "{shop}", "80", "GET /{token} HTTP/1.1|Host: {token}.test|Connection: Upgrade|Upgrade: websocket|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||"), "refused", Http("/{token}", _UNKNOWN)),
    Case("https", "a stand-in by name", ("tls", "{shop}", "443", "shop.example", get("shop.example")), "answered", Both((Tls("shop.example", "{shop}"), Http("https://shop.example/{token}", stand_in="shop")))),
    Case("https-wildcard", "a name of the wildcard's", ("tls", "{wild}", "443", "{token}.shop.example", get("{token}.shop.example")), "answered", Both((Tls("{token}.shop.example", "{wild}"), Http("/{token}", stand_in="shop")))),
    Case("https-no-name", "HTTPS by address without a name", ("tls", "{pay}", "443", "-"), "an alert, on record", Tls("", "{pay}", "no SNI")),
    Case("https-unknown", "a ClientHello for a name outside", ("tls", "{shop}", "443", "{token}.test"), "an alert, on record", Tls("{token}.test", "{shop}", _UNKNOWN)),
    Case("https-elsewhere", "a ClientHello for a name with another address", ("tls", "{pay}", "443", "shop.example"), "an alert, on record", Tls("shop.example", "{pay}", _OTHER)),
    Case("https-two-labels", "a ClientHello with two labels under the wildcard", ("tls", "{wild}", "443", "a.{token}.shop.example"), "an alert, on record", Tls("a.{token}.shop.example", "{wild}", _UNKNOWN)),
    Case("https-fronting", "SNI of a stand-in, Host outside (domain fronting)", ("tls", "{shop}", "443", "shop.example", get("{token}.test")), "refused", Http("/{token}", "SNI and Host differ")),
    Case("https-fronting-inside", "SNI of one stand-in, Host of another", ("tls", "{shop}", "443", "shop.example", get("pay.shop.example")), "refused", Http("/{token}", "SNI and Host differ")),
    Case("https-absolute", "an absolute target outside, within TLS", ("tls", "{shop}", "443", "shop.example", get("shop.example", "https://{token}.test/{token}")), "refused", Http("/{token}", "Host and target differ")),
    Case("h2-fronting", "HTTP/2 whose :authority is not the SNI", ("run", "curl", "-sk", "-m", "20", "--http2", "--resolve", "shop.example:443:{shop}", "-H", "Host: {token}.test", "https://shop.example/{token}"), "refused", Http("/{token}", "SNI and Host differ", version="2")),
    Case("https-plain", "HTTP without TLS at the port of TLS", ("http", "{wild}", "443", get("{token}.shop.example")), "closed, on record", Tls("", "{wild}", "HTTP_REQUEST")),
    Case("mail", "a mail to somebody outside", ("mail", "{mail}", "25", "model@shop.example", "{token}@outside.test", "{token}"), "accepted, recorded, never sent", Attempt("mail", "{token}@outside.test")),
)

OWN_FILES: Final = (
    Case("hosts-public", "/etc/hosts gives a name a public address", ("with_hosts", "203.0.113.80 {token}.test", "resolve_and_connect", "{token}.test", "{port}"), "RST", Refused("address", "203.0.113.80"), alone=True),
    Case("hosts-lan", "/etc/hosts gives a stand-in's name an address of the host's", ("with_hosts", "{lan} shop.example", "resolve_and_connect", "shop.example", "{ear}"), "RST", Refused("forbidden", "{lan}", "{ear}"), alone=True),
    Case("hosts-stand-in", "/etc/hosts gives a name outside a stand-in's address", ("with_hosts", "{shop} {token}.test", "run", "curl", "-s", "-m", "20", "http://{token}.test/{token}"), "refused: the name isn't the policy's", Http("/{token}", _UNKNOWN), alone=True),
    Case("resolver-public", "/etc/resolv.conf names a public resolver", ("with_resolver", "203.0.113.54", "resolve", "{token}.test"), "refused", Refused("udp", "203.0.113.54", "53", "udp"), alone=True),
    Case("resolver-lan", "/etc/resolv.conf names the host's network", ("with_resolver", "{lan}", "resolve", "{token}.test"), "refused", Refused("forbidden", "{lan}", "53", "udp"), alone=True),
    Case("resolver-own", "a resolver of one's own says where a name is", ("with_own_resolver", "127.0.0.1", "203.0.113.81", "resolve_and_connect", "{token}.test", "{port}"), "RST", Refused("address", "203.0.113.81"), alone=True),
    Case("resolver-own-lan", "the same with an address of the host's", ("with_own_resolver", "127.0.0.2", "{lan}", "resolve_and_connect", "shop.example", "{port}"), "RST", Refused("forbidden", "{lan}"), alone=True),
    Case("proxy-http", "http_proxy is a stand-in", ("run", "http_proxy=http://shop.example:80", "curl", "-s", "-m", "20", "http://{token}.test/{token}"), "refused", Http("http://{token}.test/{token}", _UNKNOWN)),
    Case("proxy-https", "https_proxy is a stand-in", ("run", "https_proxy=http://shop.example:80", "curl", "-s", "-m", "20", "https://{token}.test/"), "refused", Http("{token}.test:443", "CONNECT")),
    Case("proxy-gateway", "the proxy is the gateway's address, at a proxy's port", ("run", "http_proxy=http://{resolver}:3128", "curl", "-s", "-m", "20", "http://{token}.test/"), "RST", Refused("port", "{resolver}", "3128")),
    Case("proxy-socks", "a SOCKS proxy outside, which resolves names itself", ("run", "ALL_PROXY=socks5h://203.0.113.82:1080", "curl", "-s", "-m", "20", "http://{token}.test/"), "RST", Refused("address", "203.0.113.82", "1080")),
    Case("proxy-ignored", "no proxy at all: straight to an address", ("run", "NO_PROXY=*", "curl", "-s", "-m", "20", "http://203.0.113.83:{port}/"), "RST", Refused("address", "203.0.113.83")),
    Case("ipv6-name", "a name in the cell's own hosts file with an IPv6 address", ("with_hosts", "2001:db8::80 {token}.test", "resolve_and_connect", "{token}.test", "{port}"), "no frame leaves, or it is dropped and counted", Either((NeverSent("ipv6"), Counted("ipv6"))), alone=True),
)
