"""Turns events and transcripts into bounded timelines. Pure.

Every text that leaves this module went through `shown`.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from itertools import islice
from typing import Any, Final, TypeAlias

from belljar.dataclass import dataclass
from belljar.events import Kind, Trust
from belljar.ledger.schema import BodyRef, Line
from belljar.report.reading import NO_NAME, BoundedCounter, ProbeTracker, times_of
from belljar.units import format_size, printable

# Entries of one group that are kept of a cell or range; later ones are counted.
MAX_ENTRIES: Final = 200
# Of one text of an entry, which may be a guest's 10 MB line.
MAX_TEXT_CHARS: Final = 2000
MAX_TURN_CHARS: Final = 4000  # of a message in the transcript
MAX_EDGES: Final = 40  # of a range's graph; the others are one
# Operations whose end is awaited; the oldest stays one without an end.
MAX_PENDING: Final = 10_000
# The place of what is no cell's and no range's.
RUN: Final = ""
MAX_NOTES: Final = 60  # lines that belong to one entry, such as headers
MAX_BODIES: Final = 16  # of one entry: a command that streams has one for each piece
# Of a network: cell, place, whether it was allowed.
Edges: TypeAlias = BoundedCounter[tuple[str, str, bool]]


class Group(StrEnum):
    TRANSCRIPT = "transcript"
    COMMAND = "command"
    REFUSAL = "refusal"
    REQUEST = "request"
    GUARD = "guard"
    DECOY = "decoy"
    MODEL = "model"
    FILE = "file"
    LIMIT = "limit"
    PROBE = "probe"
    CELL = "cell"


def shown(value: object, *, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Return `printable` text that keeps lines and tabs, for a page."""
    text = value if isinstance(value, str) else str(value)
    cut = f"… (+{len(text) - max_chars} characters)" if len(text) > max_chars else ""
    return "\n".join(map(_shown_line, text[:max_chars].split("\n"))) + cut


def _shown_line(line: str) -> str:
    # Nothing in printable ASCII acts or hides: that is most of what there is
    if line.isascii() and line.isprintable():
        return line
    return "\t".join(printable(part, max_chars=len(part)) for part in line.split("\t"))


def details(data: Mapping[str, Any]) -> str:
    """Return an event's main fields as text for a page."""
    words = (
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in data.items()
        if name not in _LEFT_OUT and value not in ("", None, [])
    )
    return shown(" ".join(words))


# Said elsewhere, or of no use to a reader.
_LEFT_OUT: Final = {
    *("op", "env_names", "env_sha256", "findings", "headers", "containment", "range", "checked"),
    *("stdin_times", "stdout_times", "stderr_times", "size_times", "digest", "counters"),
}


