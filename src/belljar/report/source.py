"""What a run directory says beside its events: plans, host, versions; and a range as a graph. Pure.

Each text of the results went through `timeline.shown`.
"""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.errors import LedgerError
from belljar.ledger.schema import BodyRef
from belljar.ledger.verification import Status, Verification
from belljar.probe.model import Verdict
from belljar.report.cells import CellFindings
from belljar.report.left import Way
from belljar.report.ranges import RangeFindings
from belljar.report.samples import RunFindings
from belljar.report.timeline import Edges, Group, TimelineEntry, Timelines, shown
from belljar.units import format_size

MAX_LISTED: Final = 100  # reasons, remarks and the like, of the run and of each sample
MAX_LIST_CHARS: Final = 64 << 10  # of such a list; a sample's have a part of its share
_ROW, _TOP = 26, 34  # units of the drawing
# Of a name in the graph.
_MAX_CHARS: Final = 40
# Of a side of the graph: more can't be read, and a guest chooses its places.
_MAX_NODES: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
    """A run directory as far as it was read.

    `read`: the first so many bytes of a body; raises `OSError`, `LedgerError`. `plans`: by the
    digest of their policies. `host`, `versions`: of the files by these names. `alarm`: why nothing
    of it can be relied on.
    """

    verification: Verification
    read: Callable[[BodyRef, int], bytes]
    timelines: Timelines
    plans: Mapping[str, Mapping[str, Any]]
    host: Mapping[str, Any]
    versions: Mapping[str, Any]
    alarm: str = ""
    is_running: bool = False


def texts_of(values: Iterable[object], room: int = MAX_LIST_CHARS) -> list[str]:
    """Texts while there is room, the first always; then only their count."""
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


def tier_of(found: CellFindings) -> str:
    """A cell's tier, for a person."""
    return shown(found.tier) + (" (emulated)" if found.emulated else "")


def targets_of(findings: RunFindings, source: RunSource) -> list[dict[str, Any]]:
    """A plan's stand-ins, real hosts and host tools, with use counts."""
    found = list(_targets(findings, source))
    left = len(found) - MAX_LISTED
    more = {"kind": "…", "name": f"and {left} more", "uses": 0}
    return [*found[:MAX_LISTED], *([more] if left > 0 else [])]


def proves_unused(findings: RunFindings, source: RunSource) -> bool:
    """Return whether a use that isn't on record didn't happen: nothing of the evidence is missing.

    Neither of the record nor of any sample; a breach alone leaves the record whole.
    """
    reasons = (*findings.problems, *(each for row in findings.rows for each in row.reasons))
    is_whole = source.verification.status in {Status.VERIFIED, Status.PARTIAL}
    is_ended = is_whole and not (source.alarm or source.is_running)
    return is_ended and all(each.code.verdict is Verdict.BREACHED for each in reasons)


def _targets(findings: RunFindings, source: RunSource) -> Iterator[dict[str, Any]]:
    found = findings.left.destinations
    dialled = {use.name: use.calls for use in found if use.way is Way.UPSTREAM}
    for digest, plan in source.plans.items():
        network = _dict(plan.get("network"))
        for each in map(_dict, _list(network.get("stand_ins"))):
            names = ", ".join(map(str, _list(each.get("names"))))
            ports = ", ".join(str(_dict(port).get("number")) for port in _list(each.get("ports")))
            yield {
                "kind": shown(f"stand-in, {each.get('kind')}"),
                "name": shown(f"{each.get('id')}: {names}{' port ' if ports else ''}{ports}"),
                "uses": source.timelines.uses.get((digest, str(each.get("id"))), 0),
            }
        for each in map(_dict, _list(network.get("upstreams"))):
            host = str(each.get("host"))
            name = shown(f"{host}: {each.get('reason')}")
            yield {"kind": "REAL host", "name": name, "uses": dialled.get(host, 0)}
    called = Counter({use.name: use.calls for use in findings.tools if use.outside})
    allowed = (name for row in findings.rows for cell in row.cells for name in cell.host_tools)
    for name in dict.fromkeys(allowed):
        uses = called.total() if name == "*" else called[name]
        what = "any tool that acts outside of the cell" if name == "*" else shown(name)
        yield {"kind": "host tool", "name": what, "uses": uses}


def graph_of(found: RangeFindings, source: RunSource) -> dict[str, Any]:
    """Nodes with places in a drawing, edges, and the same as text."""
    timelines = source.timelines
    edges: Edges = timelines.edges.get(found.range_id) or Counter()
    digest = timelines.policies.get(found.range_id, "")
    plan = _dict(_dict(source.plans.get(digest)).get("network"))
    cells = list(dict.fromkeys((*found.cells.values(), *(cell for cell, _, _ in edges))))
    places = dict.fromkeys(
        str(each.get(name))
        for kind, name in (("stand_ins", "id"), ("upstreams", "host"))
        for each in map(_dict, _list(plan.get(kind)))
    )
    places |= dict.fromkeys(place for _, place, _ in edges)
    left = {name: _TOP + _ROW * at for at, name in enumerate(cells[:_MAX_NODES])}
    right = {name: _TOP + _ROW * at for at, name in enumerate([*places][:_MAX_NODES])}
    drawn = {edge: count for edge, count in edges.items() if edge[0] in left and edge[1] in right}
    used = {place for _, place, _ in drawn}
    return {
        "name": shown(found.range_id),
        "height": _TOP + _ROW * max(len(left), len(right), 1),
        "left": [(_short(name or "?"), y) for name, y in left.items()],
        "right": [(_short(name), y, name in used) for name, y in right.items()],
        "lines": [
            (left[cell], right[place], "allowed" if is_allowed else "refused", count)
            for (cell, place, is_allowed), count in drawn.items()
        ],
        "texts": [
            f"{shown(cell or 'an unknown sender')} → {shown(place)}: {count:,} "
            f"{'allowed' if is_allowed else 'refused'}"
            for (cell, place, is_allowed), count in edges.items()
        ],
        "left_out": max(0, len(cells) - len(left)) + max(0, len(places) - len(right)),
    }


