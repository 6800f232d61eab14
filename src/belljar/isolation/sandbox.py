"""A cell on its host, the same for every engine."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    suppress,
)
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import anyio.to_thread

from belljar.dataclass import dataclass, replace
from belljar.errors import BelljarError, host_errors
from belljar.events import Event, JsonValue, Kind, Recorder
from belljar.isolation import cgroup
from belljar.isolation.hold import KillOrder, check_may_start, killed_error, read_order
from belljar.isolation.identity import HeldIdentity
from belljar.isolation.jail import Jail, JailEnd, start_jail
from belljar.isolation.program_root import STORE_HINT, ProgramRoot
from belljar.isolation.survivors import Destruction, destroy_remains, must_be_reaped, wait_for_dying
from belljar.plan.jail import JailLimits, JailSpec
from belljar.process import descends_from, end_if_forked, kill
from belljar.store.journal import EntryKind, Journal, JournalEntry, own_entry
from belljar.store.locks import claimed_for_cell
from belljar.units import format_duration

if TYPE_CHECKING:
    from belljar.channel import GuestClient
    from belljar.isolation.touches import FileWatch

# Sockets close a little before the supervisor reports.
FINAL_STATUS_TIMEOUT_S: Final = 0.5
_DESTROYER_TIMEOUT_S: Final = 30.0  # Three times what a destruction may take


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    cell_id: str
    kind: EntryKind
    limits: JailLimits
    controllers: tuple[str, ...] = ()
    memory_by_rlimit: bool = True
    part_of: str = ""


class Sandbox:
    """One jail with all its parts; `owned` destroys it.

    An engine sets `may_retry` where another sandbox may follow a failed start: then `recorder` gets
    nothing of its end.
    """

    agent: socket.socket
    directories: tuple[Path, ...] = ()  # removed with it
    emulated = False
    may_retry = False
    is_retried = False

    def __init__(
        self,
        spec: SandboxSpec,
        *,
        identity: AbstractContextManager[HeldIdentity],
        home: Path,
        recorder: Recorder | None = None,
    ) -> None:
        self._spec, self.cell_id, self.limits = spec, spec.cell_id, spec.limits
        self.timings_ms = dict[str, float]()
        self._recorder, self._has_started = recorder, False
        self.jail: Jail | None = None
        self.destruction: Destruction | None = None
        self._home, self._journal = home, Journal(home)
        self._entry: JournalEntry | None = None
        self._order: KillOrder | None = None
        self._counts = {"memory": 0, "pids": 0}
        self._oom_kills_while_alive = 0
        self._owner: AsyncExitStack | None = None
        self._is_ready = False
        self._reason = "closed"
        self._destroyed = threading.Event()
        self._pid, self._looking = os.getpid(), threading.Lock()
        self._found: Destruction | None = None
        with ExitStack() as failed, ExitStack() as undo:
            failed.callback(self._release)
            self.identity: HeldIdentity = undo.enter_context(identity)
            self.groups = cgroup.plan_groups(spec.cell_id, spec.controllers)
            self._held = undo.pop_all()
            failed.pop_all()

    @cached_property
    def client(self) -> GuestClient:
        """Its modules are imported during the start."""
        from belljar.channel import GuestClient

        return GuestClient(self.agent)

    def make(self, *, cpu_later: bool = False) -> None:
        self._entry = own_entry(
            self.cell_id,
            self._spec.kind,
            cgroups=self.groups.directories,
            directories=self.directories,
            host_uid=self.identity.own_uid,
            uid_count=self.identity.uid_count,
            part_of=self._spec.part_of,
        )
        where = self._journal.directory
        with host_errors("the journal can't be written", where=where, hint=STORE_HINT):
            self._journal.write(self._entry)
        self._check_may_start()
        limits = replace(self.limits, cpu_quota_percent=None) if cpu_later else self.limits
        cgroup.make_groups(self.groups, limits)

    def jail_spec(self, root: ProgramRoot) -> JailSpec:
        return JailSpec(
            cell_id=self.cell_id,
            owner_pid=os.getpid(),
            root=root.root,
            identity=self.identity.jail,
            limits=self.limits,
            cgroups=self.groups.directories,
            memory_by_rlimit=self._spec.memory_by_rlimit,
        )

    def start_program(
        self,
        spec: JailSpec,
        program: tuple[str, ...],
        *,
        kept: tuple[int, ...] = (),
        stdin_fd: int | None = None,
        user_namespace: int | None = None,
    ) -> None:
        """Start the jail; call `wait_running` next."""
        self._held.enter_context(claimed_for_cell(spec.root.parent))
        self.jail = start_jail(
            spec,
            program,
            kept=kept,
            hold=self.identity.lock_fd,
            stdin_fd=stdin_fd,
            user_namespace=user_namespace,
        )

    async def wait_running(self) -> None:
        jail = self.jail
        if jail is None or self._entry is None:
            raise RuntimeError("nothing was started")
        await jail.wait_running()
        self._entry = self._journal.update(
            self._entry, supervisor=jail.supervisor, child=jail.child, namespaces=jail.namespaces
        )
        self._check_may_start()  # a kill before didn't know its processes

    def ready(self, owner: AsyncExitStack) -> None:
        """Make it a cell: `destroy` may end it before its owner does."""
        self._owner, self._is_ready = owner, True

    @property
    def host_pid(self) -> int | None:
        return None if self.jail is None or self.jail.child is None else self.jail.child.pid

    def holds(self, pid: int) -> bool:
        supervisor = None if self.jail is None else self.jail.supervisor
        return supervisor is not None and descends_from(pid, supervisor.pid)

    def diagnosis(self) -> str:
        return "" if self.jail is None else self.jail.diagnosis()

    def console(self) -> bytes:
        """The guest controls it; it is bounded."""
        return self.diagnosis().encode()

    def end(self, timeout_s: float = 0.0) -> JailEnd | None:
        """Return the program's end, if reported in time. Blocks."""
        return None if self.jail is None else self.jail.final_status(timeout_s)

    async def wait_dead(self) -> str:
        if self.jail is not None:
            await self.jail.wait_ended()
        return self.cause_of_death()

    def cause_of_death(self) -> str:
        """Return "" if it is alive. Waits ≤ 0.5 s."""
        if (end := self.end(FINAL_STATUS_TIMEOUT_S)) is None:
            return ""
        if end.cause == "lifetime":
            return f"its lifetime of {format_duration(self.limits.lifetime_s)} was reached"
        return "its owner ended it" if end.cause == "owner" else self.explain(end)

    def explain(self, end: JailEnd) -> str:
        raise NotImplementedError

    def death_limit(self) -> str | None:
        """Return `memory` or `lifetime`; after `cause_of_death`."""
        cause = "" if (end := self.end()) is None else end.cause
        if cause == "itself" and self.fatal_oom_kills() > 0:
            return "memory"
        return cause if cause == "lifetime" else None

    def killed(self) -> KillOrder | None:
        if self._order is None:
            self._order = read_order(self._home, self.cell_id)
        return self._order

    def raise_if_killed(self, error: BaseException) -> None:
        """A kill order explains other errors."""
        killed = killed_error(self.killed(), where=f"cell {self.cell_id}")
        if isinstance(error, BelljarError) and killed is not None:
            raise killed from error

    def oom_kills(self) -> int:
        count = self._count("memory", cgroup.out_of_memory_kills)
        if self.end() is None:
            self._oom_kills_while_alive = count
        return count

    def fatal_oom_kills(self) -> int:
        return self._count("memory", cgroup.out_of_memory_kills) - self._oom_kills_while_alive

    def refused_forks(self) -> int:
        return self._count("pids", cgroup.refused_forks)

    def count_processes(self) -> tuple[int, int]:
        """Return processes and threads, now and peak; else zeros."""
        group = self.groups.paths.get("pids")
        return (0, 0) if group is None else cgroup.process_counts(group)

    def processes_full(self) -> bool:
        return False

    def disk_full(self) -> bool:
        return False

    async def watch_files(self, paths: Sequence[str]) -> FileWatch:
        raise NotImplementedError

    def kill(self, order: KillOrder | None = None) -> None:
        """Kill its pid 1, from any thread."""
        self._order = self._order or order
        if self.jail is not None and self.jail.child is not None:
            with suppress(OSError):
                kill(self.jail.child)

    async def destroy(self, *, reason: str = "closed") -> Destruction:
        """Have the owner of a ready cell destroy it now, before its block ends.

        Idempotent, shielded, ten seconds at most, from any event loop. An unwritable record keeps
        nothing alive: its `LedgerError` is raised when the cell is gone.
        """
        if not self._is_ready:
            raise RuntimeError("it is not a ready cell: its owner destroys it")
        with anyio.CancelScope(shield=True):
            owner, self._owner = self._owner, None  # One caller gets it; the others wait
            if owner is None:
                # A thread of its own: forty waiters would have all that the destroyers need
                is_done = self._destroyed.is_set() or await anyio.to_thread.run_sync(
                    self._destroyed.wait, _DESTROYER_TIMEOUT_S, limiter=anyio.CapacityLimiter(1)
                )
                if not is_done:  # Its event loop was stopped
                    await self._destroy()
            else:
                self._reason = reason
                try:
                    await owner.aclose()
                finally:
                    self._destroyed.set()
        if self.destruction is None:
            raise RuntimeError(f"cell {self.cell_id}: its destruction failed before")
        return self.destruction

    async def _destroy(self) -> None:
        """It repeats only after an interrupt."""
        end_if_forked(self._pid)
        if self.destruction is not None:
            return
        order = self.killed() if self._has_started else None
        may_retry, self.may_retry = self.may_retry, False  # an interrupt ends the attempts
        with anyio.CancelScope(shield=True):
            try:
                if self._has_started:
                    # Else it is on record since before it acted
                    if order is not None and not order.is_ours:
                        self._record(Kind.KILL_TRIGGERED, order.triggered())
                    reason = self._reason if order is None else str(order)
                    self._record(Kind.CELL_DESTROYING, {"reason": reason})
            finally:
                self.destruction = destruction = await self.unmake()
            self.is_retried = may_retry and destruction.clean and self.killed() is None
            if self.is_retried:
                return
            self._record(Kind.CELL_DESTROYED, destruction.to_data())
            if order is not None:
                done: dict[str, JsonValue] = {"scope": order.scope, "cells": [self.cell_id]}
                done["failed"] = [] if destruction.clean else [self.cell_id]
                done["duration_ms"] = round(destruction.duration_ms, 1)
                self._record(Kind.KILL_COMPLETED, done)

    def _record(self, kind: Kind, data: Mapping[str, JsonValue]) -> None:
        if self._recorder is not None:
            self._recorder.record(Event(kind=kind, cell_id=self.cell_id, data=data))

    async def unmake(self) -> Destruction:
        started = time.monotonic()
        if self.jail is not None:
            await self.jail.end()

        def remove_and_look() -> Destruction:
            # An interrupted wait leaves the first look running, and its ids are another's after it
            with self._looking:
                if self._found is None:
                    self._found = self.look_once(started)
                return self._found

        return await anyio.to_thread.run_sync(remove_and_look)

    def look_once(self, started: float) -> Destruction:
        """Remove remains. Its ids are free afterwards."""
        self._count("memory", cgroup.out_of_memory_kills)
        self.refused_forks()
        if self._entry is not None and self.jail is not None and self.jail.child is None:
            # Its supervisor died before it named its child, which ends with it, in a moment
            wait_for_dying(self._entry)
        with suppress(OSError):  # the look below finds what this could not look at
            cgroup.remove_empty(self.groups)
        for directory in self.directories:
            shutil.rmtree(directory, ignore_errors=True)
        self._release()
        # Ids and namespaces stay this cell's until the look is over: another cell could have their
        # numbers at once.
        with self._held:
            if self._entry is None:
                duration_ms = (time.monotonic() - started) * 1000
                return Destruction(duration_ms=duration_ms)
            destruction = destroy_remains(self._entry, started)
            is_left = must_be_reaped(self._entry, destruction)
            if self.jail is not None:
                self.jail.release_namespaces()
            if not is_left:
                self.killed()
                with suppress(OSError):
                    self._journal.remove(self.cell_id)
        return destruction

    def _release(self) -> None:
        """After its death: close the jail's resources. Idempotent."""

    def _check_may_start(self) -> None:
        # A proof ignores a hold
        check_may_start(self._home, cell=self.cell_id, is_held=self._spec.kind != "proof")

    def _count(self, controller: str, read: Callable[[Path], int]) -> int:
        if (group := self.groups.paths.get(controller)) is not None:
            self._counts[controller] = max(self._counts[controller], read(group))
        return self._counts[controller]


