"""What every jailed thing of a cell shares, whatever runs in it: its identity, journal entry,
control groups and jail, and its unmaking with proof.

The order is the journal's: what is made is named there first. It holds no task and no cancel scope
open.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from belljar.dataclass import dataclass
from belljar.errors import BelljarError, HostError
from belljar.isolation import cgroup
from belljar.isolation.hold import Order, killed_error, read_order, refuse_if_forbidden
from belljar.isolation.identity import HeldIdentity
from belljar.isolation.jail import Jail, JailEnd, start_jail
from belljar.isolation.live import HostUsage
from belljar.isolation.program_root import STORE_HINT
from belljar.isolation.survivors import Destruction, destroy_remains
from belljar.plan.jail import JailLimits, JailSpec
from belljar.process import ProcessId, descends_from, kill
from belljar.store.journal import EntryKind, Journal, JournalEntry, own_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedResources:
    """What a jailed thing is called, may use and owns.

    `directories` are its own and vanish with it; `part_of` as `JournalEntry`'s.
    """

    cell_id: str
    kind: EntryKind
    limits: JailLimits
    controllers: tuple[str, ...]
    directories: tuple[Path, ...] = ()
    part_of: str = ""


_NAMELESS_CHILD_S: Final = 1.0
_while_starting: Final[list[Callable[[], object]]] = []


def do_while_starting(action: Callable[[], object]) -> None:
    """Have `action` done once, in the time that the next jail's program takes to come up: it blocks
    who started it, and what it raises ends that jail.

    For what a cell needs only when it runs, such as imports.
    """
    _while_starting.append(action)


class Jailed:
    """One jail with all that belongs to it. `destroy` must be called, whatever happened before.

    Args:
        identity: held until the last look for survivors is over.
        let_go: called when everything in the jail is dead, before that look: the owner's ends of
            what the jail had.

    Raises:
        HostError: no identity is free, or a control group that the plan counts on isn't there.
    """

    def __init__(
        self,
        owned_resources: OwnedResources,
        home: Path,
        identity: AbstractContextManager[HeldIdentity],
        *,
        let_go: Callable[[], None],
    ) -> None:
        self.owned_resources = owned_resources
        self.jail: Jail | None = None
        self.destruction: Destruction | None = None
        self._counts = {"oom_kills": 0, "refused_forks": 0, "memory_peak_bytes": 0}
        self._home, self._journal = home, Journal(home)
        self._entry: JournalEntry | None = None
        self._order: Order | None = None
        self._let_go = let_go
        with ExitStack() as undo:
            self.identity: HeldIdentity = undo.enter_context(identity)
            self.groups = cgroup.plan_groups(owned_resources.cell_id, owned_resources.controllers)
            self._held = undo.pop_all()

    def make(self, *, cpu_later: bool = False) -> None:
        """Journal, then create the groups.

        Blocking. Raises `HostError`, and `CellError` when it was killed; `destroy` removes what was
        made by then.

        Args:
            cpu_later: the processor's quota waits for `limit_cpu`: what starts before the workload
                would only be slowed down by it.
        """
        mine = self.owned_resources
        self._entry = own_entry(
            mine.cell_id,
            mine.kind,
            cgroups=self.groups.directories,
            directories=mine.directories,
            host_uid=self.identity.own_uid,
            uid_count=self.identity.uid_count,
            part_of=mine.part_of,
        )
        try:
            self._journal.write(self._entry)
        except OSError as exc:
            raise HostError(
                f"the journal can't be written: {exc.strerror}",
                where=str(self._journal.directory),
                hint=STORE_HINT,
            ) from exc
        self._refuse_if_forbidden()
        limits = replace(mine.limits, cpu_quota_percent=None) if cpu_later else mine.limits
        cgroup.make_groups(self.groups, limits)

    def limit_cpu(self) -> None:
        """Set the quota that `make` left out. Raises `HostError`."""
        cgroup.limit_cpu(self.groups, self.owned_resources.limits)

    def start(
        self,
        spec: JailSpec,
        program: tuple[str, ...],
        *,
        kept: tuple[int, ...],
        stdin_fd: int | None = None,
        user_namespace: int | None = None,
    ) -> None:
        """Start the program; `wait_running` says whether it came up.

        As `start_jail`. The descriptors given stay open here. Raises `HostError`.
        """
        self.jail = start_jail(
            spec,
            program,
            kept=kept,
            hold=self.identity.lock_fd,
            stdin_fd=stdin_fd,
            user_namespace=user_namespace,
        )
        while _while_starting:
            with suppress(IndexError):  # another thread's
                _while_starting.pop()()

    async def wait_network(self) -> ProcessId:
        """As `Jail.wait_network`."""
        return await self._started().wait_network()

    def go_on(self) -> None:
        """As `Jail.go_on`."""
        self._started().go_on()

    async def wait_running(self) -> None:
        """Until the program runs, and the journal knows by what it is known.

        Raises `HostError` or `CellError`.
        """
        jail = self._started()
        await jail.wait_running()
        if self._entry is None:
            raise RuntimeError("what was not made has no entry")
        self._entry = self._journal.update(
            self._entry, supervisor=jail.supervisor, child=jail.child, namespaces=jail.namespaces
        )
        self._refuse_if_forbidden()  # whoever read the journal before did not know whom to kill

    def end(self) -> JailEnd | None:
        """How the program ended, if it has, as far as its supervisor has said. Does not wait."""
        return None if self.jail is None else self.jail.read_status()

    def last_word(self, timeout_s: float) -> JailEnd | None:
        """As `end`, but waits a moment: a program's sockets close a little before its supervisor
        can say how it ended. Blocking.
        """
        return None if self.jail is None else self.jail.last_word(timeout_s)

    async def wait_ended(self) -> None:
        """Until the program has ended."""
        if self.jail is not None:
            await self.jail.wait_ended()

    def diagnosis(self) -> str:
        """What launcher and program wrote on standard error, escaped and bounded."""
        return "" if self.jail is None else self.jail.diagnosis()

    def host_pid(self) -> int | None:
        """The pid of the jail's pid 1, as the host counts."""
        return None if self.jail is None or self.jail.child is None else self.jail.child.pid

    def killed(self) -> Order | None:
        """The kill order over it, if there is one, also after its end."""
        if self._order is None:
            self._order = read_order(self._home, self.owned_resources.cell_id)
        return self._order

    def holds(self, pid: int) -> bool:
        """Whether the process, as the host counts, is one of the jail's that live."""
        supervisor = None if self.jail is None else self.jail.supervisor
        return supervisor is not None and descends_from(pid, supervisor.pid)

    def kill(self) -> None:
        """SIGKILL to the jail's pid 1, whose end is the end of everything in it.

        From any thread; nothing happens when it has ended.
        """
        if self.jail is not None and self.jail.child is not None:
            with suppress(OSError):
                kill(self.jail.child)

    def count_oom_kills(self) -> int:
        """How often the kernel killed in the memory group, now or, after its end, until then."""
        return self._count("oom_kills", "memory", cgroup.out_of_memory_kills)

    def count_refused_forks(self) -> int:
        """How often the kernel refused a process in the pids group, now or, after its end, until
        then.
        """
        return self._count("refused_forks", "pids", cgroup.refused_forks)

    def memory_peak_bytes(self) -> int:
        """The most memory that was in use at once, now or, after its end, until then; 0 when that
        isn't known.
        """
        return self._count("memory_peak_bytes", "memory", cgroup.memory_peak_bytes)

    def count_processes(self) -> tuple[int, int]:
        """How many processes and threads there are now, and were at most, as the pids group has it;
        zeros without one.
        """
        group = self.groups.paths.get("pids")
        return (0, 0) if group is None else cgroup.process_counts(group)

    def usage(
        self, *, ready_s: float, layer: Path | None = None, own_processes: int | None = None
    ) -> HostUsage:
        """What it uses now, as its control groups count.

        Args:
            ready_s: since when it is ready, by `time.monotonic`.
            layer: where the file system that its workload writes to can be seen.
            own_processes: how many of the group's are none of the workload's; None: all.
        """
        groups, limits = self.groups.paths, self.owned_resources.limits
        counts = next((groups[name] for name in ("cpu", "pids", "memory") if name in groups), None)
        memory = cgroup.memory_bytes(groups["memory"]) if "memory" in groups else None
        processes = self.count_processes()[0]
        disk: int | None = None
        if layer is not None:
            with suppress(OSError):  # an ordinary user may not look
                found = os.statvfs(layer)
                disk = (found.f_blocks - found.f_bfree) * found.f_frsize
        return HostUsage(
            uptime_s=time.monotonic() - ready_s,
            cpu_s=None if counts is None else cgroup.cpu_s(counts),
            memory_bytes=memory,
            memory_limit_bytes=None if memory is None else limits.memory_max_bytes,
            disk_bytes=disk,
            processes=None
            if own_processes is None or not processes
            else max(0, processes - own_processes),
        )

    async def destroy(self) -> Destruction:
        """Kill, look for survivors, forget the cell.

        Idempotent, shielded from cancellation, bounded to some ten seconds.
        """
        if self.destruction is not None:
            return self.destruction
        with anyio.CancelScope(shield=True):
            started = time.monotonic()
            if self.jail is not None:
                await self.jail.end()
            self.destruction = destruction = await anyio.to_thread.run_sync(self._unmake, started)
        return destruction

    def _started(self) -> Jail:
        if self.jail is None:
            raise RuntimeError("nothing was started")
        return self.jail

    def _refuse_if_forbidden(self) -> None:
        mine = self.owned_resources
        refuse_if_forbidden(self._home, mine.cell_id, is_proof=mine.kind == "proof")

    def _count(self, what: str, controller: str, read: Callable[[Path], int]) -> int:
        group = self.groups.paths.get(controller)
        if group is not None:
            self._counts[what] = max(self._counts[what], read(group))
        return self._counts[what]

    def _unmake(self, started: float) -> Destruction:
        self.count_oom_kills()
        self.count_refused_forks()
        self.memory_peak_bytes()
        # A supervisor that died before it named its child: the kernel kills that, and it takes a
        # moment.
        is_nameless = self.jail is not None and self.jail.child is None
        cgroup.remove_empty(self.groups, wait_s=_NAMELESS_CHILD_S if is_nameless else 0.0)
        for directory in self.owned_resources.directories:
            shutil.rmtree(directory, ignore_errors=True)
        self._let_go()
        # Ids and namespaces stay this cell's until the look is over: another cell could have their
        # numbers at once.
        with self._held:
            if self._entry is None:
                return Destruction(
                    survivors=(), looked_for=(), duration_ms=(time.monotonic() - started) * 1000
                )
            destruction = destroy_remains(self._entry, started, store=self._home)
            if self.jail is not None:
                self.jail.release_namespaces()
            if not destruction.unproven:  # else `reap` looks again
                self.killed()
                with suppress(OSError):
                    self._journal.remove(self.owned_resources.cell_id)
        return destruction


def raise_if_killed(jailed: Jailed, error: BaseException) -> None:
    """A kill order explains whatever else went wrong with it. Raises `CellError`."""
    killed = killed_error(jailed.killed(), where=f"cell {jailed.owned_resources.cell_id}")
    if isinstance(error, BelljarError) and killed is not None:
        raise killed from error
