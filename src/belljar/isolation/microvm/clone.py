"""Clones: a cell's VM, restored from its template, made a new machine, and unmade with proof.

A restored guest has its template's randomness, clock and names until RENEW is answered: nothing
runs in it before, and one that can't be renewed is destroyed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import anyio

from belljar.channel import GuestClient
from belljar.errors import CellError
from belljar.events import Event, JsonValue, Kind, Recorder, Trust
from belljar.image import Image, Kernel
from belljar.isolation.hold import Order
from belljar.isolation.jail import JailEnd
from belljar.isolation.jailed import raise_if_killed
from belljar.isolation.lifetime import (
    destroy_on_record,
    record_destroyed,
    recorded_lifetime,
    signal_name,
)
from belljar.isolation.live import HostUsage
from belljar.isolation.microvm.template import (
    Rejection,
    Template,
    allow_shared_memory,
    ensure_template,
)
from belljar.isolation.microvm.touch_watch import watch_guest
from belljar.isolation.microvm.vmm import JailedVmm, VmmSpec, start_vmm
from belljar.isolation.microvm.wire import Wire, start_wire
from belljar.isolation.port import Port
from belljar.isolation.renewal import (
    NEEDED_OF_CLONE,
    NEEDED_ON_A_NETWORK,
    fresh_renewal,
    judge,
    network_of,
    now_ns,
    renewed_names,
)
from belljar.isolation.survivors import Destruction, together
from belljar.isolation.touches import FileWatch
from belljar.plan.jail import JailBind
from belljar.plan.model import MicrovmPlan
from belljar.plan.qemu import DISK_PATH, MEMORY_PATH, Role
from belljar.store.journal import new_cell_id
from belljar.units import format_duration

_RESTORE_DEADLINE_S: Final = 30.0
_HELLO_DEADLINE_S: Final = 30.0
_DEATH_WORD_S: Final = 0.5


class RestoreError(CellError):
    """The template did not become a running guest: the template is suspect, not the cell."""


class LiveVm:
    """A renewed clone that runs. Made only by `open_vm`.

    Attributes:
        cell_id: its name in journal, ledger and on the host.
        client: the channel to its guest agent, ready for commands.
        emulated: True when no hardware virtualisation stands between guest and VMM.
        timings_ms: milliseconds by phase: prepare, vmm_start, restore, renew, total.
        host_pid: the VMM's pid on this host, while it lives.
        wire: what carries its frames; None without a port.
    """

    def __init__(
        self,
        plan: MicrovmPlan,
        vmm: JailedVmm,
        client: GuestClient,
        recorder: Recorder,
        wire: Wire | None = None,
    ) -> None:
        self.cell_id = vmm.spec.cell_id
        self.client = client
        self.emulated = plan.emulated
        self.layers = tuple(layer.name for layer in plan.layers)
        self.memory_bounded_by = "address space" if plan.memory_by_rlimit else "control group"
        self.timings_ms: Mapping[str, float] = vmm.timings_ms
        self.host_pid = (
            vmm.jail.child.pid if vmm.jail is not None and vmm.jail.child is not None else None
        )
        self._lifetime_s = plan.jail.lifetime_s
        self.wire = wire
        self._vmm = vmm
        self._recorder = recorder
        self._ready_s = time.monotonic()

    def console(self) -> bytes:
        """The last 64 KiB that the guest's kernel wrote to its console. The guest's word."""
        return self._vmm.console.read()

    def cause_of_death(self) -> str:
        """Why the cell is dead, as the host saw it; empty while its VMM runs.

        May wait half a second for a supervisor's word.
        """
        cause = cause_of_death(self._vmm, self._lifetime_s)
        end = self._vmm.end()
        # With a wire the VMM's lifeline is the wire's: its end looks like an owner's.
        if self.wire is None or end is None or end.cause != "owner":
            return cause
        return self.wire.cause_of_death(_DEATH_WORD_S) or cause

    def killed(self) -> Order | None:
        """The kill order over it, if there is one."""
        return self._vmm.jailed.killed()

    def death_limit(self) -> str | None:
        """The limit that the cell died of, as the host saw it: `lifetime`, or `memory` when its VMM
        was killed for that; else None.
        """
        return death_limit(self._vmm)

    def oom_kills(self) -> int:
        """How often the host's kernel killed in the VMM's memory group: that is the VMM's own end."""
        return self._vmm.count_oom_kills()

    def refused_forks(self) -> int:
        """How often the host's kernel refused the VMM a thread."""
        return self._vmm.jailed.count_refused_forks()

    def processes_full(self) -> bool:
        """False: the host can't see the guest's processes."""
        return False

    def disk_full(self) -> bool:
        """False: the host can't see into the guest's file systems."""
        return False

    def usage(self) -> HostUsage:
        """As the VMM's control groups have it; what is inside only the guest can tell."""
        return self._vmm.jailed.usage(ready_s=self._ready_s)

    async def watch_files(self, paths: Sequence[str]) -> FileWatch:
        """As `Live.watch_files`: the guest agent is the sensor."""
        return await watch_guest(self.client, paths)

    def kill(self) -> None:
        """Kill the VMM now, from any thread; `destroy` is still to be called."""
        self._vmm.jailed.kill()

    async def wait_dead(self) -> str:
        """Until the VMM has ended; the cause of death."""
        if self._vmm.jail is not None:
            await self._vmm.jail.wait_ended()
        return self.cause_of_death()

    async def destroy(self, *, reason: str = "closed") -> Destruction:
        """Kill the VM, look for survivors by the cell's id, and record what was found.

        Idempotent; shielded from cancellation.
        """
        if self._vmm.destruction is None:
            return await destroy_on_record(self._recorder, self, reason, self._end)
        return await _destroy(self._vmm, self.wire)

    async def _end(self) -> Destruction:
        await self.client.aclose()
        return await _destroy(self._vmm, self.wire)


