"""Sentences about a run that each of its reports shows. Pure; what may be a guest's is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from belljar.differences import samples_named, sentences
from belljar.report.cells import CellFindings
from belljar.report.ranges import RangeFindings
from belljar.report.reasons import ReasonCode
from belljar.report.samples import Row, RunFindings
from belljar.units import printable


def model_sentence(cell: CellFindings) -> str:
    """What a model cell did, and how it ended."""
    if (use := cell.model) is None:
        return ""
    probed = "/".join(cell.probed(phase).value for phase in ("start", "end"))
    failed = f", {use.failed:,} failed" if use.failed else ""
    tokens = f"{use.prompt_tokens:,} → {use.completion_tokens:,} tokens"
    damage = f"{cell.degraded}; " if cell.degraded else ""
    proven = "destruction proven" if cell.is_proven else "NOT PROVEN destroyed"
    device = "ON A NETWORK" if cell.range_id else "no network device"
    device += f", devices of this host: {printable(', '.join(use.devices))}" * bool(use.devices)
    return (
        f"model {printable(use.name)} (sha256:{printable(use.weights)[:12]}): cell "
        f"{cell.cell_id}, {cell.tier}, {device}; {use.requests:,} request(s){failed}, "
        f"{tokens}; {printable(damage)}probes {probed}; {proven}"
    )


def differing(rows: Sequence[Row]) -> list[str]:
    """How cells differ from the task and the policy: each difference once, with its samples."""
    samples: dict[str, dict[str, None]] = {}
    for row in rows:
        for sentence in sentences(row.differences):
            samples.setdefault(sentence, {})[row.transcript.sample] = None
    count = len({row.transcript.sample for row in rows})
    return [
        sentence if len(named) == count else f"{samples_named(named)}: {sentence}"
        for sentence, named in samples.items()
    ]


def run_remarks(findings: RunFindings) -> list[str]:
    """Remarks about the run that no transcript has, none of them a reason."""
    lines = [
        f"cell {cell.cell_id} was created, but the run ended before its sample began"
        for cell in findings.strays
        if not cell.sample and not cell.is_unused
    ]
    if findings.unused:
        lines.append(f"{len(findings.unused)} cell(s) were made ahead and not used")
    lines += [
        f"sample {printable(each.sample)} #{each.epoch} was reused from run "
        f"{printable(each.judged_by)}"
        + (f", which judged it {printable(each.judged_as)}" if each.judged_as else "")
        + f": belljar verdict {printable(each.judged_by)}"
        for each in findings.reused
    ]
    lines += [
        f"Inspect's log is outside of the run directory and not sealed: {printable(log)}"
        for log in findings.unsealed_logs
    ]
    return lines


def problems_and_errors(findings: RunFindings) -> list[str]:
    """Problems and errors, each once: an evaluation ends with the error of one of its samples."""
    samples: dict[str, dict[str, None]] = {}
    for row in findings.rows:
        deaths = [f"cell {cell.cell_id} died: {cell.death}" for cell in row.cells if cell.death]
        for error in filter(None, (*deaths, row.transcript.error)):
            samples.setdefault(printable(error, max_chars=300), {})[row.transcript.sample] = None
    explained = findings.never_began and bool(findings.errors)
    return [
        *(
            f"problem: {printable(str(problem))}"
            for problem in findings.problems
            if not (explained and problem.code is ReasonCode.NO_SAMPLES)
        ),
        *(
            f"error: {printable(error, max_chars=300)}"
            for error in findings.errors
            if not any(printable(error).rpartition("error: ")[2][:100] in each for each in samples)
        ),
        *(f"error: {samples_named(named)}: {error}" for error, named in samples.items()),
    ]


def range_sentences(found: RangeFindings) -> Iterator[str]:
    """Return what happened in a range, but for its requests."""
    for title, group in (
        ("attempts to publish, push or send", found.attempts),
        ("names looked up that exist here", found.names_found),
        ("names looked up that don't exist here", found.names_refused),
        ("TLS refused", found.tls_refused),
        ("limits hit", found.limits),
    ):
        if group:
            yield f"{title}: {group.sentence()}"
    for flow in found.flows.values():
        sender = flow.cell or "an unknown sender"
        what = f"{flow.verdict} ({flow.reason}): {flow.protocol} of {sender}"
        yield f"{what} to {flow.to.sentence()}"
    if cut := found.counters.get("events_cut"):
        yield f"{cut} event(s) were shortened: the range reached its limit of recorded bytes"
    for lost in found.lost:
        yield f"EVIDENCE MISSING: {printable(lost.sentence, max_chars=800)}"
