"""All egress cases, and the page that tells of them: `python -m tests.security.egress.table` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.security.egress import names, packets
from tests.security.egress.case import Case

GROUPS: Final[tuple[tuple[str, tuple[Case, ...]], ...]] = (
    ("Names: the resolver", names.RESOLVER),
    ("Names: HTTP, TLS, mail", names.WEB),
    ("What a cell edits of its own", names.OWN_FILES),
    ("Addresses and ports", packets.ADDRESSES),
    ("Sockets, frames and devices", packets.RAW),
    ("Addresses that no policy can allow", packets.NEVER),
    ("The host", packets.HOST),
    ("Other cells, other ranges", packets.NEIGHBOURS),
    ("A range with a sink, simulation and a metadata service", packets.OPEN),
)
CASES: Final = tuple(case for _, cases in GROUPS for case in cases)
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