async def _destroy(vmm: JailedVmm, wire: Wire | None) -> Destruction:
    """Both, the wire first: the VMM ends of its end."""
    if wire is None:
        return await vmm.destroy()
    besides = await wire.destroy()
    return together(await vmm.destroy(), besides)


@asynccontextmanager
async def open_vm(
    plan: MicrovmPlan,
    image: Image,
    kernel: Kernel,
    *,
    home: Path,
    recorder: Recorder,
    planned: Mapping[str, Any],
    cell_id: str | None = None,
    port: Port | None = None,
) -> AsyncIterator[LiveVm]:
    """A clone of the plan's template, renewed and ready; destroyed when the block is left, however
    it is left.

    Args:
        planned: what `cell.planned` is to say; recorded before anything is made.
        cell_id: default a new one.
        port: its place on a range's network, attached before the guest runs, once; with a plan
            whose machine has a network device, and only then.

    Raises:
        ValueError: port and plan don't fit.
        HostError: this host can't. CellError: the cell could not be made; nothing is left of it. A
            template that does not restore is rebuilt once.

    No task group or cancel scope is open across the yield: entry and exit may happen in different
    tasks.
    """
    if plan.vm.nic != (port is not None):
        raise ValueError("a port goes with a machine that has a network device, and only with it")
    cell_id = cell_id or new_cell_id()
    async with recorded_lifetime(
        recorder,
        cell_id,
        planned,
        partial(_clone, plan, image, kernel, home, recorder, cell_id, port),
    ) as vm:
        yield vm


async def _clone(
    plan: MicrovmPlan,
    image: Image,
    kernel: Kernel,
    home: Path,
    recorder: Recorder,
    cell_id: str,
    port: Port | None,
    held: ExitStack,
) -> LiveVm:
    """One clone; if its template does not restore, the template is made again and one more.

    What it is cloned from is held.
    """
    template = await ensure_template(plan, image, kernel, home=home, recorder=recorder, held=held)
    try:
        return await _clone_of(template, plan, image, home, recorder, cell_id, port)
    except RestoreError as exc:
        rejection = Rejection(template=template, reason=f"it did not restore: {exc.what}")
    template = await ensure_template(
        plan, image, kernel, home=home, recorder=recorder, rejection=rejection, held=held
    )
    return await _clone_of(template, plan, image, home, recorder, cell_id, port)


