"""All egress cases; the site's page of them (`reference-egress.md`) is made from here."""

from __future__ import annotations

from typing import Final

from tests.security.egress.case import GROUPS, Case

CASES: Final = tuple(case for group in GROUPS for case in group.cases)
LISTENED: Final = tuple(case for case in CASES if "{ear}" in case.step)
"""Those that go to a listener of the host's: each has a port of its own there."""
FIRST_PORT: Final = 41_000


def token(case: Case) -> str:
    return f"c{CASES.index(case):03}x"


def port(case: Case) -> int:
    return FIRST_PORT + CASES.index(case)


def rendered() -> str:
    parts = [
        (
            "# Ways out of a range, one by one\n\n[Ways out that were tried](egress.md) says how these "
            "rows are tested and what the words mean.\n"
        )
    ]
    for group in GROUPS:
        rows = [
            f"| `{case.name}` | {case.tries} | {case.expects} | {looks(case)} |"
            for case in group.cases
        ]
        parts.append(
            f"## {group.title}\n\n{group.prose}\n\n| case | tried | expected | where the host looks"
            " |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
        )
    return "\n".join(parts)


_PLACES: Final = {
    "Refused": "flow event, packet record", "RefusedEach": "flow events, packet record",
    "Dropped": "flow event, packet record", "NeverSent": "packet record",
    "Reached": "packet record", "Forwarded": "flow event", "Dns": "DNS event",
    "DnsBelow": "DNS events", "Http": "HTTP event", "Tls": "TLS event", "Sunk": "stream event",
    "Attempt": "attempt event", "Counted": "counter", "Word": "(the prober's word)",
}  # fmt: skip


def looks(case: Case) -> str:
    return ", ".join(dict.fromkeys(_places(case.evidence)))


def _places(evidence: object) -> list[str]:
    inner = getattr(evidence, "parts", None) or getattr(evidence, "ways", None)
    if inner is None:
        return _PLACES[type(evidence).__name__].split(", ")
    return [place for part in inner for place in _places(part)]
