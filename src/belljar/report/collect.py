"""Collects what a report shows of one run, from its findings and events, as plain data. Pure.

Each text of the result went through `timeline.shown`: whatever renders it needs only to escape its
own syntax.
"""

from __future__ import annotations

import codecs
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from belljar.differences import sentences
from belljar.errors import LedgerError
from belljar.ledger.schema import BodyRef
from belljar.probe.model import Verdict
from belljar.report.cells import CellFindings
from belljar.report.ranges import RangeFindings
from belljar.report.reasons import Reason
from belljar.report.remarks import model_sentence, not_in_transcript, range_sentences, run_remarks
from belljar.report.samples import Row, RunFindings, Transcript, headline
from belljar.report.source import (
    MAX_LISTED,
    RunSource,
    facts_of,
    graph_of,
    plan_of,
    targets_of,
    texts_of,
    tier_of,
)
from belljar.report.timeline import RUN, Group, TimelineEntry, Timelines, shown, transcript_of
from belljar.report.tools import ToolUse, tool_lines, tool_uses
from belljar.units import format_duration, format_size

MAX_DETAIL_BYTES: Final = 10 << 20
"""Of all timelines with their bodies; each sample has an equal share."""
MAX_SAMPLE_BYTES: Final = 2 << 20
MAX_BODY_BYTES: Final = 8 << 10
MAX_UNITS: Final = 2000  # samples, and cells and ranges of none
MAX_CELLS: Final = 20  # of a sample, whose probes and proofs are shown
_MAX_NAME_CHARS: Final = 200
_ENTRY_BYTES: Final = 60  # of an entry without its texts, in JSON