@dataclass(slots=True, kw_only=True)
class TimelineEntry:
    """One line of a timeline. `op`: its operation in the cell, or None."""

    seq: int
    time: str
    place: str
    group: Group
    what: str
    outcome: str = ""
    is_bad: bool = False
    by_guest: bool = False
    op: int | None = None
    is_terminal: bool = False
    notes: list[str] = field(default_factory=list)
    bodies: list[BodyRef] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Timelines:
    """The entries of each cell and range, event by event.

    `uses`: allowed exchanges by policy digest and stand-in.
    `edges`: a range's exchanges by cell, place and verdict. `policies`: digests by range.
    """

    uses: Counter[tuple[str, str]] = field(default_factory=Counter)
    edges: dict[str, Edges] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)
    started: dict[str, Any] = field(default_factory=dict)
    events: int = 0
    _counts: Counter[tuple[str, Group]] = field(default_factory=Counter)
    _kept: dict[tuple[str, Group], list[TimelineEntry]] = field(default_factory=dict)
    _pending: dict[tuple[str, str, Any], TimelineEntry] = field(default_factory=dict)
    _probes: ProbeTracker = field(default_factory=ProbeTracker)
    _base: int = 0

    def begin_ledger(self) -> None:
        """Number later events after these: they are another ledger's."""
        self._base = self.events

    def take(self, line: Line) -> None:
        """Take an event. Optional fields of another shape are shown as such."""
        if self._base:
            line = replace(line, seq=line.seq + self._base)
        self.events += 1
        self._probes.take(line)
        try:
            self._note(line)
            made = self._entry(line)
        # Fields beyond the schema of their kind aren't checked: one of another shape must not end
        # the report.
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"it can't be shown: {type(error).__name__}"
            made = _made(replace(line, data={}), Group.LIMIT, line.kind.value, why)
            made.place = place_of(line)
        if made is not None:
            self._keep(made)

    def take_transcript(self, uuid: str, turns: Iterable[tuple[str, str, str]]) -> None:
        """Take one sample's messages: ledger time, author and text."""
        about: dict[str, Any] = {"place": transcript_of(uuid), "group": Group.TRANSCRIPT}
        for number, (time, who, text) in enumerate(turns, 1):
            what, author = shown(text, max_chars=MAX_TURN_CHARS), shown(who, max_chars=100)
            self._keep(TimelineEntry(seq=-number, time=time, what=what, outcome=author, **about))

    def _keep(self, entry: TimelineEntry) -> None:
        key = entry.place, entry.group
        self._counts[key] += 1
        if self._counts[key] <= MAX_ENTRIES:
            self._kept.setdefault(key, []).append(entry)

    def counts(self, places: Iterable[str]) -> Counter[Group]:
        """Return how many entries each group has, kept or not."""
        found = Counter[Group]()
        for place in places:
            found.update({group: self._counts[place, group] for group in Group})
        return found

    def of(self, places: Iterable[str], group: Group) -> list[TimelineEntry]:
        kept = (entry for place in places for entry in self._kept.get((place, group), ()))
        return sorted(kept, key=lambda entry: entry.seq)

    def _note(self, line: Line) -> None:
        """Keep context for later events, and what isn't a timeline's line."""
        data = line.data
        match line.kind:
            case Kind.RUN_STARTED:
                self.started = self.started or data  # a fleet's own, not a unit's
            case Kind.CELL_PLANNED:
                self.policies.setdefault(str(data.get("range") or ""), str(data["policy_sha256"]))
            case kind if kind in EXCHANGES and not self._probes.is_probed(data.get("range")):
                place, stand_in = place_of(line), str(data.get("stand_in") or "")
                if count_edge(self.edges.setdefault(place, Edges()), line) and stand_in:
                    self.uses[self.policies.get(place, ""), stand_in] += 1
            case _:
                pass

    def _entry(self, line: Line) -> TimelineEntry | None:
        kind, data, place = line.kind, line.data, place_of(line)
        # A flow without an address stands for many, Belljar's own among them
        is_counted = kind is Kind.NETWORK_FLOW and not data["address"]
        is_packet = kind in (Kind.NETWORK_FLOW, Kind.NETWORK_DNS)
        if is_counted or (is_packet and self._probes.is_probed(data.get("range"))):
            return None
        name = next((each for each in ("op", "exchange", "request") if each in data), "")
        key = place, name, data.get(name)
        if kind in _STARTS and name:
            entry = _made(line, *_STARTS[kind], _CUT_OFF)
            self._pending[key] = entry
            if len(self._pending) > MAX_PENDING:
                del self._pending[next(iter(self._pending))]
            entry.op = data[name] if name == "op" else None
            entry.is_terminal = bool(data.get("pty"))
            return entry
        if kind in _ENDS and name:
            if (pending := self._pending.get(key)) is not None:
                _complete(pending, line)
                if kind not in (Kind.EXEC_OUTPUT, Kind.EXEC_INPUT):
                    del self._pending[key]
            return None
        if kind in _GROUPS:
            entry = _made(line, _GROUPS[kind], kind.value, "")
            entry.outcome = details(data)
            return entry if data.get("cause", True) else None
        is_quiet = kind in _ONLY_REFUSED and data["verdict"] == "allowed"
        if kind not in _EXCHANGES or is_quiet or data.get("phase") in _PARTS:
            return None  # a stream is shown when it ends: only then it has sizes
        return _made(line, *_EXCHANGES[kind])


def count_edge(edges: Edges, line: Line) -> bool:
    """Add an exchange to a graph; return whether it was allowed.

    A packet counts if it was refused and has an address; a stream when it is closed.
    """
    data = line.data
    is_allowed = data["verdict"] in ("allowed", "dialled")
    is_uncounted = line.kind is Kind.NETWORK_FLOW and (is_allowed or not data["address"])
    if data.get("phase") in _PARTS or is_uncounted:
        return False
    url = str(data.get("url") or "")
    named = url.split("/")[2] if url.count("/") > 1 else ""
    to = next(filter(None, map(data.get, ("stand_in", "host", "sni"))), named)
    cell = shown(data.get("cell") or "", max_chars=100)
    edge = (cell, shown(to or data.get("address") or "?", max_chars=200), is_allowed)
    edges.add(edge, ("", "others", is_allowed), MAX_EDGES, times_of(data))
    return is_allowed


