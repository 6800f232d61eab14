"""Collects a run's facts once, as plain data for text, JSON and page. Pure.

Findings' texts are as recorded: each renderer escapes them. Texts of the page alone went through
`timeline.shown`, which bounds them, too.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from belljar.dataclass import asdict
from belljar.differences import sentences
from belljar.probe.model import Verdict
from belljar.report import samples
from belljar.report.cells import CellFindings
from belljar.report.ranges import RangeFindings
from belljar.report.reasons import Reason
from belljar.report.signals import Blind, SignalCode
from belljar.report.source import (
    MAX_LISTED,
    RunSource,
    entries_of,
    facts_of,
    graph_of,
    plan_of,
    proves_unused,
    targets_of,
    texts_of,
    tier_of,
)
from belljar.report.timeline import RUN, Group, shown, transcript_of
from belljar.report.tools import tool_uses
from belljar.units import format_duration

# Of all timelines with their bodies; each sample has an equal share.
MAX_DETAIL_BYTES: Final = 10 << 20
# Of a sample's details in the page, which a browser opens whole.
MAX_SAMPLE_BYTES: Final = 2 << 20
MAX_UNITS: Final = 2000  # samples, and cells and ranges of none
MAX_CELLS: Final = 20  # of a sample, whose probes and proofs are shown
_MAX_NAME_CHARS: Final = 200
_SUMS: Final = ("commands", "bytes_in", "bytes_out")  # of a sample's cells


def collect(findings: samples.RunFindings, source: RunSource | None = None) -> dict[str, Any]:
    """Return a run's facts for text and JSON; with `source`, the page's, too."""
    facts: dict[str, Any] = {
        **{
            name: getattr(findings, name) for name in ("run_id", "outcome", "exit_code", "left_out")
        },
        "verdict": findings.verdict.value,
        "headline": samples.headline(findings),
        "problems": [reason.to_json() for reason in findings.problems],
        "errors": list(findings.errors),
        "problems_and_errors": samples.problems_and_errors(findings),
        "remarks": samples.run_remarks(findings),
        "differences": samples.differing(findings.rows),
        "unsealed_logs": list(findings.unsealed_logs),
        "samples": [_sample(row) for row in findings.rows],
        "reused_samples": [
            {
                "sample": each.sample,
                "epoch": each.epoch,
                "run_id": each.judged_by,
                "verdict_of_that_run": each.judged_as,
            }
            for each in findings.reused
        ],
        "left_this_host": findings.left.to_json(),
        "tools": [use.to_json() for use in findings.tools],
        "host_processes": dict(findings.left.host_processes),
        "stray_cells": [cell.cell_id for cell in findings.strays if not cell.is_unused],
        "model_cells": [_model_cell(cell) for cell in findings.models],
        "unused_cells": [cell.cell_id for cell in findings.unused],
    }
    return facts if source is None else facts | _page(findings, facts, source)


def _model_cell(cell: CellFindings) -> dict[str, Any]:
    return {
        "cell": cell.cell_id,
        **{name: getattr(cell, name) for name in ("tier", "emulated", "death")},
        **(asdict(cell.model) if cell.model is not None else {}),
        "degraded": None if cell.degraded is None else asdict(cell.degraded),
        "probes": [asdict(each) for each in cell.probings],
        "destroyed": cell.is_proven,
        "lasted_s": round(cell.lasted_s, 3),
        "text": samples.model_sentence(cell),
    }


def _sample(row: samples.Row) -> dict[str, Any]:
    about, cells = row.transcript, row.cells
    return {
        **{name: getattr(about, name) for name in ("task", "sample", "epoch", "name", "error")},
        "scores": dict(about.scores),
        "notes": list(about.notes),
        "verdict": row.verdict.value,
        "reasons": [reason.to_json() for reason in row.reasons],
        "differences": [fact.data() for fact in row.differences],
        "degraded": [{"cell": cell, **asdict(each)} for cell, each in row.degraded],
        "cells": [cell.cell_id for cell in cells],
        "tier": cells[0].tier if cells else "",
        "emulated": any(cell.emulated for cell in cells),
        **{name: sum(getattr(cell, name) for cell in cells) for name in _SUMS},
        "lasted_s": round(sum(cell.lasted_s for cell in cells), 3),
        **{name: getattr(row, name) for name in ("reverts", "destroyed", "probed", "remarks")},
        "probes": [
            {"cell": cell.cell_id, **asdict(each)} for cell in cells for each in cell.probings
        ],
        "ranges": [
            {**each.to_json(), "sentences": list(samples.range_sentences(each))}
            for each in row.ranges
        ],
        "signals": [signal.to_json() for signal in row.signals.signals],
        "signals_blind": [spot.to_json() for spot in row.signals.blind],
        "limits_hit": sorted({limit for cell in cells for limit in cell.limits}),
        "only_in_transcript": len(row.transcript_gap.unfounded),
        "tools": [use.to_json() for use in tool_uses(row.tools)],
    }


# --- what only a page shows


def _page(
    findings: samples.RunFindings, facts: Mapping[str, Any], source: RunSource
) -> dict[str, Any]:
    verification, timelines = source.verification, source.timelines
    chosen, left_out = _units(findings, facts, source)
    share = min(MAX_SAMPLE_BYTES, MAX_DETAIL_BYTES // max(1, len(chosen)))
    units = [_unit(kind, row, found, source, share) for kind, row, found in chosen]
    counts = Counter(each["verdict"] for each in facts["samples"])
    signals = Counter(each["code"] for found in facts["samples"] for each in found["signals"])
    return {
        "run_id": shown(findings.run_id or verification.run_id or "unknown"),
        "command": shown(shlex.join(map(str, timelines.started.get("argv", ())))),
        "sentence": _sentence(findings, counts),
        "alarm": source.alarm,
        "is_running": source.is_running,
        "verdicts": {verdict.value: counts[verdict.value] for verdict in Verdict},
        "signals": [(code, SignalCode(code).text, count) for code, count in signals.most_common()],
        "missing": _missing(findings, units),
        # Tools that acted outside of a cell acted on this host
        "left_host": texts_of((*facts["left_this_host"]["lines"], *_outside(facts["tools"]))),
        "air_gap": timelines.air_gap,
        "targets": targets_of(findings, source),
        "proves_unused": proves_unused(findings, source),
        "plans": [plan_of(each) for each in source.plans.values()],
        "units": units,
        "units_left_out": left_out,
        "facts": facts_of(source),
        "record": {
            "state": source.alarm or verification.status.value,
            "key": verification.key or "",
            "root": verification.root,
            "events": f"{verification.events:,}, {verification.signed_events:,} of them signed",
            "checkpoints": f"{verification.checkpoints:,}",
            "bodies": f"{verification.bodies:,}",
            "warnings": verification.warnings,
        },
    }


def _sentence(findings: samples.RunFindings, counts: Mapping[str, int]) -> str:
    count = len(findings.rows)
    if findings.verdict is Verdict.BREACHED:
        return (
            f"Containment was BREACHED: {counts.get('breached', 0)} of {count} samples. Something "
            "got through, or a decoy of one sample was seen in another."
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
        "end, each cell's destruction is proven, and the evidence of both is "
        f"{'on record' if findings.left_out else 'complete'}."
    )


def _outside(uses: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for use in uses:
        if use["outside"]:
            calls = f"{use['calls']} call(s) outside of the cell"
            yield f"tool {use['name']}: {calls}: {use['outside']}"


def _missing(
    findings: samples.RunFindings, units: Sequence[Mapping[str, Any]]
) -> list[tuple[str, int | None]]:
    """The run's problems, then each reason and blind spot with its samples' count."""
    found = (unit for unit in units if unit["kind"] == "sample")
    each = Counter(
        text for unit in found for text in dict.fromkeys((*unit["reasons"], *unit["missing"]))
    )
    problems = texts_of(dict.fromkeys(map(str, findings.problems)))
    known = [(text, None) for text in problems if text not in each]
    left = len(each) - MAX_LISTED
    more = [(f"… and {left} more: see the samples", None)] if left > 0 else []
    return [*known, *each.most_common(MAX_LISTED), *more]


def _units(
    findings: samples.RunFindings, facts: Mapping[str, Any], source: RunSource
) -> tuple[list[tuple[str, samples.Row, Mapping[str, Any]]], int]:
    """The units of the page in order, of very many the worst; and how many others there are.

    Each has its kind: a sample, or what belongs to none: a cell, a range, the run itself.
    """
    units = [
        ("sample", row, found) for row, found in zip(findings.rows, facts["samples"], strict=True)
    ]

    def add(kind: str, name: str, reasons: Sequence[Reason], **parts: Any) -> None:  # noqa: ANN401
        transcript = samples.Transcript(task="", sample=name, epoch=1, uuid="")
        row = samples.Row(transcript=transcript, reasons=tuple(reasons), **parts)
        units.append((kind, row, _sample(row)))

    if any(source.timelines.counts([RUN]).values()):
        add("run", "the run itself", findings.problems)
    for cell in findings.models:
        name = cell.model.name if cell.model else cell.cell_id
        add("model cell", name, cell.reasons, cells=(cell,))
    for cell in findings.strays:
        add("cell", cell.cell_id, cell.end_reasons, cells=(cell,))
    for each in findings.stray_ranges:
        add("range", each.range_id, each.end_reasons, ranges=(each,))
    severity = [Verdict.BREACHED, Verdict.VOID, Verdict.CONTAINED]
    verdicts = [severity.index(row.verdict) for _, row, _ in units]
    kept = sorted(sorted(range(len(units)), key=verdicts.__getitem__)[:MAX_UNITS])
    return [units[index] for index in kept], len(units) - len(kept)


def _unit(
    kind: str, row: samples.Row, found: Mapping[str, Any], source: RunSource, share: int
) -> dict[str, Any]:
    """A unit's actions and proofs of destruction; a sample's score and signals."""
    cells, ranges, timelines = row.cells, row.ranges, source.timelines
    # So that several lists of texts leave most of the share to entries and bodies.
    room = share // 16
    places = [*(cell.cell_id for cell in cells), *(each.range_id for each in ranges)]
    places += [transcript_of(row.transcript.uuid)] if kind == "sample" else []
    places += [RUN] if kind == "run" else []
    counts = timelines.counts(places)
    names = {cell: name for each in ranges for cell, name in each.cells.items()}
    entries, left_out = entries_of(places, cells, source, share, names if len(cells) > 1 else {})
    # Those whose end is in doubt first
    listed = sorted(cells, key=lambda cell: cell.is_proven)[:MAX_CELLS]
    score = ", ".join(f"{name} {value}" for name, value in found["scores"].items())
    score = score or ("error" if found["error"] else "-")
    return {
        "kind": kind,
        "name": shown(found["name"], max_chars=_MAX_NAME_CHARS),
        "task": shown(found["task"], max_chars=_MAX_NAME_CHARS),
        "score": shown(score, max_chars=_MAX_NAME_CHARS),
        "reasons": texts_of((each["text"] for each in found["reasons"]), room),
        "missing": texts_of(
            (f"{Blind(each['code']).text}: {each['detail']}" for each in found["signals_blind"]),
            room,
        ),
        "remarks": texts_of(_remarks(row, found), room),
        "signals": [
            (each["code"], each["count"], shown(", ".join(each["involved"]), max_chars=room))
            for each in found["signals"]
        ],
        "tier": ", ".join(dict.fromkeys(tier_of(cell) for cell in cells)),
        "commands": found["commands"] if kind == "sample" else counts[Group.COMMAND],
        "requests": sum(each["requests_in_all"] for each in found["ranges"])
        + sum(cell.model.requests for cell in cells if cell.model),
        "refusals": counts[Group.REFUSAL],
        "probed": sum(timelines.probed.get(place, 0) for place in places),
        **{name: found[name] for name in ("bytes_in", "bytes_out", "lasted_s", "verdict")},
        "destroyed": all(each.is_proven for each in (*cells, *ranges)),
        "proofs": list(_proofs(listed, ranges[:MAX_CELLS], room // MAX_CELLS)),
        "graphs": [graph_of(each, source) for each in ranges[:MAX_CELLS]],
        "network": texts_of((line for each in found["ranges"] for line in each["sentences"]), room),
        "show": [
            *(f"--cell-id {shlex.quote(shown(cell.cell_id))}" for cell in listed),
            *(("--kind network",) if ranges else ()),
            *(("--kind air_gap", "--kind kill", "--kind model") if kind == "run" else ()),
        ],
        "more_cells": len(cells) - len(listed),
        "entries": entries,
        "left_out": left_out,
    }


def _remarks(row: samples.Row, found: Mapping[str, Any]) -> Iterator[str]:
    yield from (samples.model_sentence(cell) for cell in row.cells if cell.model)
    if found["error"]:
        yield f"error: {found['error']}"
    yield from found["remarks"]
    yield from sentences(row.differences)
    yield from _outside(found["tools"])


def _proofs(
    cells: Sequence[CellFindings], ranges: Sequence[RangeFindings], room: int
) -> Iterator[dict[str, Any]]:
    """Each cell's probes and end, and each range's end."""
    ends: list[tuple[str, str, CellFindings | RangeFindings, str]] = [
        *((each.cell_id, f"Cell, {tier_of(each)}", each, each.death) for each in cells),
        *((each.range_id, "Range", each, each.failed) for each in ranges),
    ]
    for place, what, found, death in ends:
        probings = found.probings if isinstance(found, CellFindings) else ()
        probes = (
            f"{each.phase or 'asked for'}: {each.verdict.value}, {each.probes} tests, "
            f"{format_duration(each.duration_ms / 1000)} {each.problem}"
            for each in probings
        )
        yield {
            "id": shown(place),
            "what": what,
            "probes": texts_of(probes, room),
            "destroyed": "proven" if found.is_proven else "NOT PROVEN",
            "left": texts_of((*found.survivors, *found.not_checked), room),
            "death": shown(death),
        }
