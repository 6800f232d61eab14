"""All egress cases; the site's page of them (`reference-egress.md`) is made from here."""

from __future__ import annotations

from typing import Final

from tests.security.egress import cases_dns, cases_packets, cases_places, cases_web
from tests.security.egress.case import Case

GROUPS: Final[tuple[tuple[str, str, tuple[Case, ...]], ...]] = (
    (
        "Names: the resolver",
        """A name is the usual way out, and a query for one is a way to carry data even where nothing answers. So: names beside, above and below those of the policy;
every kind of record that tunnels use; messages that parsers stumble over; other resolvers, by other ports and protocols (DoT, DoH, DoQ), by broadcast and by
multicast.""",
        cases_dns.RESOLVER,
    ),
    (
        "Names: HTTP, TLS, mail",
        """A request names its target up to four times: by address, in the ClientHello, in Host or `:authority`, in the request's own line. Proxies that believe one of
them and act on another can be led out (domain fronting, absolute targets, CONNECT, smuggled requests). Here all must agree with the policy and with each other.""",
        cases_web.WEB,
    ),
    (
        "What a cell edits of its own",
        """Its root owns `/etc/hosts`, `/etc/resolv.conf` and the environment. None of them is a wall: whatever a name is made to mean inside, the packet that follows is
judged outside.""",
        cases_web.OWN_FILES,
    ),
    (
        "Addresses and ports",
        """No name at all: straight to an address, by every transport that needs no right of its own, and to every port that is nobody's,
the gateway's own among them.""",
        cases_packets.ADDRESSES,
    ),
    (
        "Sockets, frames and devices",
        """Below TCP and UDP: raw and packet sockets, other protocols, fragments, source routes, other senders, and changes of the device itself. A workload is given none
of the sockets in the tiers `container` and `gvisor`; what it is given in one tier or another is dropped by the rules. What leaves no trace is shown by frames
that the host forges in its place.""",
        cases_packets.RAW,
    ),
    (
        "Addresses that no policy can allow",
        """Clouds give their keys away at such addresses, and networks that trust whoever is inside lie behind them. They are refused before anything that a policy allows
is looked at.""",
        cases_places.NEVER,
    ),
    (
        "The host",
        """The host listens, at every address that it has, at a port of each row's own. That a row passes means that the packet was refused *and* that none of these
listeners heard it.""",
        cases_places.HOST,
    ),
    (
        "Other cells, other ranges",
        """What stands beside: a target cell beyond its named port, the agent's cell as a target sees it, and everything of the range next door, which is open at the same
time.""",
        cases_places.NEIGHBOURS,
    ),
    (
        "A range with a sink, simulation and a metadata service",
        """The settings that let more be asked for must not let more out: what is answered is answered by the range itself, and what is never allowed stays refused.""",
        cases_places.OPEN,
    ),
)
CASES: Final = tuple(case for _, _, cases in GROUPS for case in cases)
LISTENED: Final = tuple(case for case in CASES if "{ear}" in case.step)
"""Those that go to a listener of the host's: each has a port of its own there."""
FIRST_PORT: Final = 41_000


def token(case: Case) -> str:
    """What stands in everything that a case sends."""
    return f"c{CASES.index(case):03}x"


def port(case: Case) -> int:
    """Its own."""
    return FIRST_PORT + CASES.index(case)


def rendered() -> str:
    """The page of all cases."""
    parts = [
        (
            "# Ways out of a range, one by one\n\n[Ways out that were tried](egress.md) says how these "
            "rows are tested and what the words mean.\n"
        )
    ]
    for title, prose, cases in GROUPS:
        rows = [
            f"| `{case.name}` | {case.tries} | {case.expects} | {looks(case)} |" for case in cases
        ]
        parts.append(
            f"## {title}\n\n{prose}\n\n| case | tried | expected | where the host looks"
            " |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
        )
    return "\n".join(parts)


_PLACES: Final = {
    "Refused": "flow event, packet record",
    "RefusedEach": "flow events, packet record",
    "Dropped": "flow event, packet record",
    "NeverSent": "packet record",
    "Reached": "packet record",
    "Forwarded": "flow event",
    "Dns": "DNS event",
    "DnsBelow": "DNS events",
    "Http": "HTTP event",
    "Tls": "TLS event",
    "Sunk": "stream event",
    "Attempt": "attempt event",
    "Counted": "counter",
    "Word": "(the prober's word)",
}


def looks(case: Case) -> str:
    """Where the evidence of a case is."""
    return ", ".join(dict.fromkeys(_places(case.evidence)))


def _places(evidence: object) -> list[str]:
    inner = getattr(evidence, "parts", None) or getattr(evidence, "ways", None)
    if inner is None:
        return _PLACES[type(evidence).__name__].split(", ")
    return [place for part in inner for place in _places(part)]
