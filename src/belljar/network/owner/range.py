"""A private network, proven gone afterwards."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import anyio.lowlevel
import anyio.to_thread

from belljar.errors import BelljarError, CellError, host_errors
from belljar.events import Event, JsonValue, Kind, Recorder
from belljar.isolation import cgroup
from belljar.isolation.hold import check_may_start, read_order
from belljar.isolation.identity import hold_identity, user_range
from belljar.isolation.survivors import Destruction, destroy_remains, must_be_reaped, together
from belljar.network import ipc
from belljar.network.owner.dial import Dialler
from belljar.network.owner.processes import (
    END_DEADLINE_S,
    RangeProcesses,
    RangeSpec,
    fork_pair,
    map_ids,
    started_fork_server,
)
from belljar.network.owner.watch import RangeWatch, RequestHandler
from belljar.network.supervisor import links
from belljar.plan.addresses import RangeLayout
from belljar.process import close_all, namespaces_of, pin_namespaces
from belljar.store.journal import Journal, JournalEntry, new_range_id, own_entry
from belljar.units import printable

_START_DEADLINE_S: Final = 20.0
_LATE_HINT: Final = "a busy host may need another try; `belljar doctor` says what this one lacks"
# Of a process in an uninterruptible sleep, which a look at the host may not find.
_NOT_ENDED: Final = Destruction(
    unproven=("the end of the range's processes: the kernel holds one of them",)
)


class NetworkRange:
    """A range has rules in force and a serving gateway; it is destroyed with its block.

    `recorder`: thread-safe. `on_failure`: called once, from a thread, when it ended by itself; its
    processes are dead, its cells the caller's. `handle_request`: answers the gateway (`openai`).
    Entering raises `HostError`: this host can't; `CellError`: it did not come up.
    """

    def __init__(
        self,
        spec: RangeSpec,
        *,
        recorder: Recorder,
        home: Path,
        on_failure: Callable[[BelljarError], None] = lambda _error: None,
        handle_request: RequestHandler | None = None,
    ) -> None:
        self.id = new_range_id()
        self.layout: RangeLayout = spec.layout
        self._where = f"range {self.id}"
        self.destruction: Destruction | None = None
        self._spec, self._recorder, self._home = spec, recorder, home
        self._on_failure, self._handle_request = on_failure, handle_request
        self._journal = Journal(home)
        self._entry: JournalEntry | None = None
        self._held, self._fork_server = ExitStack(), ExitStack()
        self._processes: RangeProcesses | None = None
        self._watch: RangeWatch | None = None
        self._pins: dict[str, int] = {}
        self._attached: dict[str, int] = {}
        self._groups = cgroup.NO_GROUPS
        self._group_counts: dict[str, int] = {}
        self._dialler = Dialler(spec.network, spec.reach, spec.spending)
        self._ending, self._pinning = threading.Lock(), threading.Lock()
        self._is_users = os.geteuid() != 0

    async def __aenter__(self) -> Self:
        await anyio.lowlevel.checkpoint()
        try:
            with anyio.CancelScope(shield=True):  # what was not begun is not to be ended on record
                await anyio.to_thread.run_sync(self.make)
        except BaseException:
            await self.destroy()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.destroy()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._entry.processes) if self._entry else ()

    @property
    def certificate(self) -> bytes:
        return b"" if self._watch is None else self._watch.certificate

    @property
    def user_namespace(self) -> int | None:
        return self._pins.get("user") if self._is_users else None

    @property
    def error(self) -> BelljarError | None:
        return None if self._watch is None else self._watch.error

    def counters(self) -> Mapping[str, int]:
        return {} if self._watch is None else self._watch.counters()

    async def attach(self, cell: str, pid: int, *, offloads: bool = True) -> None:
        """Give the cell its port, by a process in its network namespace: its packets pass.

        `offloads`: False for a VM, which takes frames as they are. Raises `CellError`, `KeyError`.
        """
        self.layout.cell(cell)
        await anyio.to_thread.run_sync(self._attach, cell, pid, offloads)

    def namespace_of(self, cell: str) -> int | None:
        return self._attached.get(cell)

    async def check(self) -> None:
        await anyio.to_thread.run_sync(self.check_now)

    def check_now(self) -> None:
        self._request({"do": "check"})

    async def destroy(self, *, reason: str = "closed") -> Destruction:
        """End it and record survivors. Idempotent, shielded, 40 s."""
        with anyio.CancelScope(shield=True):
            try:
                destruction = await anyio.to_thread.run_sync(self._destroy, reason)
            finally:
                await anyio.to_thread.run_sync(self._fork_server.close)
        return destruction

    def make(self) -> None:
        """Make all but the ports. Blocking; `destroy` must be called in any case."""
        began = time.monotonic()
        self._record(
            Kind.RANGE_OPENING,
            prefix=self.layout.prefix,
            directory=self._spec.directory.name,
            cells=[port.name for port in self.layout.cells],
            stand_ins=[item.id for item in self._spec.network.stand_ins],
        )
        try:
            self._make()
        except BaseException as exc:
            if self.error is None:  # else on record since it died
                reason = printable(exc.what if isinstance(exc, BelljarError) else repr(exc))
                self._record(Kind.RANGE_FAILED, error=type(exc).__name__, reason=reason)
            raise
        duration_ms = round((time.monotonic() - began) * 1000, 1)
        self._record(Kind.RANGE_OPENED, duration_ms=duration_ms)

    def _make(self) -> None:
        # Root's range has two uids of its own, held by the supervisor's copies of their locks
        held = [self._held.enter_context(hold_identity()) for _ in range(2)]
        supervisor_uid, gateway_uid = (each.own_uid for each in held)
        locks = [each.lock_fd for each in held if each.lock_fd is not None]
        groups = cgroup.plan_groups(self.id, self._spec.network.controllers)
        self._entry = own_entry(self.id, "range", host_uid=gateway_uid, cgroups=groups.directories)
        with host_errors("the journal can't be written", where=self._journal.directory):
            self._journal.write(self._entry)
        self._groups = groups
        cgroup.make_groups(groups, self._spec.network.group_limits)
        started = started_fork_server(self._home, self._spec.serve)
        fork_server = self._fork_server.enter_context(started)
        fork_server.wait_ready()
        processes = self._processes = fork_pair(
            fork_server, self._spec, locks, supervisor_uid=supervisor_uid, gateway_uid=gateway_uid
        )
        supervisor, gateway = processes.supervisor.process, processes.gateway.process
        self._entry = self._journal.update(
            self._entry,
            supervisor=fork_server.process,
            child=supervisor,
            processes=(supervisor, gateway),
        )
        check_may_start(self._home, cell=self.id)  # before, no kill order could name them
        may_ask = any(item.kind == "openai" for item in self._spec.network.stand_ins)
        watch = RangeWatch(
            self.id,
            self._spec,
            processes,
            self._recorder,
            on_failure=self._died,
            # Else a gateway could send to the model's provider what the policy lets out nowhere
            handle_request=self._handle_request if may_ask else None,
            dialler=self._dialler,
            killed=lambda: read_order(self._home, self.id),
        )
        watch.start()
        self._watch = watch  # only now: one that could not start can't be joined
        for end in (processes.control, processes.events):
            _send(end, {"go": True})
        # They are busy confining themselves: no guest is there yet
        for process in (supervisor, gateway):
            cgroup.join(groups, process.pid)
        self._wait_up(processes, watch)

    def _died(self, error: BelljarError) -> None:
        self._release_network()
        self._on_failure(error)

    def _release_network(self) -> None:
        # Its processes are dead: while its namespace is held, cells could go on talking in it
        with self._pinning:
            fd = self._pins.pop("net", None)
            if fd is not None and self._entry is not None:
                os.close(fd)
                # Its number may be another namespace's now
                left = {name: n for name, n in self._entry.namespaces.items() if name != "net"}
                self._entry = replace(self._entry, namespaces=left)

    def _wait_up(self, processes: RangeProcesses, watch: RangeWatch) -> None:
        if self._is_users:
            self._wait_for(watch, "unshared")
            ids = user_range().ids
            if ids is None:
                raise RuntimeError("an ordinary user's identity without a range")
            map_ids(processes.supervisor, ids)
            _send(processes.control, {"mapped": True})
        waited = {self._wait_for(watch, "started", "ready") for _ in range(2)}
        if len(waited) != 2:
            raise CellError("a part of the range reported twice that it is up", where=self._where)
        with self._pinning:
            self._pins = pin_namespaces(processes.supervisor.process)
            ours = namespaces_of(os.getpid())
            numbers = {name: os.fstat(fd).st_ino for name, fd in self._pins.items()}
            theirs = {name: number for name, number in numbers.items() if ours.get(name) != number}
            if "net" not in theirs or self._entry is None:
                what = "the range has no network namespace of its own"
                raise self.error or CellError(what, where=self._where)
            self._entry = self._journal.update(self._entry, namespaces=theirs)
        if self.error is not None:
            self._release_network()
            raise self.error

    def _wait_for(self, watch: RangeWatch, *wanted: str) -> str:
        try:
            milestone = watch.milestones.get(timeout=_START_DEADLINE_S)
        except queue.Empty:
            detail = f": {diagnosis}" if (diagnosis := watch.diagnosis()) else ""
            what = f"the range did not come up in {_START_DEADLINE_S:.0f} s{detail}"
            raise CellError(what, where=self._where, hint=_LATE_HINT) from None
        if milestone in wanted:
            return milestone
        what = "a part of the range did not come up"
        raise self.error or CellError(what, where=self._where)

    def _attach(self, cell: str, pid: int, offloads: bool) -> None:  # noqa: FBT001
        try:
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            what = f"the cell {cell} has no network namespace: {exc.strerror}"
            raise CellError(what, where=self._where) from exc
        with ExitStack() as opened:
            opened.callback(os.close, namespace)
            # A port in the host's namespace would be a way out
            number = os.fstat(namespace).st_ino
            # This process may be in another namespace than the host's first one.
            if number in {namespaces_of(pid, ("net",)).get("net") for pid in (os.getpid(), 1)}:
                what = f"the cell {cell} is in the host's own network namespace"
                raise CellError(what, where=self._where)
            fds = [namespace]
            if not self._is_users:
                # Root's supervisor may enter no namespace: what it needs of it is opened here.
                fds.append(opened.enter_context(links.tables_of(namespace)).fileno())
            self._request({"do": "attach", "cell": cell, "offloads": offloads}, fds)
            self._attached[cell] = number

    def _request(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        if self._watch is None:
            raise CellError("the range does not run", where=self._where)
        self._watch.ask_supervisor(message, fds)

    def _destroy(self, reason: str) -> Destruction:
        with self._ending:
            if self.destruction is not None:
                return self.destruction
            started = time.monotonic()
            try:
                self._record(Kind.RANGE_DESTROYING, reason=reason)
            finally:
                have_ended = self._end_processes()
                self.destruction = destruction = self._prove_gone(started, have_ended=have_ended)
            counters = {**self.counters(), **self._group_counts}
            sent = self._spec.spending.sent_bytes(self._dialler.number)
            about = {"counters": counters, "sent_bytes": sent}
            self._record(Kind.RANGE_DESTROYED, **destruction.to_data(), **about)
            return destruction

    def _end_processes(self) -> bool:
        processes, watch = self._processes, self._watch
        if processes is None:
            return True
        if watch is not None:
            watch.closing = True
        has_namespaces = self._entry is not None and self._entry.namespaces
        if watch is not None and self.error is None and has_namespaces:
            # Without what is in progress, the last packets, logs and counts evidence is missing
            watch.end_gateway()
            processes.gateway.kill()
            try:
                self._request({"do": "end"})
            except BelljarError as exc:
                watch.die(exc)
        ends = (processes.gateway, processes.supervisor)
        for child in ends:
            child.kill()
        have_read = watch is None or watch.join(2 * END_DEADLINE_S)
        if have_read and all(child.wait_ended(END_DEADLINE_S) for child in ends):
            return True
        if watch is not None:
            watch.die(CellError("a part of the range does not end", where=self._where))
        return False

    def _prove_gone(self, started: float, *, have_ended: bool) -> Destruction:
        # Until the search is over no other range may have the numbers of its ids and namespaces
        if self._processes is not None and have_ended:  # else their thread goes on reading
            self._processes.close()
        with self._held:
            if self._entry is None:
                duration_ms = (time.monotonic() - started) * 1000
                return Destruction(duration_ms=duration_ms)
            if (memory := self._groups.paths.get("memory")) is not None:
                self._group_counts["oom_kills"] = cgroup.out_of_memory_kills(memory)
            cgroup.remove_empty(self._groups)
            destruction = destroy_remains(self._entry, started)
            if not have_ended:
                destruction = together(destruction, _NOT_ENDED)
            is_left = must_be_reaped(self._entry, destruction)
            with self._pinning:  # a thread that still runs may release one of them
                close_all(self._pins.values())
                self._pins = {}
            if not is_left:  # else `reap` searches again
                with suppress(OSError):
                    self._journal.remove(self.id)
            return destruction

    def _record(self, kind: Kind, **data: JsonValue) -> None:
        self._recorder.record(Event(kind=kind, data={"range": self.id, **data}))


def _send(end: socket.socket, message: Mapping[str, Any]) -> None:
    with suppress(ipc.ClosedError, OSError):  # a dead process is the watch's to report
        ipc.send(end, message)