def place_of(line: Line, otherwise: str = RUN) -> str:
    return line.cell or str(line.data.get("range") or otherwise)


def transcript_of(uuid: str) -> str:
    return f"transcript {uuid}"


class _Words(dict[str, Any]):
    """An event's data for a template; missing or null fields are empty."""

    def __missing__(self, key: str) -> str:
        return ""

    def __getitem__(self, key: str) -> str:
        value = super().__getitem__(key)
        if isinstance(value, list | tuple):
            words = map(str, value)
            return shlex.join(words) if key == "argv" else ", ".join(words)
        return "" if value is None else str(value)


def _filled(template: str, line: Line) -> str:
    text = template.format_map(_Words(line.data))
    return shown(text.removesuffix(": ").removesuffix(", ").rstrip(" "))


def _made(line: Line, group: Group, what: str, outcome: str) -> TimelineEntry:
    data = line.data
    by = f"{shown(data['cell'], max_chars=64)}: " if line.cell is None and "cell" in data else ""
    is_refused = data.get("verdict") in ("refused", "dropped") or data.get("answer") in NO_NAME
    is_good = data.get("verdict", "allowed") in ("allowed", "contained", "dialled")
    is_good = is_good and data.get("clean", True) and data.get("air_gapped", True)
    is_good = is_good and not (line.kind is Kind.CELL_REVERT_VERIFIED and data.get("found"))
    findings = [
        shown(": ".join(str(found[name]) for name in _OF_FINDING if name in found))
        for found in (data.get("findings") or ())[:MAX_NOTES]
    ]
    return TimelineEntry(
        seq=line.seq,
        time=line.time,
        place=place_of(line),
        group=Group.REFUSAL if is_refused else group,
        what=by + _filled(what, line),
        outcome=_filled("{verdict}: {reason}" if is_refused else outcome, line),
        is_bad=is_refused or group in _ALWAYS_BAD or not is_good,
        by_guest=line.trust is Trust.GUEST_REPORTED,
        notes=[*_headers(data, ">"), *findings],
        bodies=[*line.bodies[:MAX_BODIES]],
    )


def _complete(entry: TimelineEntry, line: Line) -> None:
    data = line.data
    if outcome := _filled(_ENDS[line.kind], line):
        entry.outcome = f"{entry.outcome}; {outcome}" if entry.is_bad else outcome
    is_failure = line.kind.value.endswith((".failed", ".timed_out"))
    entry.is_bad = entry.is_bad or is_failure or bool(data.get("code"))
    entry.by_guest = entry.by_guest or line.trust is Trust.GUEST_REPORTED
    entry.notes += _headers(data, "<")
    for stream in ("stdout", "stderr"):
        if dropped := data.get(f"{stream}_dropped_bytes"):
            entry.notes.append(f"{shown(dropped)} bytes of {stream} were dropped at the limit")
    for body in line.bodies:
        # What was typed in a terminal may be a password.
        if body.name == "stdin" and entry.is_terminal:
            entry.notes.append(f"{format_size(body.total_bytes)} typed: not shown")
        else:
            entry.bodies.append(body)
    del entry.bodies[MAX_BODIES:]


def _headers(data: Mapping[str, Any], mark: str) -> list[str]:
    return [
        f"{mark} {shown(name, max_chars=200)}: {shown(value, max_chars=500)}"
        for name, value in islice(data.get("headers") or (), MAX_NOTES)
    ]


