"""Who may have what."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.decide import (
    CATCH_ALL,
    UPSTREAM,
    Flow,
    Refusal,
    RequestHead,
    canonical_name,
    decide,
    known_to,
)
from belljar.plan.addresses import NameAddress, RangeLayout
from belljar.plan.network import PortPlan, StandInPlan
from belljar.policy.guarding import METADATA_ADDRESS

SHOP, WILD, EXACT, MAIL, CLOUD, TARGET, IDN = (f"10.9.8.{number}" for number in range(2, 9))
NAMES = {
    "shop.example": ("shop", SHOP), "*.shop.example": ("wild", WILD),
    "exact.shop.example": ("shop", EXACT), "mail.example": ("mail", MAIL),
    "cloud.example": ("cloud", CLOUD), "db.example": ("db", TARGET),
    "xn--bcher-kva.example": ("shop", IDN), METADATA_ADDRESS: ("cloud", METADATA_ADDRESS),
}  # fmt: skip
LAYOUT = RangeLayout(
    prefix="10.9.8.0/22",
    resolver="10.9.8.1",
    names=tuple(NameAddress(pattern=p, stand_in=s, address=a) for p, (s, a) in NAMES.items()),
    catch_all=None,
    cells=(),
)
SIMULATED = replace(LAYOUT, catch_all="10.9.8.99")
WEB = (PortPlan(number=80, protocol="http"), PortPlan(number=443, protocol="tls"))
STAND_INS = (
    StandInPlan(id="shop", kind="http", names=(), ports=WEB),
    StandInPlan(id="wild", kind="http", names=(), ports=WEB),
    StandInPlan(id="mail", kind="smtp", names=(), ports=(PortPlan(number=465, protocol="smtps"),)),
    StandInPlan(id="cloud", kind="metadata", names=(), ports=WEB[:1]),
    StandInPlan(id="db", kind="cell", names=(), ports=WEB[:1]),
)
labels = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,8}[a-z0-9_])?", fullmatch=True)
names = st.lists(labels, min_size=1, max_size=5).map(".".join)
ours = st.sampled_from([name for name in NAMES if not name.startswith("*")])
addresses = st.sampled_from(
    [SHOP, WILD, EXACT, MAIL, CLOUD, TARGET, IDN, METADATA_ADDRESS, "10.9.8.200", "10.9.8.99"]
)
ports = st.sampled_from([80, 443, 465, 8080])
hosts = st.one_of(ours, names, st.text(max_size=80)).flatmap(
    lambda name: st.sampled_from(
        [name, name.upper(), f"{name}.", f"{name}:80", f"{name}:443", f"x@{name}"]
    )
)


def web(host: str | bytes, address: str = SHOP, target: bytes = b"/", **more: object) -> Flow:
    raw = host if isinstance(host, bytes) else host.encode()
    request = RequestHead(method=str(more.get("method", "GET")), target=target, hosts=(raw,))
    return Flow(address=address, port=80, request=request)


def secure(sni: str | None, host: str, address: str = SHOP) -> Flow:
    request = RequestHead(method="GET", target=b"/", hosts=(host.encode(),))
    return Flow(address=address, port=443, sni=sni, hello=True, request=request)


def refused(flow: Flow, layout: RangeLayout = LAYOUT) -> str:
    verdict = decide(flow, layout, STAND_INS)
    assert not verdict.allowed
    assert verdict.reason
    return verdict.reason


@pytest.mark.parametrize(
    ("flow", "stand_in"),
    [
        (web("shop.example"), "shop"),
        (web("SHOP.Example."), "shop"),
        (web("exact.shop.example", EXACT), "shop"),
        (web("xn--bcher-kva.example", IDN), "shop"),
        (web("shop.example", target=b"http://SHOP.example:80/x"), "shop"),
        (web("shop.example", target=b"*", method="OPTIONS"), "shop"),
        (web(METADATA_ADDRESS, METADATA_ADDRESS), "cloud"),
        (web(f"{METADATA_ADDRESS}:80", METADATA_ADDRESS), "cloud"),
        (secure("SHOP.example", "shop.EXAMPLE:443"), "shop"),
        (secure("a.shop.example", "a.shop.example", WILD), "wild"),
    ],
)
def test_what_the_policy_has_is_allowed(flow: Flow, stand_in: str) -> None:
    """Case, a dot at the end, the dialled port, an absolute target that agrees and the metadata
    service's address are no differences."""
    verdict = decide(flow, LAYOUT, STAND_INS)
    assert (verdict.allowed, verdict.stand_in, verdict.reason) == (True, stand_in, "")