def collect(findings: RunFindings, source: RunSource) -> dict[str, Any]:
    """All that a report shows."""
    verification, timelines = source.verification, source.timelines
    chosen, left_out = _units(findings, source)
    share = min(MAX_SAMPLE_BYTES, MAX_DETAIL_BYTES // max(1, len(chosen)))
    units = [_unit(kind, row, source, share) for kind, row in chosen]
    counts = Counter(row.verdict.value for row in findings.rows)
    signals = Counter(each.code for row in findings.rows for each in row.signals.signals)
    return {
        "run_id": shown(findings.run_id or verification.run_id or "unknown"),
        "command": shown(shlex.join(map(str, timelines.started.get("argv", ())))),
        "verdict": findings.verdict.value,
        "sentence": _sentence(findings, counts),
        "headline": shown(headline(findings)),
        "alarm": shown(source.alarm),
        "partial": shown(findings.left_out),
        "is_running": source.is_running,
        "verdicts": {verdict.value: counts[verdict.value] for verdict in Verdict},
        "signals": [(code.value, code.text, count) for code, count in signals.most_common()],
        "missing": _missing(findings, units),
        "errors": texts_of(findings.errors),
        "remarks": texts_of(run_remarks(findings)),
        "tools": texts_of(each.strip() for each in tool_lines(findings.tools)[1:]),
        "left": findings.left.claim,
        # Tools that acted outside of a cell acted on this host
        "left_host": texts_of(
            (*(each.strip() for each in findings.left.lines()[1:]), *_outside(findings.tools))
        ),
        "air_gap": timelines.air_gap,
        "targets": targets_of(findings, source),
        "hits": [(*key, count) for key, count in timelines.hits.most_common()],
        "plans": [plan_of(each) for each in source.plans.values()],
        "units": units,
        "left_out": left_out,
        "facts": facts_of(source),
        "record": {
            "state": shown(source.alarm) or verification.status.value,
            "key": verification.key or "",
            "root": verification.root,
            "events": f"{verification.events:,}, {verification.signed_events:,} of them signed",
            "checkpoints": f"{verification.checkpoints:,}",
            "bodies": f"{verification.bodies:,}",
            "warnings": texts_of(verification.warnings),
        },
    }


def _sentence(findings: RunFindings, counts: Mapping[str, int]) -> str:
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


def _outside(uses: Iterable[ToolUse]) -> Iterator[str]:
    for use in uses:
        if use.outside:
            yield f"tool {use.name}: {use.calls} call(s) outside of the cell: {use.outside}"


def _missing(
    findings: RunFindings, units: Sequence[Mapping[str, Any]]
) -> list[tuple[str, int | None]]:
    """Problems of the run, then each reason and blind spot with the count of its samples."""
    samples = (unit for unit in units if unit["kind"] == "sample")
    each = Counter(
        text for unit in samples for text in dict.fromkeys((*unit["reasons"], *unit["missing"]))
    )
    problems = texts_of(dict.fromkeys(map(str, findings.problems)))
    known = [(text, None) for text in problems if text not in each]
    left = len(each) - MAX_LISTED
    more = [(f"… and {left} more: see the samples", None)] if left > 0 else []
    return [*known, *each.most_common(MAX_LISTED), *more]


def _units(findings: RunFindings, source: RunSource) -> tuple[list[tuple[str, Row]], int]:
    """The units of the page in order, of very many the worst; and how many others there are.

    Each has its kind: a sample, or what belongs to none: a cell, a range, the run itself.
    """
    units = [("sample", row) for row in findings.rows]
    if any(source.timelines.counts([RUN]).values()):
        units.append(("run", _row_of_none("the run itself", findings.problems)))
    for cell in findings.models:
        name = cell.model.name if cell.model else cell.cell_id
        units.append(("model cell", _row_of_none(name, cell.reasons, cells=(cell,))))
    for cell in findings.strays:
        units.append(("cell", _row_of_none(cell.cell_id, cell.end_reasons, cells=(cell,))))
    for each in findings.stray_ranges:
        units.append(("range", _row_of_none(each.range_id, each.end_reasons, ranges=(each,))))
    severity = [Verdict.BREACHED, Verdict.VOID, Verdict.CONTAINED]
    verdicts = [severity.index(row.verdict) for _, row in units]
    kept = sorted(sorted(range(len(units)), key=verdicts.__getitem__)[:MAX_UNITS])
    return [units[index] for index in kept], len(units) - len(kept)


def _row_of_none(name: str, reasons: Sequence[Reason], **parts: Any) -> Row:  # noqa: ANN401
    transcript = Transcript(task="", sample=name, epoch=1, uuid="")
    return Row(transcript=transcript, reasons=tuple(reasons), **parts)


def _unit(kind: str, row: Row, source: RunSource, share: int) -> dict[str, Any]:
    """What it did, its proofs of destruction, and a sample's score and signals."""
    cells, ranges, timelines, transcript = row.cells, row.ranges, source.timelines, row.transcript
    room = share // 16
    places = [*(cell.cell_id for cell in cells), *(each.range_id for each in ranges)]
    places += [transcript_of(transcript.uuid)] if kind == "sample" else []
    places += [RUN] if kind == "run" else []
    counts = timelines.counts(places)
    names = {cell: name for each in ranges for cell, name in each.cells.items()}
    entries, left_out = _entries(places, cells, source, share, names if len(cells) > 1 else {})
    # Those whose end is in doubt first
    listed = sorted(cells, key=lambda cell: cell.is_proven)[:MAX_CELLS]
    score = ", ".join(f"{name} {value}" for name, value in transcript.scores.items())
    score = score or ("error" if transcript.error else "-")
    return {
        "kind": kind,
        "name": shown(transcript.name, max_chars=_MAX_NAME_CHARS),
        "task": shown(transcript.task, max_chars=_MAX_NAME_CHARS),
        "verdict": row.verdict.value,
        "score": shown(score, max_chars=_MAX_NAME_CHARS),
        "reasons": texts_of(row.reasons, room),
        "missing": texts_of((f"not seen: {each}" for each in row.signals.blind), room),
        "remarks": texts_of(_remarks(row), room),
        "signals": [
            (each.code.value, each.count, shown(", ".join(each.involved), max_chars=room))
            for each in row.signals.signals
        ],
        "tier": shown(", ".join(dict.fromkeys(tier_of(cell) for cell in cells))),
        "commands": row.commands if kind == "sample" else counts[Group.COMMAND],
        "requests": sum(each.requests.count + each.between_cells.count for each in ranges)
        + sum(cell.model.requests for cell in cells if cell.model),
        "refusals": counts[Group.REFUSAL],
        "probed": sum(timelines.probed.get(place, 0) for place in places),
        "bytes_in": row.bytes_in,
        "bytes_out": row.bytes_out,
        "lasted_s": row.lasted_s,
        "destroyed": all(each.is_proven for each in (*cells, *ranges)),
        "proofs": list(_proofs(listed, ranges[:MAX_CELLS], timelines, room // MAX_CELLS)),
        "graphs": [graph_of(each, source) for each in ranges[:MAX_CELLS]],
        "network": texts_of((line for each in ranges for line in range_sentences(each)), room),
        "show": [
            *(f"--cell-id {shlex.quote(shown(cell.cell_id))}" for cell in listed),
            *(f"--kind network --grep {shlex.quote(shown(each.range_id))}" for each in ranges),
            *(("--kind air_gap", "--kind kill", "--kind model") if kind == "run" else ()),
        ],
        "more_cells": len(cells) - len(listed),
        "entries": entries,
        "left_out": left_out,
    }


def _remarks(row: Row) -> Iterator[str]:
    yield from (model_sentence(cell) for cell in row.cells if cell.model)
    if row.transcript.error:
        yield f"error: {row.transcript.error}"
    yield from row.remarks
    yield from sentences(row.differences)
    yield from (
        f"in the ledger, not in the transcript: {each}" for each in not_in_transcript([row])
    )
    yield from _outside(tool_uses(row.tools))


def _proofs(
    cells: Sequence[CellFindings], ranges: Sequence[RangeFindings], timelines: Timelines, room: int
) -> Iterator[dict[str, Any]]:
    """The probes of each cell and its end, and the end of each range."""
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
            "looked_for": texts_of(timelines.proofs.get(place, ()), room),
            "death": shown(death),
        }


def _entries(
    places: Sequence[str],
    cells: Sequence[CellFindings],
    source: RunSource,
    share: int,
    names: Mapping[str, str],
) -> tuple[list[list[Any]], dict[str, int]]:
    """The entries that fit into `share` bytes, in order, and the counts of the others.

    `names`: of cells, where several could be meant. Entries have one half, their bodies the rest.
    """
    own = {
        (cell.cell_id, operation.op)
        for cell in cells
        for operation in cell.operations.values()
        if operation.own and cell.probings  # without any probes, all of it is the run's own work
    }
    groups = {
        group: [
            (_ENTRY_BYTES + _page_bytes(each.what, each.outcome, *each.notes), each)
            for each in source.timelines.of(places, group)
            if (each.place, each.op) not in own
        ]
        for group in Group
    }
    left, kept, left_out = share // 2, list[TimelineEntry](), dict[str, int]()
    counts = source.timelines.counts(places)
    # The smallest first: no flood of one kind can crowd out what a guest did otherwise
    for number, group in enumerate(
        sorted(groups, key=lambda each: sum(n for n, _ in groups[each]))
    ):
        room, before = left // (len(groups) - number), len(kept)
        for size, entry in groups[group]:
            if size > room:
                break
            room, left = room - size, left - size
            kept.append(entry)
        if missing := counts[group] - (len(kept) - before):
            left_out[group.value] = missing
    left, made = left + share // 2, dict[int, list[Any]]()
    order = list(Group)
    for entry in sorted(kept, key=lambda each: (order.index(each.group), each.seq)):
        made[entry.seq] = _entry(entry, shown(names.get(entry.place, "")))
        for body, times in entry.bodies if left > 0 else ():
            found = _body(body, source, left)
            made[entry.seq][-1].append([*found, times])
            left -= _page_bytes(*found) + 16 * len(times)
    return [made[seq] for seq in _in_order(kept)], left_out


def _in_order(entries: Iterable[TimelineEntry]) -> list[int]:
    """Their numbers: the ledger's in its order, and a transcript's among them by time."""
    keys, latest = list[tuple[str, int]](), ""
    for entry in sorted(entries, key=lambda each: each.seq):
        if entry.group is Group.TRANSCRIPT:  # numbered downwards
            keys.append((entry.time, entry.seq))
        else:
            latest = max(latest, entry.time)
            keys.append((latest, entry.seq))
    return [seq for _, seq in sorted(keys, key=lambda key: (key[0], key[1] >= 0, abs(key[1])))]


def _page_bytes(*texts: str) -> int:
    """How many bytes they take in the page's JSON."""
    text = json.dumps(texts, ensure_ascii=False)
    return len(text.encode("utf-8", "replace")) + 5 * sum(map(text.count, "<>&"))


def _entry(entry: TimelineEntry, cell: str) -> list[Any]:
    """As `page.js` reads it; the last item is for the bodies that fit."""
    what = f"{cell}: {entry.what}" if cell else entry.what
    facts = (int(entry.is_bad), int(entry.by_guest), entry.notes, len(entry.bodies))
    texts = (entry.time[11:23], entry.group.value, what, entry.outcome)
    return [entry.seq, *texts, *facts, []]


def _body(body: BodyRef, source: RunSource, room: int) -> list[str]:
    """Its name, its beginning as text, and what of it is not here."""
    max_bytes = min(room, MAX_BODY_BYTES)
    try:
        content = source.read(body, max_bytes)
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
    text = shown(text, max_chars=max_bytes)
    if (size := _page_bytes(text)) > room:  # what is shown as numbers or escaped takes more
        text, note = text[: room * len(text) // size], f"the beginning of {note}"
    return [shown(body.name), text, note]