# Of a probe's finding or of an air gap's check: each has some of these.
_OF_FINDING: Final = ("name", "verdict", "seen", "state", "evidence")
# What a graph of a range counts: attempts at a place, let through or not. A look-up reaches none.
EXCHANGES: Final = (
    *(Kind.NETWORK_HTTP, Kind.NETWORK_STREAM, Kind.NETWORK_TLS),
    *(Kind.NETWORK_FLOW, Kind.NETWORK_UPSTREAM),
)
_CUT_OFF: Final = "its end is not on record"
_PARTS: Final = ("opened", "data")  # Of a stream, whose end has an event of all of it.
# Allowed ones have entries of their own, as requests.
_ONLY_REFUSED: Final = (Kind.NETWORK_FLOW, Kind.NETWORK_TLS)
# Groups of which each entry is marked, whatever its outcome.
_ALWAYS_BAD: Final = (Group.LIMIT, Group.DECOY, Group.GUARD)
# Templates over an event's data. An operation's start and its end are one entry.
_STARTS: Final[Mapping[Kind, tuple[Group, str]]] = {
    Kind.EXEC_STARTED: (Group.COMMAND, "{argv}"),
    Kind.FILE_READ_STARTED: (Group.FILE, "read {path}"),
    Kind.FILE_WRITE_STARTED: (Group.FILE, "write {path}, {bytes} B"),
    Kind.FILES_STARTED: (Group.FILE, "{action} {path}"),
    Kind.CONNECT_STARTED: (Group.REQUEST, "connection to {target} {name} in the cell"),
    Kind.NETWORK_HTTP: (Group.REQUEST, "{method} {url}"),
    Kind.MODEL_REQUEST_STARTED: (Group.MODEL, "{path}, {bytes} B"),
}
_ENDS: Final[Mapping[Kind, str]] = {
    # Pieces of a stream are bodies of the command's entry, without words of their own.
    **dict.fromkeys((Kind.EXEC_OUTPUT, Kind.EXEC_INPUT), ""),
    Kind.EXEC_COMPLETED: "{status} {code}, {duration_ms} ms",
    Kind.EXEC_TIMED_OUT: "timed out after {timeout_s} s",
    Kind.FILE_READ_COMPLETED: "{bytes} B",
    Kind.FILE_WRITE_COMPLETED: "done",
    Kind.FILES_COMPLETED: "{entries} entries",
    Kind.CONNECT_COMPLETED: "{sent_bytes} B sent, {received_bytes} B received",
    Kind.NETWORK_HTTP_ANSWERED: "{status}, {bytes} B from {stand_in}",
    Kind.MODEL_REQUEST_COMPLETED: "{status}, {prompt_tokens} → {completion_tokens} tokens",
    **dict.fromkeys(
        (
            *(Kind.EXEC_FAILED, Kind.FILE_READ_FAILED, Kind.FILE_WRITE_FAILED),
            *(Kind.FILES_FAILED, Kind.CONNECT_FAILED, Kind.MODEL_REQUEST_FAILED),
        ),
        "failed: {reason}",
    ),
}
_REFUSED: Final = "{verdict}: {reason}"
# Exchanges that are an entry each: what was tried, and what came of it.
_EXCHANGES: Final[Mapping[Kind, tuple[Group, str, str]]] = {
    Kind.NETWORK_FLOW: (Group.REFUSAL, "{protocol} to {address}:{port} {name} ×{count}", _REFUSED),
    Kind.NETWORK_DNS: (Group.REQUEST, "look up {name} {type}", "{answer}"),
    Kind.NETWORK_TLS: (Group.REFUSAL, "TLS to {sni} {address}:{port}", _REFUSED),
    Kind.NETWORK_STREAM: (Group.REQUEST, "TCP to {address}:{port}", "{bytes} B to {stand_in}"),
    Kind.NETWORK_WEBSOCKET: (Group.REQUEST, "WebSocket {direction}, {bytes} B", "{stand_in}"),
    Kind.NETWORK_ATTEMPT: (Group.REQUEST, "{what}", "{stand_in}"),
    Kind.NETWORK_UPSTREAM: (
        Group.REQUEST,
        "REAL network: {host}:{port} {address}",
        "{verdict}: {problem}",
    ),
}
# Rare kinds, which are told by their name and fields.
_RARE: Final[Mapping[Group, str]] = {
    Group.PROBE: "probe.completed air_gap.checked",
    Group.LIMIT: "limit.hit cell.checked cell.failed range.failed protocol.violation "
    "kill.triggered kill.completed policy.refused air_gap.changed",
    Group.DECOY: "decoy.failed decoy.touched decoy.taken decoy.used decoy.sent decoy.carried "
    "sensor.failed",
    Group.GUARD: "guard.hit guard.unscanned",
    Group.MODEL: "model.called",
    Group.CELL: "cell.reverting cell.reverted cell.revert_verified cell.snapshot cell.forked "
    "cell.destroyed range.destroyed",
}
_GROUPS: Final = {Kind(name): group for group, names in _RARE.items() for name in names.split()}
