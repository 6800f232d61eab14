"""A container cell that runs, and how it is opened."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from belljar.events import Event, JsonValue, Kind, Recorder, Trust
from belljar.image import Image
from belljar.isolation.lifetime import destroy_on_record, recorded_lifetime
from belljar.isolation.live import HostUsage
from belljar.isolation.oci.container import (
    LAYER,
    ContainerSpec,
    JailedContainer,
    start_container,
)
from belljar.isolation.oci.runtime_root import ensure_runtime_root
from belljar.isolation.oci.trace import watch_sandbox
from belljar.isolation.oci.trees import held_tree
from belljar.isolation.oci.watching import watch_container
from belljar.isolation.oci.words import (
    cause_of_death,
    death_limit,
)
from belljar.isolation.port import Port
from belljar.isolation.renewal import (
    Renewal,
    fresh_renewal,
)
from belljar.isolation.survivors import Destruction
from belljar.isolation.touches import FileWatch
from belljar.plan.model import OciPlan
from belljar.store.journal import new_cell_id

_AGENTS_PROCESSES: Final = 2


class LiveContainer:
    """A container that runs. Made only by `open_container`. As `isolation.live.Live`.

    Attributes:
        timings_ms: milliseconds by phase: prepare, network (with a port), runtime, renew, total.
    """

    def __init__(self, plan: OciPlan, container: JailedContainer, recorder: Recorder) -> None:
        self.cell_id = container.spec.cell_id
        self.client = container.client
        self.emulated = False
        self.layers = tuple(layer.name for layer in plan.layers)
        self.timings_ms: Mapping[str, float] = container.timings_ms
        self.host_pid = container.jailed.host_pid()
        self.killed = container.jailed.killed
        self._container = container
        self._recorder = recorder
        self._oom_kills_while_alive = 0
        self._ready_s = time.monotonic()

    def console(self) -> bytes:
        """What launcher and runtime wrote on standard error."""
        return self._container.jailed.diagnosis().encode()

    def cause_of_death(self) -> str:
        """Why the cell is dead, as the host saw it; empty while its agent runs.

        May wait half a second for the supervisor's word.
        """
        spec = self._container.spec
        kind = spec.shape.runtime.kind
        return cause_of_death(
            self._container.jailed, spec.limits, kind, fatal_oom_kills=self._fatal_oom_kills()
        )

    def death_limit(self) -> str | None:
        """The limit that the cell died of: `lifetime`, `memory`, or None."""
        return death_limit(self._container.jailed.end(), fatal_oom_kills=self._fatal_oom_kills())

    def oom_kills(self) -> int:
        """How often the host's kernel killed in the cell's memory group."""
        count = self._container.jailed.count_oom_kills()
        if self._container.jailed.end() is None:
            self._oom_kills_while_alive = count
        return count

    def refused_forks(self) -> int:
        """How often the host's kernel refused the cell a process; to have had as many as the
        workload may have counts once.
        """
        return self._container.jailed.count_refused_forks() + self._is_crowd(now=False)

    def processes_full(self) -> bool:
        """Whether there are as many processes now as the workload may have.

        Its own limit inside is the nearer one, and nobody counts what that refuses.
        """
        return self._is_crowd(now=True)

    def disk_full(self) -> bool:
        """Whether the writable layer has no room or no inode left now.

        False where the host lets us not look (an ordinary user).
        """
        try:
            found = os.statvfs(f"/proc/{self.host_pid}/root{LAYER}")
        except OSError:
            return False
        return not found.f_bavail or not found.f_favail

    def usage(self) -> HostUsage:
        """As its control groups have it, its writable layer, and outside of gVisor its processes."""
        own = _AGENTS_PROCESSES if self._container.spec.shape.runtime.kind == "runc" else None
        layer = Path(f"/proc/{self.host_pid}/root{LAYER}")
        return self._container.jailed.usage(ready_s=self._ready_s, layer=layer, own_processes=own)

    async def watch_files(self, paths: Sequence[str]) -> FileWatch:
        """As `Live.watch_files`."""
        if self._container.spec.shape.runtime.kind == "runc":
            return await watch_container(self.host_pid, paths, self.client.own_reads)
        return await watch_sandbox(self._container.trace, paths, self.client.own_reads)

    def kill(self) -> None:
        """Kill everything in it now, from any thread; `destroy` is still to be called."""
        self._container.jailed.kill()

    async def wait_dead(self) -> str:
        """Until the container has ended; the cause of death."""
        await self._container.jailed.wait_ended()
        return self.cause_of_death()

    async def destroy(self, *, reason: str = "closed") -> Destruction:
        """Kill it, look for survivors, and record what was found.

        Idempotent; shielded from cancellation.
        """
        if self._container.jailed.destruction is None:
            return await destroy_on_record(self._recorder, self, reason, self._container.destroy)
        return await self._container.destroy()

    def _is_crowd(self, *, now: bool) -> bool:
        """As many processes as the workload may have, and the agent's two. gVisor's processes are
        not the host's: its agent counts them.
        """
        shape = self._container.spec.shape
        count = self._container.jailed.count_processes()[0 if now else 1]
        return shape.runtime.kind == "runc" and count >= shape.processes + _AGENTS_PROCESSES

    def _fatal_oom_kills(self) -> int:
        """Kills that the cell did not live on from."""
        return self._container.jailed.count_oom_kills() - self._oom_kills_while_alive


@asynccontextmanager
async def open_container(
    plan: OciPlan,
    image: Image,
    *,
    home: Path,
    recorder: Recorder,
    planned: Mapping[str, Any],
    cell_id: str | None = None,
    port: Port | None = None,
) -> AsyncIterator[LiveContainer]:
    """A container of the plan, ready; destroyed when the block is left, however it is left.

    Args:
        planned: what `cell.planned` is to say; recorded before anything is made.
        cell_id: default a new one.
        port: the cell's place on its range's network, attached before anything of the runtime's
            runs. None: no network at all.

    Raises:
        HostError: this host can't. CellError: the container could not be made, with the runtime's
            status and words; nothing is left of it.

    No task group or cancel scope is open across the yield: entry and exit may happen in different
    tasks.
    """
    cell_id = cell_id or new_cell_id()
    async with recorded_lifetime(
        recorder, cell_id, planned, partial(_start, plan, image, home, recorder, cell_id, port)
    ) as live:
        yield live


async def _start(
    plan: OciPlan,
    image: Image,
    home: Path,
    recorder: Recorder,
    cell_id: str,
    port: Port | None,
    held: ExitStack,
) -> LiveContainer:
    tree = await held_tree(home, image, held)
    runtime = plan.oci.runtime
    root = ensure_runtime_root(home, runtime)
    data: dict[str, JsonValue] = {"runtime": f"{runtime.name} {root.version}", "tree": image.digest}
    recorder.record(Event(kind=Kind.CELL_STARTING, cell_id=cell_id, data=data))
    renewal = fresh_renewal()
    spec = ContainerSpec(
        cell_id=cell_id,
        kind="cell",
        shape=plan.oci,
        limits=plan.jail,
        controllers=plan.jail_controllers,
        memory_by_rlimit=plan.memory_by_rlimit,
        root=root,
        tree=tree,
        hostname=renewal.hostname,
        directory=home / "cells" / cell_id,
        port=port,
        is_traced=bool(plan.policy.decoys) and plan.oci.runtime.kind == "runsc",
    )
    container, done = await start_container(spec, renewal, home=home, recorder=recorder)
    try:
        _record_started(recorder, container, renewal, done)
    except BaseException:
        await container.destroy()
        raise
    return LiveContainer(plan, container, recorder)


def _record_started(
    recorder: Recorder, container: JailedContainer, renewal: Renewal, done: list[str]
) -> None:
    cell_id = container.spec.cell_id
    renewed: dict[str, JsonValue] = {
        "done": list(done),
        "machine_id": renewal.machine_id,
        "hostname": renewal.hostname,
    }
    recorder.record(
        Event(kind=Kind.CELL_RENEWED, cell_id=cell_id, data=renewed, trust=Trust.GUEST_REPORTED)
    )
    timings: dict[str, JsonValue] = {
        name: round(ms, 1) for name, ms in container.timings_ms.items()
    }
    data: dict[str, JsonValue] = {"duration_ms": timings["total"], "timings_ms": timings}
    if container.attempts > 1:
        data["attempts"] = container.attempts
    recorder.record(Event(kind=Kind.CELL_STARTED, cell_id=cell_id, data=data))
