"""The recorder of a cell or range that scans in a thread what it has recorded."""

from __future__ import annotations

import secrets
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import anyio.to_thread

from belljar.dataclass import dataclass, replace
from belljar.errors import BelljarError, PolicyError
from belljar.events import Event, Kind, Recorder
from belljar.policy.guarding import Action, GuardRules
from belljar.signals.observe import (
    MIN_SCANNED_BYTES,
    Carried,
    ServiceContacts,
    carried,
    event_of,
    hit_event,
    unscanned,
)
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy.loaded import LoadedPolicy
    from belljar.signals.decoys import Minted
    from belljar.signals.scanner import Scanner
    from belljar.signals.streams import StreamScanner
    from belljar.signals.values import Hit, KnownValue, ScanSpec

_Key = TypeVar("_Key")

# Waiting for a scan; what exceeds it is recorded as not scanned.
MAX_QUEUED_BYTES: Final = 64 << 20
# Added for each waiting part, so that many small events don't fill the memory.
PART_OVERHEAD_BYTES: Final = 1 << 10
# For the last scans, at the end of a cell.
DRAIN_TIMEOUT_S: Final = 30.0
# Values of the run's other cells that one cell's guard looks for: the newest.
MAX_FOREIGN: Final = 20_000
# Hits that wait for the gateway's own report; more are reported at once.
MAX_HELD: Final = 10_000
# Events of one value in one operation; after that each power of two.
MAX_SAME: Final = 20
# Values that are counted, and hits that the gateway reported: a guest chooses how many there
# are. Those seen longest ago go; what is seen again then is on record again.
MAX_COUNTED: Final = 10_000

# Of one piece: how often it is looked at again, and of how many finds other copies are taken out.
MAX_REDACTIONS: Final = 4
MAX_COPIED: Final = 64

REDACTED: Final = b"[redacted]"
WITHHELD: Final = b"[withheld: it could not be scanned]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _EventJob:
    parts: tuple[Carried, ...]
    cell_id: str | None
    evidence: int

    @property
    def size_bytes(self) -> int:
        return sum(len(part.data) + PART_OVERHEAD_BYTES for part in self.parts)


