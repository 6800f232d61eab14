"""Makes one HTML page of a run, which loads nothing and runs only its own script. Pure.

`page.html` has the words; this module chooses what fits.
Three walls stand between a guest's text and a browser: `timeline.shown`;
Jinja's or JSON's escape; and a Content-Security-Policy with digests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from belljar.dataclass import dataclass
from belljar.differences import sentences
from belljar.errors import LedgerError
from belljar.ledger.schema import BodyRef
from belljar.ledger.verification import Status, Verification
from belljar.probe.model import Verdict
from belljar.report import samples
from belljar.report.cells import CellFindings
from belljar.report.left import Way
from belljar.report.ranges import RangeFindings
from belljar.report.reasons import Reason
from belljar.report.signals import Blind, SignalCode
from belljar.report.timeline import RUN, Group, TimelineEntry, Timelines, shown, transcript_of
from belljar.units import format_duration, format_size

_HERE: Final = Path(__file__).parent
MAX_LISTED: Final = 100  # reasons, remarks and the like, of the run and of each sample
MAX_LIST_CHARS: Final = 64 << 10  # of such a list; a sample's have a part of its share
# Of a side of a range's graph: more can't be read, and a guest chooses its places.
_MAX_NODES: Final = 60
# Of all timelines with their bodies; each sample has an equal share.
MAX_DETAIL_BYTES: Final = 10 << 20
# Of a sample's details in the page, which a browser opens whole.
MAX_SAMPLE_BYTES: Final = 2 << 20
MAX_UNITS: Final = 2000  # samples, and cells and ranges of none
MAX_CELLS: Final = 20  # of a sample, whose probes and proofs are shown
# A reader sees a page of it; the whole body is in the run directory.
MAX_BODY_BYTES: Final = 8 << 10
_ENTRY_BYTES: Final = 60  # of an entry without its texts, in JSON
_MAX_ESCAPE: Final = 6  # bytes of JSON for one of a body: `<` is `\u003c`


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
    """`read` returns the first so many bytes of a body; it raises `OSError`, `LedgerError`.

    `plans` are by the digest of their policies. `alarm` says why nothing can be relied on.
    """

    verification: Verification
    read: Callable[[BodyRef, int], bytes]
    timelines: Timelines
    plans: Mapping[str, Mapping[str, Any]]
    host: Mapping[str, Any]
    versions: Mapping[str, Any]
    alarm: str = ""
    is_running: bool = False


def render(report: Mapping[str, Any]) -> bytes:
    """Return the page of `page_facts`. The same report gives the same bytes."""
    style, script = ((_HERE / name).read_text() for name in ("page.css", "page.js"))
    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(_HERE),
        # A fact that is missing fails the page: an empty place would read as nothing to report.
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Jinja's `tojson` escapes the characters of markup: no text can end a script element.
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    filters = {"size": format_size, "duration": format_duration, "texts": texts_of}
    environment.filters |= {**filters, "quote": lambda text: shlex.quote(shown(text))}
    page = environment.get_template("page.html").render(
        report=report,
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        # The page loads nothing and sends nothing, whatever a run's texts get it to do.
        policy=f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'",
    )
    return page.encode()


def _visible(value: object) -> object:
    return value if isinstance(value, Markup | int | float) else shown(value)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def texts_of(values: Iterable[object], room: int = MAX_LIST_CHARS) -> list[str]:
    """Return texts while there is room; then only their count."""
    found, kept = list(values), list[str]()
    for each in found[:MAX_LISTED]:
        text = shown(each)
        room -= len(text)
        # At least one is shown, so that no list of reasons looks empty.
        if kept and room < 0:
            break
        kept.append(text)
    left = len(found) - len(kept)
    return [*kept, *([f"… and {left} more: belljar verdict RUN --json"] if left else [])]


def page_facts(findings: samples.RunFindings, source: RunSource) -> dict[str, Any]:
    facts, verification = samples.collect(findings), source.verification
    chosen, units_left_out = _units(findings, facts, source)
    share = min(MAX_SAMPLE_BYTES, MAX_DETAIL_BYTES // max(1, len(chosen)))
    units = [_unit(kind, row, found, source, share) for kind, row, found in chosen]
    counts = Counter(each["verdict"] for each in facts["samples"])
    signals = Counter(each["code"] for found in facts["samples"] for each in found["signals"])
    timelines = source.timelines
    return facts | {
        "run_id": findings.run_id or verification.run_id or "unknown",
        "command": shlex.join(map(str, timelines.started.get("argv", ()))),
        "alarm": source.alarm,
        "is_running": source.is_running,
        "verdicts": {verdict.value: counts[verdict.value] for verdict in Verdict},
        "signals": [(code, SignalCode(code).text, count) for code, count in signals.most_common()],
        "missing": _missing(findings, units),
        # Tools that acted outside of a cell acted on this host
        "left_host": [*facts["left_this_host"]["lines"], *_outside(facts["tools"])],
        "targets": _targets(findings, source),
        "proves_unused": _proves_unused(findings, source),
        "plans": [_plan(each) for each in source.plans.values()],
        "units": units,
        "units_left_out": units_left_out,
        "facts": _host_facts(source),
        "verification": verification,
    }


def _outside(uses: Iterable[Mapping[str, Any]]) -> list[str]:
    return [
        f"tool {use['name']}: {use['calls']} call(s) outside of the cell: {use['outside']}"
        for use in uses
        if use["outside"]
    ]


def _missing(
    findings: samples.RunFindings, units: Sequence[Mapping[str, Any]]
) -> list[tuple[str, int | None]]:
    found = (texts_of(unit["missing"]) for unit in units if unit["kind"] == "sample")
    each = Counter(text for texts in found for text in dict.fromkeys(texts))
    problems = texts_of(dict.fromkeys(map(str, findings.problems)))
    known = [(text, None) for text in problems if text not in each]
    return [*known, *each.most_common(MAX_LISTED)]


# --- what was allowed, planned and found on the host


def _places(plan: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    found = list[tuple[str, str, str]]()
    try:
        network = plan["network"] or {"stand_ins": (), "upstreams": ()}
        for each in network["stand_ins"]:
            ports = " ".join(str(port["number"]) for port in each["ports"])
            name = f"{each['id']}: {', '.join(each['names'])} {ports}"
            found.append((f"stand-in, {each['kind']}", str(each["id"]), name))
        for each in network["upstreams"]:
            found.append(("REAL host", str(each["host"]), f"{each['host']}: {each['reason']}"))
    except (KeyError, TypeError):
        return []  # not as Belljar wrote it: `_plan` says so
    return found


def _targets(findings: samples.RunFindings, source: RunSource) -> list[tuple[str, str, int]]:
    uses, found = source.timelines.uses, list[tuple[str, str, int]]()
    left = findings.left.destinations
    dialled = {use.name: use.calls for use in left if use.way is Way.UPSTREAM}
    for digest, plan in source.plans.items():
        for kind, key, name in _places(plan):
            count = dialled.get(key, 0) if kind == "REAL host" else uses[digest, key]
            found.append((kind, name, count))
    called = Counter({use.name: use.calls for use in findings.tools if use.outside})
    allowed = (name for row in findings.rows for cell in row.cells for name in cell.host_tools)
    for name in dict.fromkeys(allowed):
        found.append(("host tool", name, called.total() if name == "*" else called[name]))
    more = len(found) - MAX_LISTED
    return [*found[:MAX_LISTED], *([("…", f"and {more} more", 0)] if more > 0 else [])]


def _proves_unused(findings: samples.RunFindings, source: RunSource) -> bool:
    """Return whether a use that isn't on record didn't happen.

    A breach alone leaves the record whole.
    """
    reasons = (*findings.problems, *(each for row in findings.rows for each in row.reasons))
    is_whole = source.verification.status in {Status.VERIFIED, Status.PARTIAL}
    is_ended = is_whole and not (source.alarm or source.is_running)
    return is_ended and all(each.code.verdict is Verdict.BREACHED for each in reasons)


def _plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    columns = ("name", "state", "what", "enforced_by")
    radius = ("read", "write", "reach", "consume")
    try:
        lists = {f"A cell can {word}": list(plan["blast_radius"][word]) for word in radius}
        return {
            "title": f"{plan['policy']['name'] or 'unnamed'}: risk {plan['risk']}, {plan['tier']}"
            f"{' (emulated)' * bool(plan['emulated'])}, image {plan['image']['name']}",
            "layers": [[each[name] for name in columns] for each in plan["layers"]][:MAX_LISTED],
            "lists": {**lists, "Warnings of the plan": list(plan["warnings"])},
        }
    # A run directory that was tampered with, or an older version's, may hold anything
    except (KeyError, TypeError):
        return {"title": "whose plan can't be read", "layers": [], "lists": {}}


_HOST: Final = ("arch", "kernel_release", "cpu_model", "cpus", "memory_total_mib")


def _host_facts(source: RunSource) -> list[tuple[str, object]]:
    host = source.host
    found: dict[str, object] = {name: host[name] for name in _HOST if name in host}
    try:
        found["hardware virtualisation"] = host["kvm"]["state"]
        used = (*host["runtimes"], *host["tools"])
        found |= {str(each["name"]): each["version"] for each in used if each["version"]}
    except (KeyError, TypeError):
        pass  # as in `_plan`
    return [*(found | dict(source.versions)).items()][:MAX_LISTED]


# --- samples, and what belongs to none


def _units(
    findings: samples.RunFindings, facts: Mapping[str, Any], source: RunSource
) -> tuple[list[tuple[str, samples.Row, Mapping[str, Any]]], int]:
    """Return the units of the page, the worst first; and the number of others."""
    units = [
        ("sample", row, found) for row, found in zip(findings.rows, facts["samples"], strict=True)
    ]

    def add(kind: str, name: str, reasons: Sequence[Reason], **parts: Any) -> None:  # noqa: ANN401
        transcript = samples.Transcript(task="", sample=name, epoch=1, uuid="")
        row = samples.Row(transcript=transcript, reasons=tuple(reasons), **parts)
        units.append((kind, row, samples.sample_facts(row)))

    if any(source.timelines.counts([RUN]).values()):
        add("run", "the run itself", findings.problems)
    for cell in (*findings.models, *findings.strays):
        is_model = cell.model is not None
        reasons = cell.reasons if is_model else cell.end_reasons
        name = cell.model.name if cell.model else cell.cell_id
        add("model cell" if is_model else "cell", name, reasons, cells=(cell,))
    for each in findings.stray_ranges:
        add("range", each.range_id, each.end_reasons, ranges=(each,))
    severity = [Verdict.BREACHED, Verdict.VOID, Verdict.CONTAINED]
    kept = sorted(units, key=lambda unit: severity.index(unit[1].verdict))[:MAX_UNITS]
    return kept, len(units) - len(kept)


def _unit(
    kind: str, row: samples.Row, found: Mapping[str, Any], source: RunSource, share: int
) -> dict[str, Any]:
    cells, ranges, timelines = row.cells, row.ranges, source.timelines
    places = [*(cell.cell_id for cell in cells), *(each.range_id for each in ranges)]
    places += [transcript_of(row.transcript.uuid)] if kind == "sample" else []
    places += [RUN] if kind == "run" else []
    counts = timelines.counts(places)
    names = {cell: name for each in ranges for cell, name in each.cells.items()}
    entries, left_out = _entries(places, cells, source, share, names if len(cells) > 1 else {})
    blind = (f"{Blind(each['code']).text}: {each['detail']}" for each in found["signals_blind"])
    return {
        **found,
        "kind": kind,
        "missing": [*(str(reason) for reason in row.reasons), *blind],
        "remarks": [
            *(samples.model_sentence(cell) for cell in cells if cell.model),
            *([f"error: {row.transcript.error}"] if row.transcript.error else []),
            *(*row.remarks, *sentences(row.differences), *_outside(found["tools"])),
        ],
        "room": share // 16,  # so that several lists of texts leave most of it to entries
        "commands": found["commands"] if kind == "sample" else counts[Group.COMMAND],
        "requests": sum(each.requests for each in ranges)
        + sum(cell.model.requests for cell in cells if cell.model),
        "refusals": counts[Group.REFUSAL],
        "is_destroyed": all(each.is_proven for each in (*cells, *ranges)),
        # Those whose end is in doubt first
        "proofs": sorted((*cells, *ranges), key=lambda each: each.is_proven)[:MAX_CELLS],
        "graphs": [_graph(each, source) for each in ranges[:MAX_CELLS]],
        "entries": entries,
        "left_out": left_out,
    }


def _graph(found: RangeFindings, source: RunSource) -> dict[str, Any]:
    timelines = source.timelines
    edges = {**timelines.edges.get(found.range_id, {})}
    plan = source.plans.get(timelines.policies.get(found.range_id, ""), {})
    names = (*found.cells.values(), *(cell for cell, _, _ in edges))
    used = dict.fromkeys(place for _, place, _ in edges)
    planned = (key for _, key, _ in _places(plan))
    return {
        "range": found.range_id,
        "cells": [*dict.fromkeys(names)][:_MAX_NODES],
        "places": [*dict.fromkeys((*planned, *used))][:_MAX_NODES],
        "used": used,
        "edges": [(*edge, count) for edge, count in edges.items()],
    }


# --- the entries of a sample that fit into its share of a page


def _entries(
    places: Sequence[str],
    cells: Sequence[CellFindings],
    source: RunSource,
    share: int,
    names: Mapping[str, str],
) -> tuple[list[list[Any]], dict[str, int]]:
    """Return the entries that fit into `share` bytes, and the counts of the others.

    `names`: of cells, where several could be meant.
    """
    own = {
        (cell.cell_id, operation.op)
        for cell in cells
        for operation in cell.operations.values()
        if cell.is_own(operation)
    }
    timelines = source.timelines
    groups = [
        [each for each in timelines.of(places, group) if (each.place, each.op) not in own]
        for group in Group
    ]
    left, kept, left_out = share // 2, list[TimelineEntry](), timelines.counts(places)
    # In turn of each kind: no flood of one can crowd out what a guest did otherwise
    for entry in filter(None, chain.from_iterable(zip_longest(*groups))):
        size = _ENTRY_BYTES + _page_bytes(entry.what, entry.outcome, *entry.notes)
        if size <= left:
            left -= size
            kept.append(entry)
            left_out[entry.group] -= 1
    left += share // 2
    # Inspect's numbers are negative; of one time the transcript's come first
    kept.sort(key=lambda each: (each.time, each.seq >= 0, abs(each.seq)))
    made = list[list[Any]]()
    for entry in kept:
        what = f"{names[entry.place]}: {entry.what}" if entry.place in names else entry.what
        bodies = list[list[str]]()
        for body in entry.bodies if left > 0 else ():
            bodies.append(_body(body, source, left))
            left -= _page_bytes(*bodies[-1])
        texts = (entry.time[11:23], entry.group.value, shown(what), entry.outcome)
        flags = (int(entry.is_bad), int(entry.by_guest))
        made.append([entry.seq, *texts, *flags, entry.notes, len(entry.bodies), bodies])
    return made, {group.value: count for group, count in left_out.items() if count}


def _page_bytes(*texts: str) -> int:
    text = json.dumps(texts, ensure_ascii=False)
    return len(text.encode("utf-8", "replace")) + 5 * sum(map(text.count, "<>&'"))


def _body(body: BodyRef, source: RunSource, room: int) -> list[str]:
    """Return name, beginning as text, and how much of it that is."""
    try:
        content = source.read(body, min(room // _MAX_ESCAPE, MAX_BODY_BYTES))
    except (OSError, LedgerError) as error:
        # A purged or changed body must not hide the entries beside it.
        return [body.name, "", shown(f"it can't be read: {error}")]
    text = content.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    note = f"{format_size(len(content))} of {format_size(body.total_bytes)}"
    return [shown(body.name), shown(text, max_chars=len(text)), note]