def _short(name: str) -> str:
    return shown(name if len(name) <= _MAX_CHARS else f"{name[: _MAX_CHARS - 1]}…")


def plan_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The isolation that a plan promised."""
    room = MAX_LIST_CHARS // 8
    radius = _dict(plan.get("blast_radius"))
    layers = _list(plan.get("layers"))
    return {
        "name": shown(_dict(plan.get("policy")).get("name") or "unnamed")
        if plan
        else "whose plan can't be read",
        "tier": shown(plan.get("tier")) + (" (emulated)" if plan.get("emulated") is True else ""),
        "risk": shown(plan.get("risk")),
        "image": shown(_dict(plan.get("image")).get("name")),
        "layers": [
            [shown(layer.get(name), max_chars=600) for name in _OF_LAYER]
            for layer in map(_dict, layers[:MAX_LISTED])
        ],
        "layers_left_out": max(0, len(layers) - MAX_LISTED),
        "lists": {
            **{f"A cell can {word}": texts_of(_list(radius.get(word)), room) for word in _RADIUS},
            "Warnings of the plan": texts_of(_list(plan.get("warnings")), room),
        },
    }


_OF_LAYER: Final = ("name", "state", "what", "enforced_by")
_RADIUS: Final = ("read", "write", "reach", "consume")
_HOST: Final = (
    *("arch", "kernel_release", "distro_id", "distro_version", "cpu_model", "cpus"),
    "memory_total_mib",
)


def facts_of(source: RunSource) -> list[tuple[str, str]]:
    """Host and versions, by name."""
    timelines, host = source.timelines, source.host
    used = (*_list(host.get("runtimes")), *_list(host.get("tools")))
    versions = {str(each.get("name")): each.get("version") for each in map(_dict, used)}
    versions |= {**source.versions, **_dict(timelines.started.get("libraries"))}
    kvm = _dict(host.get("kvm")).get("state", "unknown")
    found = [
        ("first event", timelines.first_time),
        ("last event", timelines.last_time),
        *((name, shown(host[name])) for name in _HOST if name in host),
        ("hardware virtualisation", shown(kvm)),
        *((shown(name), shown(version)) for name, version in versions.items() if version),
    ]
    left = len(found) - MAX_LISTED
    return [*found[:MAX_LISTED], *([("…", f"and {left} more")] if left > 0 else [])]


# A run directory that was tampered with may hold anything in their places
def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


# --- the entries of a sample that fit into its share of a page


# A reader sees a page of it; the whole body is in the run directory.
MAX_BODY_BYTES: Final = 8 << 10
_ENTRY_BYTES: Final = 60  # of an entry without its texts, in JSON


def entries_of(
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
        if cell.is_own(operation)
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
        for body in entry.bodies if left > 0 else ():
            found = _body(body, source, left)
            made[entry.seq][-1].append(found)
            left -= _page_bytes(*found)
    return [made[seq] for seq in _in_order(kept)], left_out


def _in_order(entries: Iterable[TimelineEntry]) -> list[int]:
    """Entry numbers: the ledger's in its order, a transcript's among them by time."""
    keys, latest = list[tuple[str, int]](), ""
    for entry in sorted(entries, key=lambda each: each.seq):
        if entry.group is Group.TRANSCRIPT:  # numbered downwards
            keys.append((entry.time, entry.seq))
        else:
            latest = max(latest, entry.time)
            keys.append((latest, entry.seq))
    return [seq for _, seq in sorted(keys, key=lambda key: (key[0], key[1] >= 0, abs(key[1])))]


def _page_bytes(*texts: str) -> int:
    """Return the texts' size in the page's JSON."""
    text = json.dumps(texts, ensure_ascii=False)
    return len(text.encode("utf-8", "replace")) + 5 * sum(map(text.count, "<>&"))


def _entry(entry: TimelineEntry, cell: str) -> list[Any]:
    """An entry for `page.js`; its last item holds the bodies that fit."""
    what = f"{cell}: {entry.what}" if cell else entry.what
    facts = (int(entry.is_bad), int(entry.by_guest), entry.notes, len(entry.bodies))
    texts = (entry.time[11:23], entry.group.value, what, entry.outcome)
    return [entry.seq, *texts, *facts, []]


def _body(body: BodyRef, source: RunSource, room: int) -> list[str]:
    """A body's name, its beginning as text, and the missing parts."""
    max_bytes = min(room, MAX_BODY_BYTES)
    try:
        content = source.read(body, max_bytes)
    except (OSError, LedgerError) as error:
        # A purged or changed body must not hide the entries beside it.
        return [body.name, "", shown(f"it can't be read: {error}")]
    is_whole = len(content) >= body.kept_bytes
    # Cut in the middle of a character, its first bytes are left out
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    text = decoder.decode(content, final=is_whole).replace("\r\n", "\n")
    note = "" if is_whole else f"the first {format_size(len(content))} of "
    note += format_size(body.kept_bytes)
    if body.kept_bytes < body.total_bytes:
        note += f", kept of {format_size(body.total_bytes)}"
    text = shown(text, max_chars=max_bytes)
    if (size := _page_bytes(text)) > room:  # what is shown as numbers or escaped takes more
        text, note = text[: room * len(text) // size], f"the beginning of {note}"
    return [shown(body.name), text, note]