async def _clone_of(
    template: Template,
    plan: MicrovmPlan,
    image: Image,
    home: Path,
    recorder: Recorder,
    cell_id: str,
    port: Port | None,
) -> LiveVm:
    recorder.record(Event(kind=Kind.CELL_CLONING, cell_id=cell_id, data={"template": template.key}))
    started = time.monotonic()
    spec = VmmSpec(
        cell_id=cell_id,
        kind="cell",
        role=Role.CLONE,
        shape=plan.vm,
        limits=plan.jail,
        controllers=plan.jail_controllers,
        memory_by_rlimit=plan.memory_by_rlimit,
        root=template.root,
        binds=(
            JailBind(source=image.rootfs, target=DISK_PATH),
            JailBind(source=template.memory, target=MEMORY_PATH),
        ),
        part_of="" if port is None else port.range_id,
    )
    vmm = await start_vmm(spec, home=home)
    client = GuestClient.from_socket(vmm.agent)
    wire = None
    try:
        await _restore(vmm, template)
        wire = await _plug(vmm, port, home)
        await _resume(vmm)
        await _renew(vmm, client, recorder, plan.jail.lifetime_s, port)
        vmm.timings_ms["total"] = (time.monotonic() - started) * 1000
        _record_cloned(recorder, vmm, template)
    except BaseException as exc:
        with anyio.CancelScope(shield=True):
            await client.aclose()
            record_destroyed(recorder, cell_id, await _destroy(vmm, wire))
        raise_if_killed(vmm.jailed, exc)  # the template is not to blame
        # A port is attached once: no second try
        if wire is not None and isinstance(exc, RestoreError):
            raise CellError(exc.what, where=exc.where, hint=exc.hint) from exc
        raise
    return LiveVm(plan, vmm, client, recorder, wire)


async def _plug(vmm: JailedVmm, port: Port | None, home: Path) -> Wire | None:
    """The wire, before the guest's first instruction: the range's rules stand when its first frame
    comes.
    """
    if port is None:
        return None
    started = time.monotonic()
    wire = await start_wire(vmm, port, home=home)
    vmm.timings_ms["wire"] = (time.monotonic() - started) * 1000
    return wire


def _record_cloned(recorder: Recorder, vmm: JailedVmm, template: Template) -> None:
    timings: dict[str, JsonValue] = {name: round(ms, 1) for name, ms in vmm.timings_ms.items()}
    data: dict[str, JsonValue] = {
        "template": template.key,
        "duration_ms": round(vmm.timings_ms["total"], 1),
        "timings_ms": timings,
    }
    recorder.record(Event(kind=Kind.CELL_CLONED, cell_id=vmm.spec.cell_id, data=data))


async def _restore(vmm: JailedVmm, template: Template) -> None:
    """Give the VMM the device state, the very bytes that were checked.

    The guest stands still yet.
    """
    started = time.monotonic()
    try:
        await allow_shared_memory(vmm)
        if (
            vmm.spec.shape.nic
            # Else the VMM itself would tell the link of its arrival, five times, by the template's
            # address
        ):
            await vmm.qmp.execute("migrate-set-parameters", {"announce-rounds": 0})
        await vmm.qmp.execute("migrate-incoming", {"uri": f"fd:{vmm.state_fd}"})
        await _feed(vmm, template.state)
        await vmm.qmp.wait_migrated(timeout_s=_RESTORE_DEADLINE_S)
    except CellError as exc:
        raise _not_restored(vmm, exc) from exc
    vmm.timings_ms["restore"] = (time.monotonic() - started) * 1000


async def _resume(vmm: JailedVmm) -> None:
    started = time.monotonic()
    try:
        await vmm.qmp.execute("cont")
    except CellError as exc:
        raise _not_restored(vmm, exc) from exc
    # Nothing needs the monitor from here on: what a taken-over VMM might say on it, nobody hears.
    vmm.qmp.close()
    vmm.timings_ms["restore"] += (time.monotonic() - started) * 1000