NO_HOST: list[str | bytes] = [
    *("0x0a.0x09", "bücher.example", "shop。example", "bu\u0308cher.example", "ｓhop.example"),
    *("ſhop.example", "shop.example\u200b", b"shop.example\0.evil.example", "shop.example.."),
    *(f"{'a' * 64}.shop.example", ".".join(["a" * 60] * 5), "user@shop.example", ""),
]
TARGETS = {
    b"http://other.example/": "Host and target differ",
    b"https://shop.example/": "the target's scheme is another",
    b"ftp://shop.example/": "the target's scheme is another",
    b"shop.example:80": "the target is no path",
    b"*": "the target is no path",
    b"http://shop.example#/x": "the target is no path",
}
REFUSED: dict[str, list[Flow]] = {
    "Host is no host name": [web(host) for host in NO_HOST],
    "Host is an address": [web(host) for host in (SHOP, "[::1]", "[::ffff:10.9.8.2]:80")],
    "the policy does not have this name": [
        web("evil.example"),
        web("a.b.shop.example", WILD),
        secure("evil.example", "evil.example"),
    ],
    "the name has another address": [
        web("shop.example", WILD), web("exact.shop.example", WILD), web("169.254.169.254"),
        web("shop.example", METADATA_ADDRESS),
        Flow(address=WILD, port=443, sni="shop.example", hello=True),
        Flow(address=MAIL, port=465, sni="shop.example", hello=True),
    ],
    "the port in Host is not the one that was dialled": [
        web(f"shop.example:{port}") for port in ("8080", "", "٨٠")
    ],
    "CONNECT": [
        web("shop.example", target=b"shop.example:443", method="CONNECT"),
        web("shop.example", method="connect"),
    ],
    "SNI and Host differ": [
        secure("shop.example", "exact.shop.example"),
        secure("exact.shop.example", "shop.example"),
    ],
    "no SNI": [secure(None, "shop.example"), Flow(address=SHOP, port=443, hello=True)],
    "SNI is no host name": [secure("", "shop.example"), secure(SHOP, SHOP)],
    "a request before a ClientHello": [
        replace(secure("shop.example", "shop.example"), hello=False)
    ],
    "no name has this address": [Flow(address="10.9.8.200", port=80)],
    "the stand-in does not have this port": [Flow(address=SHOP, port=22)],
    "the gateway does not answer for this address": [Flow(address=TARGET, port=80)],
}  # fmt: skip


@pytest.mark.promise("4.5")
def test_what_does_not_agree_is_refused() -> None:
    """Each disagreement between address, port, SNI, Host and target has its own words."""
    for reason, flows in REFUSED.items():
        assert [refused(flow) for flow in flows] == [reason] * len(flows), reason
    for target, reason in TARGETS.items():
        assert refused(web("shop.example", target=target)) == reason, target


@given(host=hosts, sni=st.none() | hosts, address=addresses, port=ports, simulate=st.booleans())
@settings(deadline=None, max_examples=400)
def test_allowed_means_one_name_with_this_address(
    host: str, sni: str | None, address: str, port: int, simulate: bool
) -> None:
    """Whatever is sent: an allowed name is the policy's, with the address that was dialled."""
    layout = SIMULATED if simulate else LAYOUT
    request = RequestHead(method="GET", target=b"/", hosts=(host.encode(),))
    verdict = decide(
        Flow(address=address, port=port, sni=sni, hello=sni is not None, request=request),
        layout,
        STAND_INS,
    )
    if not verdict.allowed:
        assert verdict.reason
        return
    said = host.lower().split(":")[0].removesuffix(".")
    assert verdict.name == said
    if port == 443:
        assert sni is not None
        assert sni.lower().removesuffix(".") == said
    exact = NAMES.get(said)
    wildcard = NAMES.get("*." + said.partition(".")[2])
    if exact or wildcard:
        assert (verdict.stand_in, address) == (exact or wildcard)
    else:
        assert simulate
        assert (verdict.stand_in, address) == (CATCH_ALL, layout.catch_all)


@given(raw=st.one_of(st.binary(max_size=300), st.text(max_size=300), names))
@settings(deadline=None)
def test_canonical_names_are_fixed_points(raw: str | bytes) -> None:
    """A canonical name is ASCII, in lower case, of bounded labels."""
    name = canonical_name(raw)
    if name is None:
        return
    assert name == name.lower()
    assert name.isascii()
    assert len(name) <= 253
    assert all(0 < len(label) <= 63 for label in name.split("."))
    assert canonical_name(name) == name
    assert canonical_name(name.upper() + ".") == name


@given(
    st.sampled_from(["GET", "HEAD", "POST", "DELETE", "get", "CONNECT", "BREW", ""])
    | st.text(max_size=10)
)
def test_something_real_gets_the_named_methods_only(method: str) -> None:
    """Exactly as the policy spells them, at its own address and name; a stand-in hears them all."""
    real = StandInPlan(
        id="shop", kind=UPSTREAM, names=(), ports=WEB, settings={"methods": ["GET", "HEAD"]}
    )
    flow = web("shop.example", method=method)
    verdict = decide(flow, LAYOUT, (real,))
    assert verdict.allowed == (method in {"GET", "HEAD"})
    assert verdict.allowed or verdict.reason in {Refusal.METHOD_NOT_TAKEN, Refusal.CONNECT}
    assert decide(flow, LAYOUT, STAND_INS).allowed == (method.upper() != "CONNECT")
    assert (
        decide(web("mail.example", method="GET"), LAYOUT, (real,)).reason
        == "the name has another address"
    )


def cells_in(*of: tuple[str, str | None]) -> tuple[StandInPlan, ...]:
    """Cells in networks, each named by its first letters; None: in every one."""
    settings = [
        (name, {} if networks is None else {"networks": networks.split()}) for name, networks in of
    ]
    return tuple(
        StandInPlan(id=name, kind="cell", names=(), ports=(), settings=held)
        for name, held in settings
    )


@pytest.mark.promise("1.5")
def test_a_cell_knows_no_name_of_one_that_it_is_kept_apart_from() -> None:
    """Nobody's without a shared network; stand-ins', cells' in every network, its own, always."""
    stand_ins = cells_in(("shop", "front"), ("mail", "front back"), ("db", "back"), ("cloud", None))

    def known(cell: str) -> set[str]:
        return {name.stand_in for name in known_to(cell, LAYOUT, stand_ins).names}

    everybody = {name.stand_in for name in LAYOUT.names}
    assert known("shop") == everybody - {"db"}
    assert known("db") == everybody - {"shop"}
    assert known("mail") == known("cloud") == known("none") == everybody
    assert known_to("shop", SIMULATED, stand_ins).catch_all == SIMULATED.catch_all
