"""Clones: VMs restored from a template; unrenewed, they are destroyed."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from belljar.channel.frames import NEEDED_OF_CLONE
from belljar.errors import CellError, HostError
from belljar.events import Event, JsonValue, Kind, Recorder
from belljar.image.kernel import Kernel
from belljar.image.store import Image
from belljar.isolation.microvm.stream import SavedMachine, allow_shared_memory
from belljar.isolation.microvm.template import (
    Template,
    checked_state,
    disk_binds,
    ensure_template,
    find_key,
)
from belljar.isolation.microvm.vmm import Vmm, VmmSpec
from belljar.isolation.microvm.wire import start_wire
from belljar.isolation.renewal import GivenPort, Renewal, renew
from belljar.isolation.sandbox import elapsed_ms, owned, recorded_lifetime
from belljar.plan.model import MicrovmPlan
from belljar.plan.qemu import MEMORY_PATH, Role
from belljar.store.journal import new_cell_id
from belljar.store.locks import claimed, claimed_for_cell

_RESTORE_DEADLINE_S: Final = 30.0  # emulated, on a busy host
_HELLO_DEADLINE_S: Final = 30.0  # the same


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
    port: GivenPort | None = None,
    part_of: str = "",
    weights: Path | None = None,
    saved: SavedMachine | None = None,
) -> AsyncIterator[Vmm]:
    """As `open_container`, by a clone of the plan's template. Its port is attached once.

    `saved`: it goes on from there instead. Raises `ValueError`: port and plan don't fit.
    """
    if plan.vm.nic != (port is not None):
        raise ValueError("a port goes with a machine that has a network device, and only with it")
    cell_id = cell_id or new_cell_id()

    async def make(owner: AsyncExitStack, held: ExitStack) -> Vmm:
        # A snapshot of this cell, or a revert to one, reads the kernel's parts again.
        held.enter_context(claimed_for_cell(kernel.vmlinuz.parent))
        if weights is not None:
            held.enter_context(claimed(weights))
        if saved is not None:
            template = await anyio.to_thread.run_sync(_load, saved, plan, image, kernel, home)
        else:
            template = await ensure_template(
                plan, image, kernel, home=home, recorder=recorder, held=held, weights=weights
            )
        cloning = Event(kind=Kind.CELL_CLONING, cell_id=cell_id, data={"template": template.key})
        recorder.record(cloning)
        spec = VmmSpec(
            cell_id=cell_id,
            kind="cell",
            role=Role.CLONE,
            shape=plan.vm,
            limits=plan.jail,
            controllers=plan.jail_controllers,
            memory_by_rlimit=plan.memory_by_rlimit,
            root=template.root,
            binds={**disk_binds(image, weights), MEMORY_PATH: template.memory},
            part_of=part_of,
            keeps_monitor=bool(plan.policy.snapshots),
        )
        vmm = Vmm(spec, home, recorder)
        try:
            await _start(vmm, template, owner, recorder=recorder, home=home, port=port)
        except BaseException as exc:
            vmm.raise_if_killed(exc)
            raise
        return vmm

    async with recorded_lifetime(recorder, cell_id, planned, make) as vmm:
        yield vmm


def _load(
    saved: SavedMachine, plan: MicrovmPlan, image: Image, kernel: Kernel, home: Path
) -> Template:
    """Check it. Raises `CellError`: changed; `HostError`: another plan's."""
    key, root = find_key(plan, image, kernel, home)
    if key != saved.key:
        what = "the snapshot was taken with another QEMU, processor, kernel, image or limits"
        hint = "take another snapshot: this one can't be used any more"
        raise HostError(what, where=str(saved.directory), hint=hint)
    try:
        state = checked_state(saved.directory, saved.state_digest, saved.memory_stamp)
    except CellError as error:
        what = f"nothing is made of the snapshot: {error.what}"
        hint = "a snapshot ends with its run; else find out who writes to this store"
        raise CellError(what, where=str(saved.directory), hint=hint) from error
    return Template(key=key, memory=saved.directory / "memory", state=state, root=root)


async def _start(
    vmm: Vmm,
    template: Template,
    owner: AsyncExitStack,
    *,
    recorder: Recorder,
    home: Path,
    port: GivenPort | None,
) -> None:
    began = time.monotonic()
    async with owned(vmm, owner):
        await vmm.start()
        try:
            await allow_shared_memory(vmm)
            if vmm.spec.shape.nic:
                # Else the VMM itself would announce the template's address on the link, five times
                await vmm.qmp.execute("migrate-set-parameters", {"announce-rounds": 0})
            await vmm.qmp.execute("migrate-incoming", {"uri": f"fd:{vmm.state_fd}"})
            await _feed(vmm, template.state)
            await vmm.qmp.wait_migrated(timeout_s=_RESTORE_DEADLINE_S)
        except CellError as exc:
            what = f"the clone could not be restored: {vmm.diagnosis() or exc.what}"
            raise CellError(what, where=f"cell {vmm.cell_id}") from exc
        if port is not None:
            # Before the guest's first instruction: the range's rules are in force when its
            # first frame comes
            await start_wire(vmm, port, home=home)
        await vmm.qmp.execute("cont")
        if not vmm.spec.keeps_monitor:
            # Nothing needs the monitor from here on: a compromised VMM can't use it
            vmm.qmp.close()
        try:
            await vmm.client.hello(timeout_s=_HELLO_DEADLINE_S)
            renewed = await renew(
                vmm.client, Renewal(), port, cell_id=vmm.cell_id, needed=NEEDED_OF_CLONE
            )
        except CellError as exc:
            what = f"the restored guest could not be renewed: {vmm.cause_of_death() or exc.what}"
            raise CellError(what, where=f"cell {vmm.cell_id}") from exc
        recorder.record(renewed)
        vmm.timings_ms["total"] = elapsed_ms(began)
        data: dict[str, JsonValue] = {"template": template.key}
        data["duration_ms"] = round(vmm.timings_ms["total"], 1)
        recorder.record(Event(kind=Kind.CELL_CLONED, cell_id=vmm.cell_id, data=data))


async def _feed(vmm: Vmm, state: bytes) -> None:
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
        what = "the VMM did not take the device state"
        raise CellError(what, where=f"cell {vmm.cell_id}") from exc
