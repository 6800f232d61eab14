"""Proving an accelerator: boot the real kernel with the real agent under it, jailed, and see
whether the agent says READY in time.

There are hosts where /dev/kvm opens, makes a VM, and never runs a stock kernel. Only a guest that
came up is a proof.
"""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from belljar.dataclass import dataclass
from belljar.errors import BelljarError, CellError
from belljar.host.runtimes import KvmProof, ProveKvm
from belljar.image import Kernel
from belljar.isolation.microvm.guest_files import empty_disk, read_guest_parts, write_read_only
from belljar.isolation.microvm.vmm import VmmSpec, start_vmm
from belljar.isolation.microvm.vmm_root import ensure_vmm_root
from belljar.plan.jail import (
    JailBind,
    JailLimits,
    vmm_address_space_bytes,
    vmm_memory_max_bytes,
    vmm_processes,
)
from belljar.plan.qemu import DISK_PATH, INITRD_PATH, KERNEL_PATH, Accel, Role, VmShape
from belljar.store.journal import new_cell_id
from belljar.store.scratch import owned_name

KVM_DEADLINE_S: Final = 10.0
_RAM_MIB: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofResult:
    """`reason`: one sentence why it does not boot; empty when it does."""

    boots: bool
    reason: str
    duration_ms: float


def kvm_proof(kernel: Kernel, home: Path) -> ProveKvm:
    """What host facts ask: a blocking function that boots a guest under KVM.

    Call it outside an event loop's thread.
    """

    def prove() -> KvmProof:
        result = anyio.run(partial(boots_under, "kvm", kernel, home=home))
        return KvmProof(boots=result.boots, reason=result.reason)

    return prove


async def boots_under(
    accel: Accel, kernel: Kernel, *, home: Path, deadline_s: float = KVM_DEADLINE_S
) -> ProofResult:
    """Boot kernel and agent under the accelerator. Nothing of it is left.

    Raises:
        HostError: it could not even be tried: QEMU, the kernel, the jail or the device is missing.
    """
    started = time.monotonic()
    cell_id = new_cell_id()
    scratch = home / "tmp" / owned_name(what=f"proof-{cell_id}")
    try:
        reason = await _try(accel, kernel, home, cell_id, scratch, deadline_s)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(shutil.rmtree, scratch, ignore_errors=True))
    return ProofResult(
        boots=not reason, reason=reason, duration_ms=(time.monotonic() - started) * 1000
    )


async def _try(
    accel: Accel, kernel: Kernel, home: Path, cell_id: str, scratch: Path, deadline_s: float
) -> str:
    shape = VmShape(
        vcpus=1, ram_mib=_RAM_MIB, accel=accel, cpu_model="host" if accel == "kvm" else "max"
    )
    limits = JailLimits(
        memory_max_bytes=vmm_memory_max_bytes(shape),
        cpu_quota_percent=None,
        processes=vmm_processes(shape),
        lifetime_s=deadline_s + 20,
        address_space_bytes=vmm_address_space_bytes(shape),
    )
    await anyio.to_thread.run_sync(_prepare, kernel, scratch)
    root = await anyio.to_thread.run_sync(ensure_vmm_root, home, accel)
    spec = VmmSpec(
        cell_id=cell_id,
        kind="proof",
        role=Role.PROOF,
        shape=shape,
        limits=limits,
        controllers=(),
        memory_by_rlimit=True,
        root=root,
        binds=(
            JailBind(source=kernel.vmlinuz, target=KERNEL_PATH),
            JailBind(source=scratch / "initrd", target=INITRD_PATH),
            JailBind(source=scratch / "disk", target=DISK_PATH),
        ),
        directories=(scratch,),
    )
    try:
        vmm = await start_vmm(spec, home=home)
    except CellError as exc:
        return exc.what
    try:
        await vmm.client.wait_ready(timeout_s=deadline_s)
    except BelljarError as exc:
        panic, said = vmm.panic(), vmm.diagnosis()
        detail = f"its kernel panicked: {panic}" if panic else said or exc.what
        what = f"a guest started under {accel} did not come up in {deadline_s:.0f} s"
        return f"{what}: {first_line(detail)}"
    finally:
        await vmm.destroy()
    return ""


def first_line(escaped: str) -> str:
    """The VMM dumps registers after what it has to say."""
    return escaped.split("\\n")[0][:300]


def _prepare(kernel: Kernel, scratch: Path) -> None:
    scratch.mkdir(parents=True, mode=0o711)
    write_read_only(scratch / "initrd", read_guest_parts(kernel).initramfs())
    write_read_only(scratch / "disk", empty_disk())
