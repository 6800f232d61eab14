"""The words of the containment tests: what is tried, what came of it, and what that means.

Data, no behaviour.

A probe is *tried* inside the cell by a small program and *judged* outside it. The program reads
`key=value` lines from standard input, `PARAMETERS` says which, and writes one line an attempt:
name, outcome, detail, separated by tabs; its last line is `end`, the number of attempts, and the
nonce it was given.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from belljar.dataclass import dataclass, field

PARAMETERS: Final[Mapping[str, str]] = {
    "nonce": "32 hexadecimal digits; repeated in the last line",
    "token": "what an attempt writes to whatever it reaches, so that the host knows it by sight",
    "canary": "absolute path of a file on the host that everyone there may read and write",
    "socket": "absolute path of a stream socket on the host that everyone there may connect to",
    "abstract": "name, without the leading NUL, of an abstract stream socket of the host",
    "tcp": "a port of the host's 127.0.0.1 that takes connections",
    "tcp6": "a port of the host's ::1 that takes connections; 0 where the host has no IPv6",
    "udp": "a port of the host's 127.0.0.1 that takes datagrams",
    "pid": "a process of the host, with SIGUSR1 blocked; that is the only signal it may be sent",
    "interface": "the cell's one port to its range's router; not given when it has no network "
    "device",
    "interface_mac": "that port's hardware address: a device of its name that has another is not "
    "it",
}


class Outcome(StrEnum):
    """What the attempt says came of it."""

    DENIED = "denied"
    """Refused; the detail is the errno's name."""
    ABSENT = "absent"
    """There is nothing there to reach."""
    REACHED = "reached"
    """It went through; the detail says to what."""
    ERROR = "error"
    """It could not be tried."""


class Verdict(StrEnum):
    """What the evidence says, worst last."""

    CONTAINED = "contained"
    VOID = "void"
    """Evidence is missing."""
    BREACHED = "breached"

    @property
    def badness(self) -> int:
        """Its place in the order."""
        return list(Verdict).index(self)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them; void when there is none: no evidence is not good evidence."""
    return max(verdicts, key=lambda verdict: verdict.badness, default=Verdict.VOID)


class Side(StrEnum):
    """Whose word decides."""

    HOST = "host"
    GUEST = "guest"


class Witness(StrEnum):
    """What the host looks at to see an attempt that went through.

    Each is named as its parameter.
    """

    CANARY = "canary"
    SOCKET = "socket"
    ABSTRACT = "abstract"
    TCP = "tcp"
    TCP6 = "tcp6"
    UDP = "udp"
    PID = "pid"
    NAMESPACES = "namespaces"
    """The cell's own processes, as the host sees them: in no namespace of its own, without its root
    among their ids, without a route (but to its range's router).
    """
    ROUTER = "router"
    """The range's router: its rules are the plan's, and nothing but the range's ports hangs on it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One containment test.

    Attributes:
        name: `group.what`, lower case, digits, `_`; what the program prints.
        tries: one sentence: what is attempted. why: the CVE, paper or incident behind it. breach:
            what it looks like.
        side: `host` where the host can see it; then `witness` says where it looks, and silence
            there is demanded.
        quick: in the set that runs at both ends of every sample.
        expected: tier → why `reached` is known and no breach there.
    """

    name: str
    group: str
    tries: str
    why: str
    breach: str
    side: Side = Side.GUEST
    witness: Witness | None = None
    quick: bool = False
    expected: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name.startswith(f"{self.group}."):
            raise ValueError(f"probe {self.name}: its name must begin with its group, {self.group}")
        if (self.side is Side.HOST) != (self.witness is not None):
            raise ValueError(f"probe {self.name}: side host names a witness, side guest none")


def entry(
    group: str,
    what: str,
    *,
    tries: str,
    why: str,
    breach: str,
    witness: Witness | None = None,
    quick: bool = True,
    expected: Mapping[str, str] | None = None,
) -> Probe:
    """A probe of `group`; whose word decides follows from whether the host has a witness."""
    return Probe(
        name=f"{group}.{what}",
        group=group,
        tries=tries,
        why=why,
        breach=breach,
        side=Side.GUEST if witness is None else Side.HOST,
        witness=witness,
        quick=quick,
        expected=dict(expected or {}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One probe, judged.

    Attributes:
        outcome: as the program reported; None: nothing usable. detail: its words, escaped
            and bounded.
        seen: what decided, in words. seen_by: whose observation that was.
        known: why a `reached` is expected in this tier; "" otherwise.
    """

    name: str
    verdict: Verdict
    outcome: Outcome | None
    detail: str
    seen: str
    seen_by: Side
    known: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        known = {"known": self.known} if self.known else {}
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "outcome": self.outcome.value if self.outcome else None,
            "detail": self.detail,
            "seen": self.seen,
            "seen_by": self.seen_by.value,
            **known,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """One run of the program in one cell, judged.

    Attributes:
        which: `quick`, `all`, or the names that were asked for.
        user: as whom it ran in the cell.
        problem: why the run as a whole is void; "" when it is not.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    which: str
    duration_ms: float
    user: str = ""
    problem: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of what was found, in canonical JSON: the same findings have the same digest."""
        found = {
            "problem": self.problem,
            "user": self.user,
            "findings": [each.to_json() for each in self.findings],
        }
        text = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def of(self, verdict: Verdict) -> tuple[Finding, ...]:
        """The findings with that verdict."""
        return tuple(finding for finding in self.findings if finding.verdict is verdict)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "verdict": self.verdict.value,
            "which": self.which,
            "user": self.user,
            "duration_ms": round(self.duration_ms, 3),
            "problem": self.problem,
            "digest": self.digest,
            "findings": [finding.to_json() for finding in self.findings],
        }
