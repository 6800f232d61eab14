"""Reads a packet record back in a separate process, when its range has ended. Blocking.

Cells wrote what is read, so the reader may become compromised: it can reach nothing.
Its memory, processor and wall time are bounded, and its events are checked as a gateway's.
What it reported before it failed is kept, and the rest recorded as unread.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import json_of
from belljar.errors import BelljarError, LedgerError
from belljar.events import Event, JsonValue, Kind, Recorder, Trust
from belljar.isolation import cgroup
from belljar.isolation.identity import hold_identity
from belljar.network import ipc
from belljar.network.capture.exchanges import NOT_FURTHER
from belljar.network.capture.traffic_analysis import IN_PACKETS, MAX_EVENTS
from belljar.network.ipc import (
    MAX_DATAGRAM_BYTES,
    EventDecoder,
    GatewayEvent,
    GatewayNotice,
    WireViolation,
)
from belljar.network.owner.budget import Budget, cost_bytes
from belljar.network.owner.processes import (
    Child,
    ForkServer,
    shared_fork_server,
    wait_readable,
)
from belljar.plan.addresses import RangeLayout
from belljar.plan.jail import GroupLimits
from belljar.plan.network import NetworkPlan
from belljar.process import ProcessId
from belljar.store.journal import Journal, new_range_id, own_entry
from belljar.units import printable

KINDS: Final = frozenset(
    {
        Kind.NETWORK_HTTP,
        Kind.NETWORK_HTTP_ANSWERED,
        Kind.NETWORK_STREAM,
        Kind.NETWORK_FLOW,
        Kind.LIMIT_HIT,
    }
)
"""What a reader may put on record."""
READER_LIMIT: Final = "traffic_analysis_reader"
"""Names a partly read record in `limit.hit`."""
LOST_LIMIT: Final = "traffic_analysis_packets"
"""Likewise, of packets in neither the record nor an event: thrown away, or never written."""
MAX_LIMITS: Final = 20
_MAX_LIMIT_BYTES: Final = 4 << 10
MIN_PROCESSOR_S: Final = 20
MAX_PROCESSOR_S: Final = 120
MIN_MEMORY_BYTES: Final = 512 << 20
MAX_MEMORY_BYTES: Final = 2 << 30
_MEMORY_A_BYTE: Final = 4
_BYTES_A_SECOND: Final = 6 << 20
# Wall-clock seconds for each of the processor's: a host has other work.
_TIMEOUT: Final = 6
_END_TIMEOUT_S: Final = 5.0
_MAX_STDERR_BYTES: Final = 2000
# Beside the reader's own limit: what the fork shares, and files.
_GROUP_BESIDE_BYTES: Final = 128 << 20
_GROUP_PROCESSES: Final = 8
_ONE_AT_A_TIME: Final = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be read, and its bounds.

    Args:
        files: the packet record's, in order of time; `lost_packets` are in none.
        budget: the range's, as far as it is spent.
        processor_s, memory_bytes: of the reader, which ends there; wall time is six times that.
    """

    files: tuple[Path, ...]
    range_id: str
    layout: RangeLayout
    network: NetworkPlan
    budget: Budget
    lost_packets: int = 0
    processor_s: int = MIN_PROCESSOR_S
    # Beside what the fork gave it: of 64 MiB of packets it was seen to take 210 MiB at most.
    memory_bytes: int = MIN_MEMORY_BYTES

    @classmethod
    def of(
        cls,
        files: Sequence[Path],
        counters: Mapping[str, int],
        *,
        range_id: str,
        layout: RangeLayout,
        network: NetworkPlan,
    ) -> Task:
        """With a range's final counts. Raises `OSError`.

        20 to 120 s of processor (one for 6 MiB); 512 MiB to 2 GiB of memory (four times the size).
        """
        spent = replace(
            Budget.of(network.bounds.recorded_bytes),
            spent_bytes=counters.get("recorded_bytes", 0),
            events=counters.get("events_recorded", 0),
            cut_events=counters.get("events_cut", 0),
        )
        lost = sum(
            counters.get(name, 0) for name in ("packets_unaccounted", "packets_not_recorded")
        )
        size = sum(path.stat().st_size for path in files)
        return cls(
            files=tuple(files),
            range_id=range_id,
            layout=layout,
            network=network,
            budget=spent,
            lost_packets=lost,
            processor_s=max(MIN_PROCESSOR_S, min(MAX_PROCESSOR_S, size // _BYTES_A_SECOND)),
            memory_bytes=max(MIN_MEMORY_BYTES, min(MAX_MEMORY_BYTES, size * _MEMORY_A_BYTE)),
        )

    def to_json(self, uid: int | None) -> dict[str, Any]:
        """In the reader's process, which has the files."""
        return {
            "range": self.range_id,
            "layout": json_of(self.layout),
            "network": json_of(self.network),
            "budget": asdict(self.budget),
            "processor_s": self.processor_s,
            "memory_bytes": self.memory_bytes,
            "uid": uid,
        }


def read_back(task: Task, *, home: Path, recorder: Recorder) -> None:
    """Record the traffic between cells, by `traffic_analysis.seen_exchanges`.

    One at a time in this process. When the reader fails or reaches a bound, what was read is kept,
    and a `limit.hit` says why not the rest. Packets in no file are reported too. Raises
    `LedgerError`.
    """
    if task.lost_packets:
        limit = task.network.bounds.packet_record_bytes
        effect = "what they carried is not on record"
        _record_limit(recorder, task, LOST_LIMIT, limit, task.lost_packets, effect)
    with _ONE_AT_A_TIME:
        problem = _read(task, home, recorder) if task.files else ""
    if problem:
        effect = f"{NOT_FURTHER}: {problem}; {IN_PACKETS}"
        _record_limit(recorder, task, READER_LIMIT, task.processor_s, 1, effect)


def _record_limit(
    recorder: Recorder, task: Task, name: str, value: int, count: int, effect: str
) -> None:
    data: dict[str, JsonValue] = {"limit": name, "value": value, "count": count, "effect": effect}
    data |= {"range": task.range_id, "traffic_analysis": True}
    recorder.record(Event(kind=Kind.LIMIT_HIT, data=data))


def _read(task: Task, home: Path, recorder: Recorder) -> str:
    """Why not all of it was read, or ""."""
    with ExitStack() as stack:
        try:
            reader = stack.enter_context(started(task, home))
        except (BelljarError, OSError, ValueError) as exc:
            reason = exc.what if isinstance(exc, BelljarError) else str(exc)
            return f"it has no reader: {printable(reason, max_chars=500)}"
        try:
            ipc.send(reader.end, {"go": True})
            return take_in(reader.end, Taker(task, recorder), timeout_s=task.processor_s * _TIMEOUT)
        except ipc.Closed:
            reader.child.wait_ended(_END_TIMEOUT_S)
            output = printable(os.pread(reader.stderr, _MAX_STDERR_BYTES, 0).strip(), max_chars=500)
            how = reader.fork_server.how_ended(reader.child) or "unknown how"
            return f"its reader ended ({how}{': ' if output else ''}{output})"


def take_in(end: socket.socket, taker: Taker, *, timeout_s: float) -> str:
    """Record what the reader sends until it is done; else why it is not read further.

    Raises `ipc.Closed`: it is gone; `LedgerError`.
    """
    give_up = time.monotonic() + timeout_s
    while not taker.is_done:
        if not wait_readable([end.fileno()], max(0.0, give_up - time.monotonic())):
            return f"its reader took more than {timeout_s:.0f} s"
        datagram = ipc.receive_bytes(end, MAX_DATAGRAM_BYTES + 1)
        try:
            taker.take(datagram)
        except WireViolation as exc:
            return f"its reader broke its protocol: {printable(str(exc), max_chars=500)}"
    return ""


class Taker:
    """Checks and records a reader's events, until `is_done`."""

    def __init__(self, task: Task, recorder: Recorder) -> None:
        self.is_done = False
        self._task, self._recorder = task, recorder
        self._decoder = EventDecoder(KINDS)
        self._budget, self._max_events = task.budget, task.budget.events + MAX_EVENTS
        self._limits = 0

    def take(self, datagram: bytes) -> None:
        """One datagram. Raises `WireViolation` or `LedgerError`."""
        match self._decoder.feed(datagram):
            case None:
                return
            case GatewayEvent(kind=kind, data=data, bodies=bodies):
                data = {"range": "", **data} | {"range": self._task.range_id}
                data |= {"traffic_analysis": True}
                self._record(Event(kind=kind, data=data, bodies=bodies, trust=Trust.HOST_OBSERVED))
            case GatewayNotice(kind=ipc.READY):
                self.is_done = True
            case _:
                raise WireViolation("a message that is no reader's")

    def _record(self, event: Event) -> None:
        taken: Event | None = event
        if event.kind == Kind.LIMIT_HIT:
            self._limits += 1
            if self._limits > MAX_LIMITS or event.bodies or cost_bytes(event) > _MAX_LIMIT_BYTES:
                raise WireViolation("more limits than there are")
        else:
            self._budget, taken = self._budget.take(event)
        if taken is None or self._budget.events > self._max_events:
            raise WireViolation("more events than it may report")
        try:
            self._recorder.record(taken)
        except ValueError as exc:  # data that the kind doesn't allow
            raise WireViolation(f"what can't be recorded: {exc}") from exc
        except OSError as exc:
            raise LedgerError(
                f"an event of the range can't be recorded: {exc}", where=self._task.range_id
            ) from exc


@contextmanager
def _grouped(task: Task, home: Path) -> Iterator[Callable[[ProcessId], None]]:
    # Its own control groups, journalled; call what is yielded with the reader.
    limits = GroupLimits(
        memory_max_bytes=task.memory_bytes + _GROUP_BESIDE_BYTES,
        cpu_quota_percent=100,
        processes=_GROUP_PROCESSES,
    )
    reader_id, journal = new_range_id(), Journal(home)
    groups = cgroup.plan_groups(reader_id, task.network.controllers)
    entry = own_entry(reader_id, "range", cgroups=groups.directories)
    journal.write(entry)

    def join(process: ProcessId) -> None:
        journal.update(entry, child=process, processes=(process,))
        cgroup.join(groups, process.pid)

    try:
        cgroup.make_groups(groups, limits)
        yield join
    finally:
        cgroup.remove_empty(groups)
        if not any(directory.exists() for directory in groups.directories):
            journal.remove(reader_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    child: Child
    end: socket.socket
    stderr: int
    fork_server: ForkServer


@contextmanager
def started(task: Task, home: Path) -> Iterator[_Reader]:
    """A reader waiting for `go`. Raises `BelljarError`, `OSError`."""
    with ExitStack() as stack:
        held = stack.enter_context(hold_identity(home))
        fork_server = stack.enter_context(shared_fork_server(home))
        ours, theirs = map(stack.enter_context, ipc.pair())
        document = ipc.as_file(task.to_json(held.own_uid))
        stack.callback(os.close, document)
        stderr = os.memfd_create("stderr", os.MFD_CLOEXEC)
        stack.callback(os.close, stderr)
        files = [stack.enter_context(path.open("rb")).fileno() for path in task.files]
        join = stack.enter_context(_grouped(task, home))
        (child,) = fork_server.fork({"reader": [theirs.fileno(), document, stderr, *files]})
        stack.callback(os.close, child.pidfd)
        stack.callback(child.wait_ended, _END_TIMEOUT_S)
        stack.callback(child.kill)
        join(child.process)
        theirs.close()  # the reader's end is seen only when no other process has it
        yield _Reader(child=child, end=ours, stderr=stderr, fork_server=fork_server)