SandboxT = TypeVar("SandboxT", bound=Sandbox)


@asynccontextmanager
async def owned(sandbox: SandboxT, owner: AsyncExitStack) -> AsyncIterator[SandboxT]:
    """Start it; it is destroyed when `owner` closes or the block fails.

    Neither a shield nor `finally` keeps Ctrl-C or asyncio's own cancellation out of a destruction:
    the second callback finishes what one of them ended.
    """
    async with AsyncExitStack() as starting:
        for _ in range(2):
            starting.push_async_callback(sandbox._destroy)
        yield sandbox
        sandbox._has_started = True
        owner.push_async_exit(starting.pop_all())


@asynccontextmanager
async def recorded_lifetime(
    recorder: Recorder,
    cell_id: str,
    planned: Mapping[str, JsonValue],
    make: Callable[[AsyncExitStack, ExitStack], Awaitable[SandboxT]],
) -> AsyncIterator[SandboxT]:
    """Yield the cell that `make` makes, recorded, and destroy it after the block.

    `make` gets its owner, and a stack of resources held until it is gone. No task group or cancel
    scope is open across the yield.
    """
    recorder.record(Event(kind=Kind.CELL_PLANNED, cell_id=cell_id, data=planned))
    with ExitStack() as held:
        async with AsyncExitStack() as owner:
            try:
                sandbox = await make(owner, held)
            except BaseException as exc:
                # Why it could not be made, or that its maker was cancelled
                reason = exc.what if isinstance(exc, BelljarError) else repr(exc)
                data = {"error": type(exc).__name__, "reason": reason}
                try:
                    await owner.aclose()
                finally:
                    recorder.record(Event(kind=Kind.CELL_FAILED, cell_id=cell_id, data=data))
                raise
            sandbox.ready(owner)
            try:
                yield sandbox
            finally:
                await sandbox.destroy()


def elapsed_ms(began: float) -> float:
    return (time.monotonic() - began) * 1000
