"""The words of the containment tests.

A probe is *tried* in the cell by a program and *judged* outside. The program reads `key=value`
lines (`catalogue.toml` lists them), and writes one line an attempt: name, outcome, detail,
separated by tabs; its last line is `end`, the number of attempts, and the nonce.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from belljar.dataclass import dataclass, field, json_of


class AttemptOutcome(StrEnum):
    DENIED = "denied"
    ABSENT = "absent"
    REACHED = "reached"
    ERROR = "error"


class Verdict(StrEnum):
    """The evidence says so; the worst is last. `VOID`: evidence is missing."""

    CONTAINED = "contained"
    VOID = "void"
    BREACHED = "breached"

    @property
    def badness(self) -> int:
        """Return its place in that order."""
        return list(Verdict).index(self)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """No evidence is void."""
    return max(verdicts, key=lambda verdict: verdict.badness, default=Verdict.VOID)


class Side(StrEnum):
    HOST = "host"
    GUEST = "guest"


class Witness(StrEnum):
    """The host looks there; each is named as its parameter."""

    CANARY = "canary"
    SOCKET = "socket"
    ABSTRACT = "abstract"
    TCP = "tcp"
    TCP6 = "tcp6"
    UDP = "udp"
    PID = "pid"
    NAMESPACES = "namespaces"
    ROUTER = "router"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """`catalogue.toml` describes its fields."""

    name: str
    tries: str
    why: str
    breach: str
    witness: Witness | None = None
    quick: bool = True
    beyond: bool = False
    expected: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`outcome` and `detail` (escaped, bounded) are the program's word; `seen` decided.

    `known` says why a `reached` is expected in this tier.
    """

    name: str
    verdict: Verdict
    outcome: AttemptOutcome | None = None
    detail: str = ""
    seen: str
    seen_by: Side
    known: str = ""

    def to_json(self) -> dict[str, Any]:
        return {name: word for name, word in json_of(self).items() if word or name != "known"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """`problem` says why it is void."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    which: str
    duration_ms: float
    user: str = ""
    problem: str = ""

    def of(self, verdict: Verdict) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict is verdict)

    def to_json(self) -> dict[str, Any]:
        findings = [finding.to_json() for finding in self.findings]
        duration_ms = round(self.duration_ms, 3)
        return {**json_of(self), "duration_ms": duration_ms, "findings": findings}