def _not_restored(vmm: JailedVmm, error: CellError) -> RestoreError:
    said = vmm.diagnosis()
    return RestoreError(
        f"the clone could not be restored: {said or error.what}", where=f"cell {vmm.spec.cell_id}"
    )


async def _feed(vmm: JailedVmm, state: bytes) -> None:
    sock = vmm.state
    if sock is None:
        raise RuntimeError("this VMM takes no state")
    sock.setblocking(False)  # noqa: FBT003
    left = memoryview(state)
    try:
        with anyio.fail_after(_RESTORE_DEADLINE_S):
            while left:
                await anyio.wait_writable(sock)
                left = left[sock.send(left) :]
        sock.shutdown(socket.SHUT_WR)
    except (OSError, TimeoutError) as exc:
        raise CellError(
            "the VMM did not take the device state", where=f"cell {vmm.spec.cell_id}"
        ) from exc


async def _renew(
    vmm: JailedVmm, client: GuestClient, recorder: Recorder, lifetime_s: float, port: Port | None
) -> None:
    started = time.monotonic()
    cell_id, new = vmm.spec.cell_id, fresh_renewal()
    try:
        await client.hello(timeout_s=_HELLO_DEADLINE_S)
        renewed = await client.renew(
            realtime_ns=now_ns(),
            seed=new.seed,
            machine_id=new.machine_id,
            boot_id=new.boot_id,
            hostname=new.hostname,
            network=b"" if port is None else network_of(port.settings),
        )
    except CellError as exc:
        cause = cause_of_death(vmm, lifetime_s) or exc.what
        raise RestoreError(
            f"the restored guest could not be renewed: {cause}", where=f"cell {cell_id}"
        ) from exc
    judge(
        renewed,
        where=f"cell {cell_id}",
        needed=NEEDED_OF_CLONE if port is None else NEEDED_ON_A_NETWORK,
    )
    data: dict[str, JsonValue] = {
        "done": list(renewed_names(renewed)),
        "machine_id": new.machine_id,
        "hostname": new.hostname,
        **(
            {}
            if port is None
            else {"address": str(port.settings.address), "mac": port.settings.mac}
        ),
    }
    recorder.record(
        Event(kind=Kind.CELL_RENEWED, cell_id=cell_id, data=data, trust=Trust.GUEST_REPORTED)
    )
    vmm.timings_ms["renew"] = (time.monotonic() - started) * 1000


class Ended(Protocol):
    """What the cause of death is read from."""

    def end(self) -> JailEnd | None:
        """How it ended, as far as is known."""
        ...

    def last_word(self, timeout_s: float) -> JailEnd | None:
        """As `end`, after a moment."""
        ...

    def count_oom_kills(self) -> int:
        """How often the kernel killed in its memory group."""
        ...

    def panic(self) -> str:
        """What the guest's kernel panicked of, escaped."""
        ...

    def diagnosis(self) -> str:
        """What the VMM wrote on standard error, escaped."""
        ...


def cause_of_death(vmm: Ended, lifetime_s: float) -> str:
    """One sentence, from what the host saw; empty while the VMM runs."""
    end = vmm.end() or vmm.last_word(_DEATH_WORD_S)
    if end is None:
        return ""
    if end.cause == "lifetime":
        return f"its lifetime of {format_duration(lifetime_s)} was reached"
    if end.cause == "owner":
        return "its owner ended it"
    if panic := vmm.panic():
        return f"the guest's kernel panicked: {panic}"
    if end.signal is not None:
        memory = " (out of memory in its control group)" if vmm.count_oom_kills() else ""
        return f"the VMM was killed by signal {signal_name(end.signal)}{memory}"
    said = vmm.diagnosis()
    return f"the guest shut down or the VMM ended with status {end.status}{': ' + said if said else ''}"


def death_limit(vmm: Ended) -> str | None:
    """The limit that ended it, from what the host saw; None while it runs or when it was none."""
    end = vmm.end()
    if end is None:
        return None
    if end.cause == "lifetime":
        return "lifetime"
    return (
        "memory"
        if end.signal is not None and end.cause == "itself" and vmm.count_oom_kills()
        else None
    )
