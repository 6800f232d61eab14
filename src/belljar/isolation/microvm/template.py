"""Templates: guests booted, configured, idle and stopped; and the clones restored from them.

`templates/<key>/{memory,state,template.json}`; the key covers all inputs (`plan/qemu.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from belljar.channel.frames import NEEDED_OF_CLONE, config_payload
from belljar.errors import CellError, HostError, host_errors
from belljar.events import Kind, Recorder, note
from belljar.image.kernel import Kernel
from belljar.image.store import Image
from belljar.isolation.microvm import guest_files
from belljar.isolation.microvm.stream import SavedMachine, allow_shared_memory, save_stopped
from belljar.isolation.microvm.vmm import Vmm, VmmSpec, start_vmm, start_wire
from belljar.isolation.program_root import STORE_HINT, ProgramRoot, ensure_vmm_root, file_stamp
from belljar.isolation.renewal import GivenPort, Renewal, renew
from belljar.isolation.sandbox import elapsed_ms, owned, recorded_lifetime
from belljar.plan import qemu
from belljar.plan.model import MicrovmPlan
from belljar.process import cpu_ticks
from belljar.store.home import sync_file
from belljar.store.journal import new_cell_id
from belljar.store.locks import claimed, claimed_for_cell, locked_meanwhile
from belljar.store.scratch import MAKING, owned_name, sweep

BOOT_DEADLINE_S: Final = 180.0  # emulated on a busy host, a boot takes a minute
# Files and directories of the image that the guest's kernel has at hand in the snapshot; absent
# ones are skipped.
PRELOADED: Final = tuple(
    """
    /bin/sh /usr/bin/env /usr/bin/bash /usr/bin/true /usr/bin/cat /usr/bin/ls /usr/bin/echo
    /lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/libc.so.6 /etc/ld.so.cache
    /etc/passwd /etc/group /root /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin
    """.split()  # noqa: SIM905 - shorter to read
)
_BUILD_LIFETIME_S: Final = 600.0  # ends it though its owner is stopped
_CONFIGURE_DEADLINE_S: Final = 120.0
# A machine that used less than a tenth of a processor in it has booted: clones begin at rest.
_IDLE_WINDOW_S: Final = 0.25
# A guest that is never idle is saved all the same: its clones just begin busier.
_IDLE_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """`state` are the very bytes that were checked."""

    key: str
    memory: Path
    state: bytes
    root: ProgramRoot


@dataclass(frozen=True, slots=True)
class TemplateJob:
    plan: MicrovmPlan
    image: Image
    kernel: Kernel
    home: Path
    guest: guest_files.GuestParts
    root: ProgramRoot
    key: str
    weights: Path | None

    @property
    def directory(self) -> Path:
        return self.home / "templates" / self.key


async def ensure_template(
    job: TemplateJob, recorder: Recorder, held: ExitStack | None = None
) -> Template:
    """Keep it while `held` is open. Raises `HostError`, `CellError`."""
    with ExitStack() as briefly:
        load = partial(_load, job, briefly if held is None else held)
        template, why = await anyio.to_thread.run_sync(load)
        if template is None:
            async with locked_meanwhile(job.home, lock_name(job.key)):
                # Another process may have been quicker.
                template, why = await anyio.to_thread.run_sync(load)
                if why:
                    note(recorder, Kind.TEMPLATE_REJECTED, key=job.key, reason=why)
                    remove = partial(shutil.rmtree, job.directory, ignore_errors=True)
                    await anyio.to_thread.run_sync(remove)
                if template is None:
                    await _build(job, recorder)
                    template, why = await anyio.to_thread.run_sync(load)
        if template is None:
            what = f"the template that was just made is not usable: {why}"
            raise CellError(what, where=str(job.directory))
        return template


def lock_name(key: str) -> str:
    return f"template-{key[:16]}"


def find_job(
    plan: MicrovmPlan, image: Image, kernel: Kernel, home: Path, weights: Path | None = None
) -> TemplateJob:
    if plan.vm.data_disk != (weights is not None):
        raise ValueError("weights go with a machine that has a second disk, and only with it")
    if weights is not None:
        guest_files.ensure_data_disk(home, weights)
    guest = guest_files.read_guest_parts(kernel, nic=plan.vm.nic)
    root = ensure_vmm_root(home, plan.vm.accel)
    inputs = qemu.TemplateInputs(
        image_digest=image.digest,
        kernel_digest=kernel.digest,
        initramfs_digest=guest.digest,
        vmm_version=root.version,
        vmm_digest=root.digest,
        host_cpu=_host_cpu(plan.vm.accel),
        shape=plan.vm,
        guest=plan.guest,
        data_digest="" if weights is None else weights.name,
        preload=PRELOADED,
    )
    return TemplateJob(plan, image, kernel, home, guest, root, qemu.template_key(inputs), weights)


def _host_cpu(accel: qemu.Accel) -> str:
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    if accel == "tcg":
        names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
        return next(names, "").strip()
    telling = ("vendor_id", "cpu family", "model\t", "model name", "stepping", "microcode", "flags")
    return "; ".join([platform.release(), *(line for line in lines if line.startswith(telling))])


def _load(job: TemplateJob, held: ExitStack) -> tuple[Template | None, str]:
    """Claim it in `held`, or say why not (empty: missing)."""
    with ExitStack() as claim:
        try:
            claim.enter_context(claimed(job.directory))
        except FileNotFoundError:  # or it is being removed now
            return None, ""
        try:
            description = json.loads((job.directory / "template.json").read_text())
            stamp = description["memory_stamp"]
            state = checked_state(job.directory, description["state_sha256"], stamp)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            return None, f"it can't be read: {exc}"
        except CellError as exc:
            return None, exc.what
        held.push(claim.pop_all())
    memory = job.directory / "memory"
    return Template(key=job.key, memory=memory, state=state, root=job.root), ""


def checked_state(directory: Path, state_digest: str, memory_stamp: Sequence[int]) -> bytes:
    """Raise `CellError` if it changed, or can't be read."""
    try:
        state, stamp = (directory / "state").read_bytes(), file_stamp(directory / "memory")
    except OSError as error:
        what = f"a saved machine can't be read: {error.strerror}"
        raise CellError(what, where=str(directory)) from error
    is_state = hashlib.sha256(state).hexdigest() == state_digest
    if not is_state or stamp != list(memory_stamp):
        what = f"the {'memory' if is_state else 'device state'} is not the one that was saved"
        raise CellError(what, where=str(directory))
    return state


