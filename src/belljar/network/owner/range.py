"""`open_range`: a layout in, a private network out that leads nowhere, and nothing left of it
afterwards.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio.lowlevel
import anyio.to_thread

from belljar.errors import BelljarError, CellError, HostError
from belljar.events import Event, JsonValue, Kind, Recorder
from belljar.isolation.hold import read_order, refuse_if_forbidden
from belljar.isolation.identity import hold_identity, user_range
from belljar.isolation.survivors import Destruction, destroy_remains
from belljar.network.owner.budget import Budget
from belljar.network.owner.dial import Dialler
from belljar.network.owner.making import (
    PACKETS,
    RangeSpec,
    Uids,
    close_lines,
    fork_pair,
    join_packets,
    packet_files,
)
from belljar.network.owner.processes import RangeGroups, map_ids, shared_fork_server
from belljar.network.owner.range_state import Answer, Lines, Requests, send
from belljar.network.owner.watch import Watch
from belljar.network.supervisor import links
from belljar.plan.addresses import RangeLayout
from belljar.process import close_all, namespaces_of, pin_namespaces
from belljar.store.journal import Journal, JournalEntry, new_range_id, own_entry
from belljar.units import printable

_START_DEADLINE_S: Final = 20.0
_LATE_HINT: Final = "a busy host may need another try; `belljar doctor` says what this one lacks"
_END_DEADLINE_S: Final = 5.0


@asynccontextmanager
async def open_range(
    spec: RangeSpec,
    *,
    recorder: Recorder,
    home: Path,
    on_death: Callable[[BelljarError], None] = lambda _error: None,
    answer: Answer | None = None,
) -> AsyncIterator[Range]:
    """A range with its rules in force and its gateway serving, and no cell yet; destroyed when the
    block is left, however it is left.

    Args:
        recorder: thread-safe; gets every event of the range, from a thread.
        home: Belljar's store: journal and locks.
        on_death: called once, from a thread, when the range has ended by itself:
            `ContainmentBreach` when its rules were changed, `CellError` when a process of it ended
            or hangs, `LedgerError` when it could not be recorded. Its processes are dead by then;
            its cells are the caller's to end.
        answer: what the gateway asks the owner (`openai`).

    Raises `HostError`: this host can't; `CellError`: it did not come up.

    No task group or cancel scope stays open between entry and exit: they may happen in different
    tasks, under asyncio or trio.
    """
    await anyio.lowlevel.checkpoint()
    made = Range(spec, recorder=recorder, home=home, on_death=on_death, answer=answer)
    try:
        with anyio.CancelScope(shield=True):  # what was not begun is not to be ended on record
            await anyio.to_thread.run_sync(made.make)
        yield made
    finally:
        with anyio.CancelScope(shield=True):
            try:
                await made.destroy()
            finally:
                await anyio.to_thread.run_sync(made.leave_fork_server)


class Range:
    """A range that lives. Made by `open_range`."""

    def __init__(
        self,
        spec: RangeSpec,
        *,
        recorder: Recorder,
        home: Path,
        on_death: Callable[[BelljarError], None] = lambda _error: None,
        answer: Answer | None = None,
    ) -> None:
        self.id = new_range_id()
        self.destruction: Destruction | None = None
        self.timings_ms: dict[str, float] = {}
        self._spec, self._recorder, self._home = spec, recorder, home
        self._on_death, self._answer = on_death, answer
        self._journal = Journal(home)
        self._entry: JournalEntry | None = None
        self._held, self._fork_server = ExitStack(), ExitStack()
        self._lines: Lines | None = None
        self._watch: Watch | None = None
        self._pins: dict[str, int] = {}
        self._attached: dict[str, int] = {}
        self._groups: RangeGroups | None = None
        self._group_counts: dict[str, int] = {}
        self._supervisor: Requests | None = None
        self._ending, self._pinning = threading.Lock(), threading.Lock()
        self._began, self._is_users = time.monotonic(), os.geteuid() != 0

    @property
    def layout(self) -> RangeLayout:
        """Who has which address."""
        return self._spec.layout

    @property
    def pcap(self) -> Path:
        """The packet record: whole when the range is destroyed.

        While it lives other files stand beside it.
        """
        return self._spec.directory / PACKETS

    @property
    def packet_files(self) -> tuple[Path, ...]:
        """All that there is of the packet record: several files while the range lives, and where
        the disk had no room to make one of them.
        """
        return packet_files(self._spec.directory)

    @property
    def pids(self) -> tuple[int, ...]:
        """Supervisor's and gateway's, on this host."""
        return tuple(process.pid for process in self._entry.processes) if self._entry else ()

    @property
    def certificate(self) -> bytes:
        """The certificate of the range's own CA, PEM; empty when the gateway has none."""
        return b"" if self._watch is None else self._watch.heard.certificate

    @property
    def user_namespace(self) -> int | None:
        """An ordinary user's: a descriptor of the user namespace that the range is in, and a cell's
        jail must be made in. None for root. The range's to close.
        """
        return self._pins.get("user") if self._is_users else None

    @property
    def error(self) -> BelljarError | None:
        """What it died of; None when it ended in order, or lives."""
        return None if self._watch is None else self._watch.error

    def alive(self) -> str:
        """Why the range is dead; empty while it lives."""
        if self._watch is None or self.destruction is not None:
            return "it does not run"
        return "" if self._watch.error is None else self._watch.error.what

    def counters(self) -> Mapping[str, int]:
        """Packets by the rules' words, and what was recorded and lost, as of the last check."""
        return {} if self._watch is None else self._watch.counters()

    async def attach(
        self, cell: str, where: int, *, is_fd: bool = False, offloads: bool = True
    ) -> None:
        """Give the cell its port: from here on its packets pass, as the rules have it.

        Args:
            cell: its name in the layout.
            where: a process in the cell's network namespace (by pid), or with `is_fd` a descriptor
                of the namespace.
            offloads: False for a cell that takes frames as they are (a VM).

        Raises:
            CellError: it can't be attached, or the range is dead.
            KeyError: the layout has no such cell.
        """
        self.layout.cell(cell)
        await anyio.to_thread.run_sync(self._attach, cell, where, is_fd, offloads)

    def namespace_of(self, cell: str) -> int | None:
        """The number of the network namespace in which the cell's port was put; None before
        `attach`.
        """
        return self._attached.get(cell)

    async def check(self) -> None:
        """As `check_now`, without blocking the event loop."""
        await anyio.to_thread.run_sync(self.check_now)

    def check_now(self) -> None:
        """Read the rules back. Raises what the range died of, when they are not as rendered."""
        self._request({"do": "check"})

    async def destroy(self, *, reason: str = "closed") -> Destruction:
        """End it, look for survivors, and record what was found.

        Idempotent; shielded from cancellation; bounded to some forty seconds, where a part hangs.
        """
        with anyio.CancelScope(shield=True):
            destruction = await anyio.to_thread.run_sync(self._destroy, reason)
        return destruction  # noqa: RET504 - mypy takes the block for one that may swallow errors

    def leave_fork_server(self) -> None:
        """The last step of all, since who reads the packet record needs the fork server too.

        Idempotent.
        """
        self._fork_server.close()

    def make(self) -> None:
        """Everything but the ports.

        Blocking. Raises `HostError`, `CellError`, recorded; `destroy` must be called, whatever
        happens.
        """
        layout = self.layout
        opening: dict[str, JsonValue] = {
            "range": self.id,
            "prefix": layout.prefix,
            "directory": self._spec.directory.name,
            "cells": [port.name for port in layout.cells],
            "stand_ins": [item.id for item in self._spec.network.stand_ins],
        }
        self._recorder.record(Event(kind=Kind.RANGE_OPENING, data=opening))
        try:
            self._make()
        except BaseException as exc:
            if self._watch is None or self._watch.error is None:  # else on record since it died
                reason = exc.what if isinstance(exc, BelljarError) else repr(exc)
                failed = {"error": type(exc).__name__, "reason": printable(reason)}
                self._recorder.record(
                    Event(kind=Kind.RANGE_FAILED, data={"range": self.id, **failed})
                )
            raise
        took: dict[str, JsonValue] = {
            "duration_ms": self._elapsed_ms(),
            "timings_ms": self.timings_ms,
        }
        self._recorder.record(Event(kind=Kind.RANGE_OPENED, data={"range": self.id, **took}))

    def _make(self) -> None:
        uids, locks = self._take_ids()
        groups = RangeGroups(
            self.id, self._spec.network.controllers, self._spec.network.group_limits
        )
        self._entry = own_entry(self.id, "range", host_uid=uids.gateway, cgroups=groups.directories)
        try:
            self._journal.write(self._entry)
        except OSError as exc:
            what = f"the journal can't be written: {exc.strerror}"
            raise HostError(what, where=str(self._journal.directory)) from exc
        self._groups = groups
        groups.make()
        fork_server = self._fork_server.enter_context(
            shared_fork_server(self._home, self._spec.serve)
        )
        self._mark("fork_server")
        lines = self._lines = fork_pair(fork_server, self._spec, uids, locks)
        supervisor, gateway = lines.supervisor.process, lines.gateway.process
        self._entry = self._journal.update(
            self._entry,
            supervisor=fork_server.process,
            child=supervisor,
            processes=(supervisor, gateway),
        )
        refuse_if_forbidden(self._home, self.id)  # before, nobody could know whom to kill
        self._mark("forks")
        self._watch = Watch(
            self.id,
            lines,
            self._recorder,
            on_death=self._died,
            answer=self._answer,
            dialler=Dialler(self._spec.network, self._spec.reach, self._spec.spending),
            budget=Budget.of(self._spec.network.bounds.recorded_bytes),
            timeout_s=self._spec.check_every_s + self._spec.timeout_s,
            killed=lambda: read_order(self._home, self.id),
        )
        self._watch.start()
        self._supervisor = Requests(lines.control, self._watch, where=self._where())
        for end in (lines.control, lines.events):
            send(end, {"go": True})
        # They are busy shutting themselves in: no guest is there yet
        groups.join(supervisor, gateway)
        self._wait_up(lines)

    def _died(self, error: BelljarError) -> None:
        """Its processes are dead; nothing may hold its namespace either, or cells would go on
        talking to each other through it.
        """
        with self._pinning:
            self._let_network_go()
        self._on_death(error)

    def _let_network_go(self) -> None:
        if (fd := self._pins.pop("net", None)) is not None and self._entry is not None:
            os.close(fd)
            # Its number may be another's now
            left = {name: n for name, n in self._entry.namespaces.items() if name != "net"}
            self._entry = replace(self._entry, namespaces=left)

    def _take_ids(self) -> tuple[Uids, list[int]]:
        """Root's range has two uids of its own, held by the supervisor's copies of their locks.

        Raises `HostError`.
        """
        supervisor, gateway = (
            self._held.enter_context(hold_identity(self._home)) for _ in range(2)
        )
        locks = [held.lock_fd for held in (supervisor, gateway) if held.lock_fd is not None]
        return Uids(supervisor=supervisor.own_uid, gateway=gateway.own_uid), locks

    def _wait_up(self, lines: Lines) -> None:
        if self._is_users:
            self._wait_for("unshared")
            ids = user_range().ids
            if ids is None:
                raise RuntimeError("an ordinary user's identity without a range")
            map_ids(lines.supervisor, ids)
            send(lines.control, {"mapped": True})
            self._mark("ids")
        waited = {self._wait_for("started", "ready"), self._wait_for("started", "ready")}
        if waited != {"started", "ready"}:
            raise CellError("a part of the range said twice that it is up", where=self._where())
        self._mark("up")
        with self._pinning:
            self._pins = pin_namespaces(lines.supervisor.process)
            ours = namespaces_of(os.getpid())
            numbers = {name: os.fstat(fd).st_ino for name, fd in self._pins.items()}
            theirs = {name: number for name, number in numbers.items() if ours.get(name) != number}
            if "net" not in theirs or self._entry is None:
                raise self._running().error or CellError(
                    "the range has no network namespace of its own", where=self._where()
                )
            self._entry = self._journal.update(self._entry, namespaces=theirs)
        if (error := self._running().error) is not None:
            with self._pinning:
                self._let_network_go()
            raise error

    def _wait_for(self, *wanted: str) -> str:
        watch = self._running()
        try:
            milestone = watch.heard.milestones.get(timeout=_START_DEADLINE_S)
        except queue.Empty:
            said = watch.diagnosis()
            detail = f": {said}" if said else ""
            what = f"the range did not come up in {_START_DEADLINE_S:.0f} s{detail}"
            raise CellError(what, where=self._where(), hint=_LATE_HINT) from None
        if milestone in wanted:
            return milestone
        raise watch.error or CellError("a part of the range did not come up", where=self._where())

    def _attach(self, cell: str, where: int, is_fd: bool, offloads: bool) -> None:  # noqa: FBT001
        try:
            namespace = (
                os.dup(where)
                if is_fd
                else os.open(f"/proc/{where}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            )
        except OSError as exc:
            raise CellError(
                f"the cell {cell} has no network namespace: {exc.strerror}", where=self._where()
            ) from exc
        try:
            # A port in the host's namespace would be a way out
            number = os.fstat(namespace).st_ino
            hosts = {namespaces_of(pid, ("net",)).get("net") for pid in (os.getpid(), 1)}
            if number in hosts:
                what = f"the cell {cell} is in the host's own network namespace"
                raise CellError(what, where=self._where())
            wanted = {"do": "attach", "cell": cell, "offloads": offloads}
            if self._is_users:
                self._request(wanted, [namespace])
            else:
                # Root's supervisor may enter no namespace: what it needs of the cell's is opened
                # here, in a thread that goes nowhere else.
                with links.tables_of(namespace) as tables:
                    self._request(wanted, [namespace, tables.fileno()])
            self._attached[cell] = number
        finally:
            os.close(namespace)

    def _request(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Ask the supervisor, and wait until it has done it.

        Raises what the range died of, or `CellError`.
        """
        self._running()
        if self._supervisor is None:
            raise CellError("the range does not run", where=self._where())
        self._supervisor.ask(message, fds)

    def _destroy(self, reason: str) -> Destruction:
        with self._ending:
            if self.destruction is not None:
                return self.destruction
            started = time.monotonic()
            ending = {"range": self.id, "reason": reason}
            try:
                self._recorder.record(Event(kind=Kind.RANGE_DESTROYING, data=ending))
            finally:
                self._end_processes()
                self.destruction = destruction = self._look(started)
                self._settle_packets()
            proof: dict[str, JsonValue] = {
                "range": self.id,
                "clean": destruction.clean,
                "survivors": list(destruction.survivors),
                "checked": list(destruction.looked_for),
                "not_checked": list(destruction.not_checked),
                "duration_ms": round(destruction.duration_ms, 1),
                "counters": {**self.counters(), **self._group_counts},
            }
            self._recorder.record(Event(kind=Kind.RANGE_DESTROYED, data=proof))
            return destruction

    def _end_processes(self) -> None:
        lines, watch = self._lines, self._watch
        if lines is None:
            return
        if watch is not None:
            watch.closing = True
        has_namespaces = self._entry is not None and self._entry.namespaces
        if watch is not None and watch.error is None and has_namespaces:
            self._end_in_order(watch)
        for child in (lines.gateway, lines.supervisor):
            child.kill()
        for child in (lines.gateway, lines.supervisor):
            child.wait_ended(_END_DEADLINE_S)
        if watch is not None:
            watch.join()

    def _end_in_order(self, watch: Watch) -> None:
        """The last packets, logs and counts.

        Without them evidence is missing: then it has died, whatever it did before.

        First of all the gateway tells what it is in the midst of, and is gone.
        """
        watch.end_gateway()
        try:
            if self._lines is not None:
                self._lines.gateway.kill()
            self._request({"do": "end"})
        except BelljarError as exc:
            watch.die(exc)

    def _look(self, started: float) -> Destruction:
        """Ids and namespaces stay this range's until the look is over: another could have their
        numbers at once.
        """
        if self._lines is not None:
            close_lines(self._lines)
        with self._held:
            if self._entry is None:
                duration_ms = (time.monotonic() - started) * 1000
                return Destruction(survivors=(), looked_for=(), duration_ms=duration_ms)
            if self._groups is not None:
                self._group_counts = self._groups.end()
            destruction = destroy_remains(self._entry, started, store=self._home)
            close_all(self._pins.values())
            self._pins = {}
            if not destruction.unproven:  # else `reap` looks again
                with suppress(OSError):
                    self._journal.remove(self.id)
            return destruction

    def _settle_packets(self) -> None:
        if self._lines is not None and (effect := join_packets(self._spec.directory)):
            bound = self._spec.network.bounds.packet_record_bytes
            hit: dict[str, JsonValue] = {"limit": "packet_record_files", "value": bound}
            hit |= {"effect": effect, "range": self.id}
            self._recorder.record(Event(kind=Kind.LIMIT_HIT, data=hit))

    def _running(self) -> Watch:
        if self._watch is None:
            raise CellError("the range does not run", where=self._where())
        return self._watch

    def _mark(self, phase: str) -> None:
        self.timings_ms[phase] = self._elapsed_ms()

    def _elapsed_ms(self) -> float:
        return round((time.monotonic() - self._began) * 1000, 1)

    def _where(self) -> str:
        return f"range {self.id}"
