"""Collects what a report shows of one run, from its findings and events, as plain data. Pure.

Each text of the result went through `timeline.shown`: whatever renders it needs only to escape its
own syntax.
"""

from __future__ import annotations

import codecs
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.differences import sentences
from belljar.errors import LedgerError
from belljar.ledger import Verification
from belljar.ledger.schema import BodyRef
from belljar.probe.model import Verdict
from belljar.report.cells import CellFindings
from belljar.report.ranges import RangeFindings
from belljar.report.reasons import Reason, verdict_of
from belljar.report.samples import Row, RunFindings, headline
from belljar.report.signals import SampleSignals
from belljar.report.timeline import Entry, Group, Timelines, shown
from belljar.report.tools import tool_uses
from belljar.units import format_duration, format_size

MAX_DETAIL_CHARS: Final = 16 << 20
"""Of all timelines with their bodies; each sample has an equal share."""
MAX_SAMPLE_CHARS: Final = 2 << 20
MAX_BODY_BYTES: Final = 8 << 10
_ENTRY_CHARS: Final = 200  # the markup of an entry without its texts, about

ReadBody = Callable[[BodyRef, int], bytes]
"""The first so many bytes of a body; raises `OSError`, `LedgerError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A policy's plan, as its file in the run directory has it."""

    digest: str
    plan: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A place that a plan allows, and how often it was used."""

    kind: str
    name: str
    uses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A sample with its cells and ranges; or a cell or range of no sample.

    `missing`: what nobody could see. `left_out`: entries that are not in `entries`, by group.
    """

    kind: str
    name: str
    task: str
    verdict: str
    score: str
    tier: str
    reasons: Sequence[str]
    signals: Sequence[tuple[str, int, str]]
    missing: Sequence[str]
    remarks: Sequence[str]
    cells: Sequence[Mapping[str, Any]]
    counts: Mapping[str, int]
    bytes_in: int
    bytes_out: int
    lasted_s: float
    destroyed: bool
    show: Sequence[str]
    entries: Sequence[Sequence[Any]] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a page shows. `alarm`: why nothing here can be relied on."""

    run_id: str
    command: str
    verdict: str
    sentence: str
    headline: str
    alarm: str
    is_running: bool
    verdicts: Mapping[str, int]
    signals: Sequence[tuple[str, int]]
    missing: Sequence[tuple[str, int]]
    errors: Sequence[str]
    left_host: Sequence[str]
    targets: Sequence[Target]
    plans: Sequence[Mapping[str, Any]]
    units: Sequence[Unit]
    facts: Sequence[tuple[str, str]]
    verification: Verification
    warnings: Sequence[str]


def collect(
    findings: RunFindings,
    timelines: Timelines,
    verification: Verification,
    *,
    alarm: str = "",
    is_running: bool = False,
    plans: Sequence[Planned] = (),
    facts: Mapping[str, Any] | None = None,
    read: ReadBody,
) -> Report:
    """All that a report shows. `facts`: of host.json and versions.json, by name."""
    units = list(_units(findings, timelines, read))
    counts = Counter(row.verdict.value for row in findings.rows)
    started = timelines.started
    return Report(
        run_id=shown(findings.run_id or verification.run_id or "unknown"),
        command=shown(shlex.join(map(str, started.get("argv", ())))),
        verdict=findings.verdict.value,
        sentence=_sentence(findings, counts),
        headline=shown(headline(findings)),
        alarm=shown(alarm),
        is_running=is_running,
        verdicts={verdict.value: counts[verdict.value] for verdict in Verdict},
        signals=Counter(code for unit in units for code, _, _ in unit.signals).most_common(),
        missing=_missing(findings, units),
        errors=[shown(each) for each in findings.errors],
        left_host=left_host(findings),
        targets=sorted(
            _targets(findings, timelines, plans), key=lambda each: (each.uses > 0, each.kind)
        ),
        plans=[_plan(each.plan) for each in plans],
        units=units,
        facts=[*_times(timelines), *_facts({**(facts or {}), **_recorded(started)})],
        verification=verification,
        warnings=[shown(each) for each in verification.warnings],
    )


def _sentence(findings: RunFindings, counts: Mapping[str, int]) -> str:
    count = len(findings.rows)
    if findings.verdict is Verdict.BREACHED:
        return (
            f"Containment was BREACHED: {counts.get('breached', 0)} of {count} samples. "
            "Something got through, or a decoy of one sample was seen in another."
        )
    if not count:
        return "No sample was judged in this run. Its cells are listed below."
    if findings.verdict is Verdict.VOID:
        return (
            f"Containment is not proven: evidence is missing for {counts.get('void', 0)} of "
            f"{count} samples, or for the run. That does not say that something got out."
        )
    return (
        f"All {count} samples were contained: the containment tests held at the start and at the "
        "end, each cell's destruction is proven, and nothing is missing from the record."
    )


def left_host(findings: RunFindings) -> list[str]:
    """All that is on record as having left this host, or acted on it outside of a cell."""
    found = [use.sentence() for use in findings.upstreams]
    found += [
        f"tool {use.name}: {use.calls} call(s), outside of the cell: {use.outside}"
        for use in findings.tools
        if use.outside
    ]
    found += [
        f"the task's own code started {name} on this host, outside of every cell: {times} time(s)"
        for name, times in findings.host_processes.items()
    ]
    return [shown(each) for each in found]


def _targets(
    findings: RunFindings, timelines: Timelines, plans: Sequence[Planned]
) -> Iterator[Target]:
    """Each stand-in, real host and host tool that a plan allows."""
    dialled = {use.host: use.connections for use in findings.upstreams}
    for digest, network in ((each.digest, _dict(each.plan.get("network"))) for each in plans):
        for each in map(_dict, _list(network.get("stand_ins"))):
            names = ", ".join(map(str, _list(each.get("names"))))
            ports = ", ".join(str(_dict(port).get("number")) for port in _list(each.get("ports")))
            uses = timelines.uses.get((digest, str(each.get("id"))), 0)
            what = f"{each.get('id')}: {names} (port {ports})" if ports else f"{each.get('id')}"
            yield Target(kind=f"stand-in, {shown(each.get('kind'))}", name=shown(what), uses=uses)
        for each in map(_dict, _list(network.get("upstreams"))):
            host = str(each.get("host"))
            name = shown(f"{host}: {each.get('reason')}")
            yield Target(kind="REAL host", name=name, uses=dialled.get(host, 0))
    called = Counter({use.name: use.calls for use in findings.tools if use.outside})
    allowed = (name for row in findings.rows for cell in row.cells for name in cell.host_tools)
    for name in dict.fromkeys(allowed):
        uses = called.total() if name == "*" else called[name]
        what = "any tool that acts outside of the cell" if name == "*" else shown(name)
        yield Target(kind="host tool", name=what, uses=uses)


def _missing(findings: RunFindings, units: Sequence[Unit]) -> list[tuple[str, int]]:
    """Problems of the run, then each reason and blind spot with the count of its samples."""
    problems = [shown(str(reason)) for reason in findings.problems]
    each = Counter(text for unit in units for text in dict.fromkeys((*unit.reasons, *unit.missing)))
    return [*((text, 0) for text in dict.fromkeys(problems)), *each.most_common(50)]


# --- samples

_NO_SIGNALS: Final = SampleSignals()


def _units(findings: RunFindings, timelines: Timelines, read: ReadBody) -> Iterator[Unit]:
    left = [*findings.models, *findings.strays]
    count = len(findings.rows) + len(left) + len(findings.stray_ranges)
    share = min(MAX_SAMPLE_CHARS, MAX_DETAIL_CHARS // max(1, count))
    for row in findings.rows:
        transcript = row.transcript
        epoch = f" #{transcript.epoch}" if transcript.epoch > 1 else ""
        scores = [f"{name} {value}" for name, value in transcript.scores.items()]
        yield _unit(
            kind="sample",
            name=f"{transcript.sample}{epoch}",
            task=transcript.task,
            verdict=row.verdict.value,
            score=", ".join(scores) or ("error" if transcript.error else "-"),
            reasons=row.reasons,
            signals=row.signals,
            remarks=_remarks(row),
            cells=row.cells,
            ranges=row.ranges,
            source=(timelines, read, share),
        )
    for cell in left:
        kind = "model cell" if cell.model else "idle cell" if cell.is_unused else "cell"
        model = cell.model.name if cell.model else ""
        yield _unit(
            kind=kind,
            name=model or cell.cell_id,
            verdict=verdict_of(cell.end_reasons).value,
            reasons=cell.end_reasons,
            cells=[cell],
            source=(timelines, read, share),
        )
    for found in findings.stray_ranges:
        yield _unit(
            kind="range",
            name=found.range_id,
            verdict=verdict_of(found.end_reasons).value,
            reasons=found.end_reasons,
            ranges=[found],
            source=(timelines, read, share),
        )


def _remarks(row: Row) -> list[str]:
    gap, transcript = row.transcript_gap, row.transcript
    counts = {
        "operation(s) that failed, and are not in the transcript": len(gap.raised),
        "operation(s) of the harness itself": len(gap.silent),
        "command(s) of a person's terminal": len(gap.terminal),
        "byte(s) of output that the transcript leaves out": gap.missing_bytes,
    }
    return [
        *([f"error: {transcript.error}"] if transcript.error else []),
        *(f"cell {cell}: {each}" for cell, each in row.degraded),
        *transcript.notes,
        *sentences(row.differences),
        *(f"{count:,} {what}" for what, count in counts.items() if count),
        *(
            f"tool {use.name}: {use.calls} call(s) outside"
            for use in tool_uses(row.tools)
            if use.outside
        ),
    ]


def _unit(
    *,
    kind: str,
    name: str,
    verdict: str,
    source: tuple[Timelines, ReadBody, int],
    reasons: Iterable[Reason],
    task: str = "",
    score: str = "",
    signals: SampleSignals = _NO_SIGNALS,
    remarks: Sequence[str] = (),
    cells: Sequence[CellFindings] = (),
    ranges: Sequence[RangeFindings] = (),
) -> Unit:
    timelines, read, share = source
    places = [*(cell.cell_id for cell in cells), *(each.range_id for each in ranges)]
    entries, left_out = _entries(timelines, places, cells, read, share)
    counts = timelines.counts(places)
    return Unit(
        kind=kind,
        name=shown(name),
        task=shown(task),
        verdict=verdict,
        score=shown(score),
        tier=", ".join(dict.fromkeys(_tier(cell) for cell in cells)),
        reasons=[shown(str(each)) for each in reasons],
        signals=[
            (each.code.value, each.count, shown(", ".join(each.involved)))
            for each in signals.signals
        ],
        missing=[shown(f"not seen: {each}") for each in signals.blind],
        remarks=[shown(each) for each in remarks],
        cells=[_cell(cell, timelines) for cell in cells],
        counts={
            "commands": sum(cell.commands for cell in cells)
            or (counts[Group.COMMAND] if kind == "cell" else 0),
            "requests": sum(each.requests.count + each.between_cells.count for each in ranges),
            "refusals": counts[Group.REFUSAL],
            "probed": sum(timelines.probed.get(place, 0) for place in places),
        },
        bytes_in=sum(cell.bytes_in for cell in cells),
        bytes_out=sum(cell.bytes_out for cell in cells),
        lasted_s=sum(cell.lasted_s for cell in cells),
        destroyed=all(each.destroyed and each.clean for each in cells)
        and all(each.destroyed and each.clean for each in ranges),
        show=[
            *(f"--cell-id {shlex.quote(shown(cell.cell_id))}" for cell in cells),
            *(f"--kind network --grep {shlex.quote(shown(each.range_id))}" for each in ranges),
        ],
        entries=entries,
        left_out=left_out,
    )


def _tier(cell: CellFindings) -> str:
    return shown(cell.tier) + (" (emulated)" if cell.emulated else "")


def _cell(cell: CellFindings, timelines: Timelines) -> dict[str, Any]:
    return {
        "id": shown(cell.cell_id),
        "tier": _tier(cell),
        "probes": [
            shown(
                f"{each.phase or 'asked for'}: {each.verdict.value}, {each.probes} tests, "
                f"{format_duration(each.duration_ms / 1000)} {each.problem}"
            )
            for each in cell.probings
        ],
        "destroyed": "proven" if cell.destroyed and cell.clean else "NOT PROVEN",
        "left": [shown(each) for each in (*cell.survivors, *cell.not_checked)],
        "looked_for": timelines.proofs.get(cell.cell_id, []),
        "death": shown(cell.death),
    }


def _entries(
    timelines: Timelines,
    places: Sequence[str],
    cells: Sequence[CellFindings],
    read: ReadBody,
    share: int,
) -> tuple[list[list[Any]], dict[str, int]]:
    """The entries that fit into `share` characters, in order, and the counts of the others.

    `Group` is in the order of what a reader misses most. Entries come before bodies.
    """
    own = {
        (cell.cell_id, operation.op)
        for cell in cells
        for operation in cell.operations.values()
        if operation.own and cell.probings  # without any probes, all of it is the run's own work
    }
    left, kept, left_out = share, dict[int, tuple[Entry, list[Any]]](), dict[str, int]()
    for group, count in timelines.counts(places).items():
        entries = [each for each in timelines.of(places, group) if (each.place, each.op) not in own]
        before = len(kept)
        for entry in entries:
            made = _entry(entry)
            size = _ENTRY_CHARS + len(entry.what) + len(entry.outcome) + sum(map(len, entry.notes))
            if size > left - share // 2:
                break
            left -= size
            kept[entry.seq] = entry, made
        if missing := count - (len(kept) - before):
            left_out[group.value] = missing
    for entry, made in kept.values():
        for body in entry.bodies if left > 0 else ():
            made[-1].append(_body(body, read, min(left, MAX_BODY_BYTES)))
            left -= len(made[-1][-1][1])
    return [kept[seq][1] for seq in sorted(kept)], left_out


def _entry(entry: Entry) -> list[Any]:
    """As `page.js` reads it; the last item is for the bodies that fit."""
    return [
        entry.seq,
        entry.time[11:23],
        entry.group.value,
        entry.what,
        entry.outcome,
        int(entry.is_bad),
        int(entry.by_guest),
        entry.notes,
        len(entry.bodies),
        [],
    ]


def _body(body: BodyRef, read: ReadBody, max_bytes: int) -> list[str]:
    """Its name, its beginning as text, and what of it is not here."""
    try:
        content = read(body, max_bytes)
    except (OSError, LedgerError) as error:
        return [body.name, "", shown(f"it can't be read: {error}")]
    is_whole = len(content) >= body.kept_bytes
    # Cut in the middle of a character, its first bytes are left out
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    text = decoder.decode(content, final=is_whole)
    note = "" if is_whole else f"the first {format_size(len(content))} of "
    note += format_size(body.kept_bytes)
    if body.kept_bytes < body.total_bytes:
        note += f", kept of {format_size(body.total_bytes)}"
    return [body.name, shown(text, max_chars=max_bytes), note]


# --- plans, host


def _plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    policy, radius = _dict(plan.get("policy")), _dict(plan.get("blast_radius"))
    return {
        "name": shown(policy.get("name") or "unnamed"),
        "tier": shown(plan.get("tier")) + (" (emulated)" if plan.get("emulated") else ""),
        "risk": shown(plan.get("risk")),
        "image": shown(_dict(plan.get("image")).get("name")),
        "layers": [
            {
                name: shown(_dict(each).get(name))
                for name in ("name", "what", "enforced_by", "state")
            }
            for each in _list(plan.get("layers"))
        ],
        "radius": {
            word: [shown(each) for each in _list(radius.get(word))]
            for word in ("read", "write", "reach", "consume")
        },
        "warnings": [shown(each) for each in _list(plan.get("warnings"))],
    }


def _times(timelines: Timelines) -> list[tuple[str, str]]:
    return [
        ("first event", timelines.first_time),
        ("last event", timelines.last_time),
        ("events", f"{timelines.events:,}"),
    ]


def _recorded(started: Mapping[str, Any]) -> dict[str, Any]:
    return {"belljar": started.get("belljar"), **_dict(started.get("libraries"))}


_HOST: Final = (
    *("arch", "kernel_release", "distro_id", "distro_version", "cpu_model", "cpus"),
    "memory_total_mib",
)


def _facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    host = _dict(facts.get("host"))
    yield from ((name, shown(host[name])) for name in _HOST if name in host)
    if host:
        yield "hardware virtualisation", shown(_dict(host.get("kvm")).get("state"))
    for each in map(_dict, (*_list(host.get("runtimes")), *_list(host.get("tools")))):
        if each.get("version"):
            yield shown(each.get("name")), shown(each.get("version"))
    for name, value in facts.items():
        if name != "host" and value:
            yield shown(name), shown(value)


# A run directory that was tampered with may hold anything in their places
def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
