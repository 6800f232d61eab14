"""All egress cases, and the page that tells of them: `python -m tests.security.egress.table` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.security.egress import cases_dns, cases_packets, cases_places, cases_web
from tests.security.egress.case import Case

GROUPS: Final[tuple[tuple[str, tuple[Case, ...]], ...]] = (
    ("Names: the resolver", cases_dns.RESOLVER),
    ("Names: HTTP, TLS, mail", cases_web.WEB),
    ("What a cell edits of its own", cases_web.OWN_FILES),
    ("Addresses and ports", cases_packets.ADDRESSES),
    ("Sockets, frames and devices", cases_packets.RAW),
    ("Addresses that no policy can allow", cases_places.NEVER),
    ("The host", cases_places.HOST),
    ("Other cells, other ranges", cases_places.NEIGHBOURS),
    ("A range with a sink, simulation and a metadata service", cases_places.OPEN),
)
CASES: Final = tuple(case for _, cases in GROUPS for case in cases)
LISTENED: Final = tuple(case for case in CASES if "{ear}" in case.step)
"""Those that go to a listener of the host's: each has a port of its own there."""
FIRST_PORT: Final = 41_000
PAGE: Final = Path(__file__).parents[3] / "docs" / "egress.md"
BEGIN, END = "<!-- cases -->\n", "<!-- end -->\n"


def token(case: Case) -> str:
    """What stands in everything that a case sends."""
    return f"c{CASES.index(case):03}x"


def port(case: Case) -> int:
    """Its own."""
    return FIRST_PORT + CASES.index(case)


def rendered() -> str:
    """The tables of the page."""
    parts = []
    for title, cases in GROUPS:
        rows = [f"| `{case.name}` | {case.tries} | {case.expects} | {looks(case)} |" for case in cases]
        parts.append(
            f"## {title}\n\n| case | tried | expected | where the host looks |\n|---|---|---|---|\n"
            + "\n".join(rows)
            + "\n"
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


if __name__ == "__main__":
    page = PAGE.read_text()
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(before + BEGIN + "\n" + rendered() + "\n" + END + after)
