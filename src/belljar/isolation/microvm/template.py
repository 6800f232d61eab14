"""Templates: a guest booted, configured, idle and stopped; RAM and device state in files.

`templates/<key>/{memory,state,template.json}`; the key covers all inputs (`plan/qemu.py`). Each use
checks the state's digest and the memory's size, times and inode. One that fails is rebuilt, which
is recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from belljar.channel.frames import config_payload
from belljar.errors import CellError, host_errors
from belljar.events import Event, JsonValue, Kind, Recorder
from belljar.image.kernel import Kernel
from belljar.image.store import Image
from belljar.isolation.microvm.guest_files import (
    DATA_DISK,
    GuestParts,
    ensure_data_disk,
    read_guest_parts,
    write_read_only,
)
from belljar.isolation.microvm.stream import save_stopped
from belljar.isolation.microvm.vmm import Vmm, VmmSpec, start_vmm
from belljar.isolation.program_root import STORE_HINT, ProgramRoot, ensure_vmm_root, file_stamp
from belljar.isolation.sandbox import elapsed_ms
from belljar.plan.model import MicrovmPlan
from belljar.plan.qemu import (
    DATA_DISK_PATH,
    DISK_PATH,
    INITRD_PATH,
    KERNEL_PATH,
    Accel,
    Role,
    TemplateInputs,
    template_key,
)
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
    """Checked; `state` are the very bytes that were checked."""

    key: str
    memory: Path
    state: bytes
    root: ProgramRoot


@dataclass(frozen=True, slots=True)
class _MakingJob:
    plan: MicrovmPlan
    image: Image
    kernel: Kernel
    home: Path
    guest: GuestParts
    root: ProgramRoot
    key: str
    weights: Path | None

    @property
    def directory(self) -> Path:
        return self.home / "templates" / self.key


async def ensure_template(
    plan: MicrovmPlan,
    image: Image,
    kernel: Kernel,
    *,
    home: Path,
    recorder: Recorder,
    held: ExitStack | None = None,
    weights: Path | None = None,
) -> Template:
    """The plan's template, kept while `held` is open. Raises `HostError`, `CellError`."""
    job = await anyio.to_thread.run_sync(_find_job, plan, image, kernel, home, weights)
    with ExitStack() as briefly:
        load = partial(_load, job, briefly if held is None else held)
        template, why = await anyio.to_thread.run_sync(load)
        if template is None:
            async with locked_meanwhile(job.home, lock_name(job.key)):
                # Another process may have been quicker.
                template, why = await anyio.to_thread.run_sync(load)
                if why:
                    data = {"key": job.key, "reason": why}
                    recorder.record(Event(kind=Kind.TEMPLATE_REJECTED, data=data))
                    remove = partial(shutil.rmtree, job.directory, ignore_errors=True)
                    await anyio.to_thread.run_sync(remove)
                if template is None:
                    await _build(job, recorder)
                    template, why = await anyio.to_thread.run_sync(load)
        if template is None:
            what = f"the template that was just made is not usable: {why}"
            raise CellError(what, where=str(job.directory))
        return template


def find_key(
    plan: MicrovmPlan, image: Image, kernel: Kernel, home: Path
) -> tuple[str, ProgramRoot]:
    """The plan's current template key, and the VMM to run it."""
    job = _find_job(plan, image, kernel, home, None)
    return job.key, job.root


def lock_name(key: str) -> str:
    """Its makers' and removers' lock."""
    return f"template-{key[:16]}"