async def _build(job: TemplateJob, recorder: Recorder) -> None:
    cell_id = new_cell_id()
    scratch = job.home / "templates" / owned_name(MAKING, cell_id)
    note(recorder, Kind.TEMPLATE_BUILDING, cell_id, key=job.key)
    started = time.monotonic()
    try:
        with host_errors("a template could not be made", where=scratch.parent, hint=STORE_HINT):
            scratch.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
            await anyio.to_thread.run_sync(partial(sweep, scratch.parent, prefix=MAKING))
            scratch.mkdir(mode=0o711)
            initrd = job.guest.initramfs()
            await anyio.to_thread.run_sync(guest_files.write_read_only, scratch / "initrd", initrd)
            with claimed_for_cell(job.kernel.vmlinuz.parent):
                state = await _boot_and_save(job, cell_id, scratch)
            await anyio.to_thread.run_sync(_finish, job, scratch, state)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(shutil.rmtree, scratch, ignore_errors=True))
        raise
    duration_ms = round(elapsed_ms(started))
    note(recorder, Kind.TEMPLATE_BUILT, cell_id, key=job.key, duration_ms=duration_ms)


def disk_binds(image: Image, weights: Path | None) -> dict[str, Path]:
    data = {} if weights is None else {qemu.DATA_DISK_PATH: weights / guest_files.DATA_DISK}
    return {qemu.DISK_PATH: image.rootfs, **data}


