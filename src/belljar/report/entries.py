"""Chooses the timeline entries of a sample that fit into its share of a page; cuts their bodies.

Pure. Each text of the result went through `timeline.shown`, or is JSON that `page.js` shows so.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from belljar.errors import LedgerError
from belljar.ledger.schema import BodyRef
from belljar.report.cells import CellFindings
from belljar.report.source import RunSource
from belljar.report.timeline import Group, TimelineEntry, shown
from belljar.units import format_size

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
    """Return how many bytes texts take in the page's JSON."""
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