def _find_job(
    plan: MicrovmPlan, image: Image, kernel: Kernel, home: Path, weights: Path | None
) -> _MakingJob:
    if plan.vm.data_disk != (weights is not None):
        raise ValueError("weights go with a machine that has a second disk, and only with it")
    if weights is not None:
        ensure_data_disk(home, weights)
    guest = read_guest_parts(kernel, nic=plan.vm.nic)
    root = ensure_vmm_root(home, plan.vm.accel)
    inputs = TemplateInputs(
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
    return _MakingJob(plan, image, kernel, home, guest, root, template_key(inputs), weights)


def _host_cpu(accel: Accel) -> str:
    """CPU details, and under KVM the host kernel's."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    if accel == "tcg":
        names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
        return next(names, "").strip()
    telling = ("vendor_id", "cpu family", "model\t", "model name", "stepping", "microcode", "flags")
    return "; ".join([platform.release(), *(line for line in lines if line.startswith(telling))])


def _load(job: _MakingJob, held: ExitStack) -> tuple[Template | None, str]:
    """The template, claimed in `held`, or why not (empty: missing)."""
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
    """A saved machine's device state. Raises `CellError`: changed, or can't be read."""
    try:
        state, stamp = (directory / "state").read_bytes(), file_stamp(directory / "memory")
    except OSError as error:
        raise CellError(f"it can't be read: {error.strerror}", where=str(directory)) from error
    for what, is_same in (
        ("device state", hashlib.sha256(state).hexdigest() == state_digest),
        ("memory", stamp == list(memory_stamp)),
    ):
        if not is_same:
            raise CellError(f"the {what} is not the one that was saved", where=str(directory))
    return state


async def _build(job: _MakingJob, recorder: Recorder) -> None:
    cell_id = new_cell_id()
    scratch = job.home / "templates" / owned_name(MAKING, cell_id)
    recorder.record(Event(kind=Kind.TEMPLATE_BUILDING, cell_id=cell_id, data={"key": job.key}))
    started = time.monotonic()
    try:
        with host_errors("a template could not be made", where=scratch.parent, hint=STORE_HINT):
            scratch.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
            await anyio.to_thread.run_sync(partial(sweep, scratch.parent, prefix=MAKING))
            scratch.mkdir(mode=0o711)
            initrd = job.guest.initramfs()
            await anyio.to_thread.run_sync(write_read_only, scratch / "initrd", initrd)
            with claimed_for_cell(job.kernel.vmlinuz.parent):
                state = await _boot_and_save(job, cell_id, scratch)
            await anyio.to_thread.run_sync(_finish, job, scratch, state)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(shutil.rmtree, scratch, ignore_errors=True))
        raise
    data: dict[str, JsonValue] = {"key": job.key, "duration_ms": round(elapsed_ms(started))}
    recorder.record(Event(kind=Kind.TEMPLATE_BUILT, cell_id=cell_id, data=data))


def disk_binds(image: Image, weights: Path | None) -> dict[str, Path]:
    data = {} if weights is None else {DATA_DISK_PATH: weights / DATA_DISK}
    return {DISK_PATH: image.rootfs, **data}


async def _boot_and_save(job: _MakingJob, cell_id: str, scratch: Path) -> bytes:
    plan = job.plan
    binds = {KERNEL_PATH: job.kernel.vmlinuz, INITRD_PATH: scratch / "initrd"}
    binds |= disk_binds(job.image, job.weights)
    spec = VmmSpec(
        cell_id=cell_id,
        kind="template",
        role=Role.TEMPLATE,
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
            panic = vmm.panic()
            why = f"the guest's kernel panicked: {panic}" if panic else exc.what
            hint = "check the policy's memory (256 MiB is a sensible least)"
            what = f"a template could not be made: {why}"
            raise CellError(what, where=f"template {job.key[:12]}", hint=hint) from exc
    return state


async def _wait_idle(vmm: Vmm) -> None:
    """Wait until the VMM uses little CPU, at most 15 s."""
    few, give_up = 0.1 * _IDLE_WINDOW_S * os.sysconf("SC_CLK_TCK"), time.monotonic() + _IDLE_S
    while (pid := vmm.host_pid) is not None and time.monotonic() < give_up:
        before = cpu_ticks(pid)
        await anyio.sleep(_IDLE_WINDOW_S)
        now = cpu_ticks(pid)
        if now is None or before is None or now - before < few:
            return


def _finish(job: _MakingJob, scratch: Path, state: bytes) -> None:
    memory = scratch / "memory"
    (scratch / "initrd").unlink()
    memory.chmod(0o444)
    sync_file(memory)
    write_read_only(scratch / "state", state)
    description = {
        "key": job.key,
        "state_sha256": hashlib.sha256(state).hexdigest(),
        "memory_stamp": file_stamp(memory),
    }
    text = json.dumps(description, sort_keys=True, indent=1)
    write_read_only(scratch / "template.json", text.encode())
    shutil.rmtree(job.directory, ignore_errors=True)
    scratch.rename(job.directory)