class GuardedRecorder:
    """Records, then scans. It is thread-safe."""

    def __init__(
        self,
        inner: Recorder,
        rules: GuardRules,
        key: bytes,
        values: Iterable[KnownValue] = (),
        upstreams: frozenset[str] = frozenset(),
    ) -> None:
        self.rules = rules
        self._inner, self._key = inner, key
        self._values, self._upstreams = tuple(values), upstreams
        self._lock = threading.Lock()
        self._queued_bytes, self._is_closed = 0, False
        self._waiting: dict[int, tuple[Future[None], _EventJob]] = {}  # by the event's number
        self._thread = ThreadPoolExecutor(1, "guard")  # made when something is to be scanned
        self._scanners: tuple[Scanner, StreamScanner] | None = None
        self._seen: dict[tuple[str, str, str], int] = {}
        self._told: dict[str, int] = {}  # what the gateway reported
        self._held: dict[str, tuple[tuple[str, str, str], Event]] = {}
        self.passed: dict[bytes, bytes | None] = {}  # Of each text sent to a model; None: all.
        self.services: tuple[Minted, ...] = ()  # The range's decoy services.
        self.service_addresses: Mapping[str, str] = {}  # Where they are: address → id.
        self.ancestors: tuple[str, ...] = ()  # Cells that were reverted to this one.
        self._contacts: ServiceContacts | None = None
        self._reports_touches = False

    def record(self, event: Event) -> int:
        number = self._inner.record(event)
        if event.kind is Kind.GUARD_HIT:
            told = _told(event.data)
            with self._lock:
                _count(self._told, told)
                self._held.pop(told, None)
        contacts = self._contacts
        if contacts is not None:
            if self._reports_touches:
                with self._lock:
                    touch = contacts.touched(event, number)
                if touch is not None:
                    self._record_counted((str(touch.data["decoy"]), "connect", ""), touch)
            if contacts.records_itself(event):
                return number
        if parts := tuple(carried(event, self._upstreams)):
            self._submit(_EventJob(parts=parts, cell_id=event.cell_id, evidence=number))
        return number

    def know(self, values: Iterable[KnownValue]) -> None:
        with self._lock:
            self._values = (*self._values, *values)
            self._sort_values()

    def adopt(self, cells: Iterable[str]) -> None:
        """Treat these cells' decoy values as this cell's own."""
        with self._lock:
            self.ancestors = tuple(dict.fromkeys((*self.ancestors, *cells)))[-MAX_FOREIGN:]
            self._sort_values()

    def _sort_values(self) -> None:
        from belljar.signals.values import KnownValue, ValueSource

        own, foreign, ancestors = list[KnownValue](), list[KnownValue](), frozenset(self.ancestors)
        for value in self._values:
            cell, _, name = value.id.partition("/")
            if value.source is not ValueSource.FOREIGN:
                own.append(value)
            elif cell in ancestors:
                own.append(replace(value, id=name, source=ValueSource.DECOY))
            else:
                foreign.append(value)
        self._values = (*own, *foreign[-MAX_FOREIGN:])
        self._scanners = None

    @contextmanager
    def reporting_services(self) -> Iterator[None]:
        """Report what reaches the range's decoy services during the block."""
        encrypted = {item.id for item in self.services if item.kind == "ssh"}
        self._contacts = ServiceContacts(self.service_addresses, encrypted)
        self._reports_touches = True
        try:
            yield
        finally:  # later events are still theirs: the gateway ends after the cells
            self._reports_touches = False

    def let_out(self, part: Carried, *, cell_id: str | None) -> bytes | None:
        """Return what the policy's action lets out, None for a stop. It blocks.

        Hits are on record by then. Only `flag` lets out what could not be scanned whole.
        """
        action = self.rules.action(part.place)
        scanner, _ = self.scanners()
        scanned = scanner.scan(part.data)
        for hit in scanned.hits:
            self._inner.record(hit_event(part, hit, cell_id=cell_id, action=action))
        is_whole = scanned.complete and not part.missing_bytes
        if not is_whole:
            reason = scanned.problem or "it is too large to be scanned whole"
            self._inner.record(unscanned(part, cell_id=cell_id, evidence=None, reason=reason))
        if action is Action.FLAG or (is_whole and not scanned.hits):
            return part.data
        if action is Action.STOP and scanned.hits:
            return None
        return _redacted(scanner, part.data, scanned.hits) if is_whole else WITHHELD

    @property
    def spec(self) -> ScanSpec:
        from belljar.signals.values import ScanSpec

        return ScanSpec(values=self._values, classes=self.rules.classes, key_hex=self._key.hex())

    def flush(self, timeout_s: float = DRAIN_TIMEOUT_S) -> bool:
        """Wait until all records are scanned; return False on timeout."""
        with self._lock:
            waiting = [future for future, _ in self._waiting.values()]
        return not wait(waiting, timeout_s).not_done

    def close(self) -> None:
        """Wait until all is scanned, or recorded as not scanned."""
        with self._lock:
            self._is_closed = True
        try:
            self.flush(DRAIN_TIMEOUT_S)
        finally:  # an interrupted process waits for this thread at its end
            self._thread.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            late = [job for _, job in self._waiting.values()]
        for each in late:
            self._report_unscanned(each, "the cell ended before it was scanned", *each.parts)
        with self._lock:
            held = list(self._held.values())
        for key, event in held:  # the range ended before its gateway had looked
            self._record_counted(key, event)

    def _submit(self, job: _EventJob) -> None:
        with self._lock:
            is_late = self._is_closed
            is_full = self._queued_bytes + job.size_bytes > MAX_QUEUED_BYTES
            if not (is_late or is_full):
                self._queued_bytes += job.size_bytes
                self._waiting[job.evidence] = (self._thread.submit(self._work, job), job)
        if is_late or is_full:
            reason = "the guard had ended" if is_late else "too much waits to be scanned"
            self._report_unscanned(job, reason, *job.parts)

    def _work(self, job: _EventJob) -> None:
        try:
            self._scan(job)
        except Exception as error:  # noqa: BLE001
            # What is not scanned is on record, whatever the reason. A ledger that takes no more
            # fails the run at its next event.
            with suppress(BelljarError):
                reason = f"the scan failed: {type(error).__name__}"
                self._report_unscanned(job, reason, *job.parts)
        finally:
            with self._lock:
                del self._waiting[job.evidence]
                self._queued_bytes -= job.size_bytes

    def _scan(self, job: _EventJob) -> None:
        _, streams = self.scanners()
        for part in job.parts:
            scanned = streams.feed(part.flow, part.channel, part.part, part.data)
            known = {hit.digest for hit in scanned.hits if hit.value_id}
            for hit in scanned.hits:
                # A known value often has a credential's shape, too: that is no second finding.
                if hit.value_id or hit.digest not in known:
                    self._report(part, hit, job)
            if part.missing_bytes:
                self._report_unscanned(job, "more was sent than is kept", part)
            if not scanned.complete:
                self._report_unscanned(job, scanned.problem, replace(part, missing_bytes=0))

    def scanners(self) -> tuple[Scanner, StreamScanner]:
        """Make them on first use. Raise `MemoryError`, `ValueError`."""
        from belljar.signals.scanner import Scanner
        from belljar.signals.streams import StreamScanner

        with self._lock:
            if self._scanners is None:
                scanner = Scanner(self.spec)
                self._scanners = scanner, StreamScanner(scanner)
            return self._scanners

    def _report(self, part: Carried, hit: Hit, job: _EventJob) -> None:
        from belljar.signals.values import ValueSource

        action = self.rules.action(part.place)
        is_known = hit.source in {ValueSource.DECOY, ValueSource.FOREIGN}
        done = action if action is Action.STOP else Action.FLAG
        event = event_of(part, hit, cell_id=job.cell_id, evidence=job.evidence, action=done)
        key = (hit.value_id or hit.digest, part.operation, part.to)
        if part.is_scanned_first and action is not Action.FLAG and not is_known:
            # The gateway reports what it did. If it says nothing until the end, this does.
            with self._lock:
                told = _told({**event.data, "action": action.value})
                is_told = told in self._told
                is_held = not is_told and (told in self._held or len(self._held) < MAX_HELD)
                if is_held:
                    self._held.setdefault(told, (key, event))
            if is_told or is_held:
                return
        self._record_counted(key, event)

    def _record_counted(self, key: tuple[str, str, str], event: Event) -> None:
        """Record the key's first events, then powers of two."""
        with self._lock:
            count = _count(self._seen, key)
        if count <= MAX_SAME or not count & (count - 1):
            self._inner.record(
                event if count == 1 else replace(event, data={**event.data, "count": count})
            )

    def _report_unscanned(self, job: _EventJob, reason: str, *parts: Carried) -> None:
        for part in parts:
            self._inner.record(
                unscanned(part, cell_id=job.cell_id, evidence=job.evidence, reason=reason)
            )