async def _boot_and_save(job: TemplateJob, cell_id: str, scratch: Path) -> bytes:
    plan = job.plan
    binds = {qemu.KERNEL_PATH: job.kernel.vmlinuz, qemu.INITRD_PATH: scratch / "initrd"}
    binds |= disk_binds(job.image, job.weights)
    spec = VmmSpec(
        cell_id=cell_id,
        kind="template",
        role=qemu.Role.TEMPLATE,
        shape=plan.vm,
        limits=replace(plan.jail, lifetime_s=_BUILD_LIFETIME_S),
        controllers=plan.jail_controllers,
        memory_by_rlimit=plan.memory_by_rlimit,
        root=job.root,
        binds=binds,
    )
    async with AsyncExitStack() as owner:
        vmm = await start_vmm(spec, home=job.home, owner=owner)
        try:
            await vmm.client.wait_ready(timeout_s=BOOT_DEADLINE_S)
            await vmm.client.hello()
            limits = asdict(plan.guest)
            payload = config_payload(**limits, hostname="localhost", warm_paths=PRELOADED)
            await vmm.client.configure(payload, timeout_s=_CONFIGURE_DEADLINE_S)
            await _wait_idle(vmm)
            await vmm.qmp.execute("stop")
            state = await save_stopped(vmm, scratch / "memory")
            with suppress(CellError):
                await vmm.qmp.execute("quit")
        except CellError as exc:
            panic = vmm.serial.panic()
            why = f"the guest's kernel panicked: {panic}" if panic else exc.what
            hint = "check the policy's memory (256 MiB is a sensible least)"
            what = f"a template could not be made: {why}"
            raise CellError(what, where=f"template {job.key[:12]}", hint=hint) from exc
    return state


async def _wait_idle(vmm: Vmm) -> None:
    few, give_up = 0.1 * _IDLE_WINDOW_S * os.sysconf("SC_CLK_TCK"), time.monotonic() + _IDLE_S
    while (pid := vmm.host_pid) is not None and time.monotonic() < give_up:
        before = cpu_ticks(pid)
        await anyio.sleep(_IDLE_WINDOW_S)
        now = cpu_ticks(pid)
        if now is None or before is None or now - before < few:
            return


def _finish(job: TemplateJob, scratch: Path, state: bytes) -> None:
    memory = scratch / "memory"
    (scratch / "initrd").unlink()
    memory.chmod(0o444)
    sync_file(memory)
    guest_files.write_read_only(scratch / "state", state)
    description = {
        "key": job.key,
        "state_sha256": hashlib.sha256(state).hexdigest(),
        "memory_stamp": file_stamp(memory),
    }
    text = json.dumps(description, sort_keys=True, indent=1)
    guest_files.write_read_only(scratch / "template.json", text.encode())
    shutil.rmtree(job.directory, ignore_errors=True)
    scratch.rename(job.directory)


_RESTORE_DEADLINE_S: Final = 30.0  # emulated, on a busy host
_HELLO_DEADLINE_S: Final = 30.0  # the same


def open_vm(
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
) -> AbstractAsyncContextManager[Vmm]:
    """Do as `open_container`, by a clone of the plan's template.

    `saved`: it goes on from there instead.
    """
    if plan.vm.nic != (port is not None):
        raise ValueError("a port goes with a machine that has a network device, and only with it")
    cell_id = cell_id or new_cell_id()

    async def make(owner: AsyncExitStack, held: ExitStack) -> Vmm:
        # A snapshot of this cell, or a revert to one, reads the kernel's parts again.
        held.enter_context(claimed_for_cell(kernel.vmlinuz.parent))
        if weights is not None:
            held.enter_context(claimed(weights))
        job = await anyio.to_thread.run_sync(find_job, plan, image, kernel, home, weights)
        if saved is not None:
            template = await anyio.to_thread.run_sync(_load_saved, saved, job)
        else:
            template = await ensure_template(job, recorder, held)
        note(recorder, Kind.CELL_CLONING, cell_id, template=template.key)
        spec = VmmSpec(
            cell_id=cell_id,
            kind="cell",
            role=qemu.Role.CLONE,
            shape=plan.vm,
            limits=plan.jail,
            controllers=plan.jail_controllers,
            memory_by_rlimit=plan.memory_by_rlimit,
            root=template.root,
            binds={**disk_binds(image, weights), qemu.MEMORY_PATH: template.memory},
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

    return recorded_lifetime(recorder, cell_id, planned, make)


def _load_saved(saved: SavedMachine, job: TemplateJob) -> Template:
    """Raise `CellError`: changed; `HostError`: another plan's."""
    if job.key != saved.key:
        what = "the snapshot was taken with another QEMU, processor, kernel, image or limits"
        hint = "take another snapshot: this one can't be used any more"
        raise HostError(what, where=str(saved.directory), hint=hint)
    state = checked_state(saved.directory, saved.state_digest, saved.memory_stamp)
    return Template(key=job.key, memory=saved.directory / "memory", state=state, root=job.root)


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
        duration_ms, key = round(vmm.timings_ms["total"], 1), template.key
        note(recorder, Kind.CELL_CLONED, vmm.cell_id, template=key, duration_ms=duration_ms)


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
