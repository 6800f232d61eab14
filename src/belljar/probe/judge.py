"""The cell's report and the host's observation → findings and a verdict. Pure.

The cell's word alone can make a breach, but never *contained* where the host is able to look.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from belljar.probe.model import AttemptOutcome, Finding, Probe, Side, Verdict, Witness, worst
from belljar.units import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """`touched` is None where the host could not look."""

    touched: bool | None
    what: str


NOT_LOOKED = Sight(touched=None, what="the host did not look")
NO_DEVICE = Sight(touched=False, what="the cell has no network device")


def judge(
    probes: Sequence[Probe], answers: Answers, sights: Mapping[Witness, Sight], *, tier: str
) -> tuple[Finding, ...]:
    """Touched witnesses that no probe names are findings, too."""
    findings = [
        judge_probe(probe, answers.by_name.get(probe.name), sights, tier=tier) for probe in probes
    ]
    named = {probe.witness for probe in probes}
    findings += [
        Finding(
            name=f"host.{witness}", verdict=Verdict.BREACHED, seen=sight.what, seen_by=Side.HOST
        )
        for witness, sight in sights.items()
        if witness not in named and sight.touched is True
    ]
    return tuple(findings)


def overall(findings: Sequence[Finding], problem: str) -> Verdict:
    """Return void at best with a problem."""
    verdict = worst(finding.verdict for finding in findings)
    return worst((verdict, Verdict.VOID)) if problem else verdict


def judge_probe(
    probe: Probe, answer: AttemptReport | None, sights: Mapping[Witness, Sight], *, tier: str
) -> Finding:
    """The host's sight counts first, then the cell's report."""
    by_host = partial(Finding, name=probe.name, seen_by=Side.HOST)
    if answer is not None:
        by_host = partial(by_host, outcome=answer.outcome, detail=answer.detail)
    by_guest = partial(by_host, seen_by=Side.GUEST)
    sight = sights.get(probe.witness, NOT_LOOKED) if probe.witness is not None else None
    if sight is not None and sight.touched:
        return by_host(verdict=Verdict.BREACHED, seen=sight.what)
    if answer is None:
        return by_host(verdict=Verdict.VOID, seen="no answer came")
    if answer.outcome is AttemptOutcome.REACHED:
        known, seen = probe.expected.get(tier, ""), "the cell says reached"
        # What the policy wills excuses the cell's word, and nothing that the host saw.
        if known and (sight is None or sight.touched is False):
            return by_guest(verdict=Verdict.CONTAINED, seen=seen, known=known)
        saw = f"; {sight.what}" if sight is not None else ""
        return by_guest(verdict=Verdict.BREACHED, seen=f"{seen}{saw}")
    if answer.outcome is AttemptOutcome.ERROR:
        return by_guest(verdict=Verdict.VOID, seen="it could not be tried")
    if sight is None:
        return by_guest(verdict=Verdict.CONTAINED, seen=f"the cell says {answer.outcome}")
    verdict = Verdict.VOID if sight.touched is None else Verdict.CONTAINED
    return by_host(verdict=verdict, seen=sight.what)


MAX_OUTPUT_BYTES: Final = 256 << 10  # a guest may print without end
MAX_DETAIL_CHARS: Final = 400  # each finding is on record
# From the best to the worst: the worse of two words counts.
_BADNESS: Final = (
    AttemptOutcome.DENIED,
    AttemptOutcome.ABSENT,
    AttemptOutcome.ERROR,
    AttemptOutcome.REACHED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    outcome: AttemptOutcome
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """`problem` says why it is incomplete."""

    by_name: Mapping[str, AttemptReport]
    problem: str = ""


def parse_answers(output: bytes, *, asked: Collection[str], nonce: str) -> Answers:
    """Nothing is raised: faults become the `problem`."""
    lines = output[:MAX_OUTPUT_BYTES].split(b"\n")
    by_name: dict[str, AttemptReport] = {}
    # Without its end the report is void, but a breach in it counts all the same.
    problems = [fault for line in lines if (fault := _take(line, asked, by_name))][:4]
    end = f"end\t{len(lines) - 2}\t{nonce}\n".encode()  # the nonce: of this very run
    if len(output) > MAX_OUTPUT_BYTES or b"\n".join(lines[-2:]) != end:
        problems.append("it was cut off, or did not end with its count and nonce")
    if missing := [name for name in asked if name not in by_name]:
        what = f"{len(missing)} of {len(asked)} attempts did not answer"
        problems.append(f"{what}, {missing[0]} among them")
    return Answers(by_name=by_name, problem="; ".join(dict.fromkeys(problems)))


def _take(line: bytes, asked: Collection[str], into: dict[str, AttemptReport]) -> str:
    """Add a line's answer, the worse of two; return its fault."""
    fields = line.split(b"\t", 2)
    try:
        name, outcome = fields[0].decode("ascii"), AttemptOutcome(fields[1].decode("ascii"))
        detail = printable(fields[2], max_chars=MAX_DETAIL_CHARS)
    except (IndexError, ValueError):
        is_harmless = not line or fields[0] == b"end"
        return "" if is_harmless else f"a line is malformed: {printable(line, max_chars=60)}"
    if name not in asked:
        return f"{printable(name, max_chars=60)} was not asked for"
    answer, known = AttemptReport(outcome=outcome, detail=detail), into.get(name)
    into[name] = max(known or answer, answer, key=lambda each: _BADNESS.index(each.outcome))
    return f"{name} answered twice" if known is not None else ""


# Probes that a sink answers: reaching it is no way out.
_TCP: Final = ("tcp4", "dns_public_tcp", "dns_tls", "usual_hosts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """The other end of a cell's port; by default of a cell without one.

    `interface` and `mac` are the port's in the cell. `namespace`: of its inner end, once attached.
    `known`: probe → why the policy answers it. `look` compares with plan and range; it blocks.
    """

    interface: str = ""
    mac: str = ""
    known: Mapping[str, str] = field(default_factory=dict)
    namespace: Callable[[], int | None] = lambda: None
    look: Callable[[], Sight] = lambda: NO_DEVICE


def routed(probes: Sequence[Probe], router: Router | None, *, tier: str) -> tuple[Probe, ...]:
    if router is None:
        return tuple(probes)
    known = {name: {tier: why} for name, why in router.known.items()}
    return tuple(
        replace(
            probe, witness=Witness.ROUTER, expected={**probe.expected, **known.get(probe.name, {})}
        )
        if probe.beyond
        else probe
        for probe in probes
    )


def known_answers(*, sinks: bool, simulates: bool, metadata: bool) -> Mapping[str, str]:
    known: dict[str, str] = {}
    if sinks:
        sink = "the range's sink takes what no other host has"
        known |= {f"network.{name}": sink for name in _TCP}
    if simulates:
        known["network.dns_configured"] = "the range simulates unknown names"
    if metadata:
        known["network.metadata"] = "a stand-in of the range has that address"
    return known