def _redacted(scanner: Scanner, data: bytes, hits: tuple[Hit, ...]) -> bytes:
    """Return the data without the finds, or `WITHHELD`."""
    for _ in range(MAX_REDACTIONS):
        encoded = dict.fromkeys(data[hit.start : hit.end] for hit in hits if hit.decoding)
        data = scanner.replace(data, hits, REDACTED)
        for copy in [text for text in encoded if len(text) >= MIN_SCANNED_BYTES][:MAX_COPIED]:
            data = data.replace(copy, REDACTED)
        left = scanner.scan(data)
        if not left.complete:
            break
        if not left.hits:
            return data
        hits = left.hits
    return WITHHELD


def _told(data: Mapping[str, object]) -> str:
    # A gateway that was taken over may tell of a hit as another one: that is no word of this one
    names = ("digest", "place", "action", "class", "value")
    return " ".join(str(data.get(name))[:100] for name in names)


def _count(counts: dict[_Key, int], key: _Key) -> int:
    """Count it among the last `MAX_COUNTED`; return its count."""
    counts[key] = counts.pop(key, 0) + 1
    if len(counts) > MAX_COUNTED:
        del counts[next(iter(counts))]
    return counts[key]


@asynccontextmanager
async def guarded_recorder(
    inner: Recorder, loaded: LoadedPolicy, *, upstreams: frozenset[str] = frozenset()
) -> AsyncIterator[GuardedRecorder]:
    """Record and scan. Raise `PolicyError`, `HostError`."""
    from belljar.signals.values import read_protected

    rules = loaded.policy.guard_rules
    values = read_protected(loaded) if rules.protect else ()
    key = secrets.token_bytes(32)
    recorder = GuardedRecorder(inner, rules, key, values, upstreams)
    if values or rules.classes:
        try:
            recorder.scanners()
        except (MemoryError, ValueError) as error:
            what = f"the guard can't look for so much: {printable(str(error)) or 'out of memory'}"
            hint = "name fewer values, or only the columns that matter"
            raise PolicyError(what, where="guard.protect", hint=hint) from error
    try:
        yield recorder
    finally:
        with anyio.CancelScope(shield=True):
            # A thread of its own: many cells that end would have all that the others need
            await anyio.to_thread.run_sync(recorder.close, limiter=anyio.CapacityLimiter(1))
