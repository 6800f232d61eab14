"""Trials: a runtime starts a container, the kill switch halts one, an accelerator boots a guest.

Only a guest agent that answered from the real jail is a proof: some hosts' /dev/kvm makes a VM that
never runs a stock kernel.
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import anyio.to_thread

from belljar.dataclass import replace
from belljar.errors import BelljarError, CellError, host_errors
from belljar.host.model import RuntimeFact, Trial
from belljar.image.kernel import Kernel
from belljar.isolation.hold import new_order
from belljar.isolation.identity import TREE_IDS_START
from belljar.isolation.kill import halt, order_all
from belljar.isolation.microvm.guest_files import empty_disk, read_guest_parts, write_read_only
from belljar.isolation.microvm.vmm import VmmSpec, start_vmm
from belljar.isolation.oci.container import ContainerSpec, start_container
from belljar.isolation.oci.trees import ImageTree
from belljar.isolation.program_root import ensure_runtime_root, ensure_vmm_root
from belljar.plan.jail import JailBind
from belljar.plan.make import oci_limits
from belljar.plan.oci import oci_shape
from belljar.plan.qemu import DISK_PATH, INITRD_PATH, KERNEL_PATH, Accel, Role, VmShape, vmm_limits
from belljar.policy.limits import Resources, Tier
from belljar.store.journal import Journal, new_cell_id
from belljar.store.scratch import scratch_dir

_LIFETIME_S: Final = 40.0  # ends it though its owner is stopped
_OPEN_FILES: Final = 1024
# The rule of the order by which the kill switch tests itself.
SELF_TEST: Final = "self-test"


async def prove_runtime(runtime: RuntimeFact, *, home: Path) -> Trial:
    """Have a container's guest agent answer. Raises `HostError`: untried."""
    spec = _container_spec(runtime, home)
    try:
        async with AsyncExitStack() as owner:
            container = await start_container(spec, home=home, owner=owner)
            await container.client.ping()
    except CellError as exc:
        return Trial.of(exc.what, exc.hint)
    return Trial.of("")


async def prove_switch(runtime: RuntimeFact, *, home: Path) -> Trial:
    """Have the kill switch halt a container. Raises `HostError`, `CellError`: none."""
    spec = _container_spec(runtime, home)

    def halt_now() -> list[str]:
        journal, began = Journal(home), time.monotonic()
        entry = journal.read(spec.cell_id)
        if entry is None or entry.child is None:
            return ["the journal does not name it"]
        order = new_order("cells", "the kill switch tests itself", rule=SELF_TEST)
        problems = order_all(home, [entry], order)
        if spec.cell_id not in halt(journal, [entry], began):
            problems.append("its processes were not halted")
        return problems

    async with AsyncExitStack() as owner:
        container = await start_container(spec, home=home, owner=owner)
        if container.end() is not None:
            raise CellError("what it was to halt ended by itself")
        problems = await anyio.to_thread.run_sync(halt_now)
    if (destruction := container.destruction) is None:
        raise RuntimeError("its owner has destroyed it")
    problems += destruction.remaining
    return Trial.of("; ".join(problems))


def _container_spec(runtime: RuntimeFact, home: Path) -> ContainerSpec:
    root, cell_id, resources = ensure_runtime_root(home, runtime), new_cell_id(), Resources()
    tier = Tier.GVISOR if runtime.kind == "runsc" else Tier.CONTAINER
    arch = platform.machine()
    return ContainerSpec(
        cell_id=cell_id,
        kind="proof",
        shape=oci_shape(tier, runtime, resources, arch=arch, open_files_max=_OPEN_FILES),
        limits=replace(oci_limits(tier, resources), lifetime_s=_LIFETIME_S),
        memory_by_rlimit=False,
        root=root,
        tree=_empty_tree(home),
        directories=(home / "cells" / cell_id,),
    )


def _empty_tree(home: Path) -> ImageTree:
    private = home / "runtimes" / "empty"
    uid, gid, root = os.geteuid(), os.getegid(), private / "root"
    if uid == 0:
        uid = gid = TREE_IDS_START
    with host_errors("the store can't be written", where=private):
        private.mkdir(mode=0o700, exist_ok=True)
        for directory in (root, root / "etc"):
            directory.mkdir(exist_ok=True)
            directory.chmod(0o777)  # an ordinary user is nobody in there
            os.chown(directory, uid, gid)
    return ImageTree(root=root, first_uid=uid, first_gid=gid)


KVM_DEADLINE_S: Final = 10.0  # where KVM hangs, waiting longer proves nothing
_RAM_MIB: Final = 256


async def boots_under(
    accel: Accel, kernel: Kernel, *, home: Path, deadline_s: float = KVM_DEADLINE_S
) -> Trial:
    """Boot kernel and agent. Raises `HostError`: a part is missing."""
    model = "host" if accel == "kvm" else "max"
    shape = VmShape(vcpus=1, ram_mib=_RAM_MIB, accel=accel, cpu_model=model)
    with scratch_dir(home) as scratch:
        scratch.chmod(0o711)  # for the VMM's uid
        initrd, disk = scratch / "initrd", scratch / "disk"
        write_read_only(initrd, read_guest_parts(kernel).initramfs())
        write_read_only(disk, empty_disk())
        binds = {KERNEL_PATH: kernel.vmlinuz, INITRD_PATH: initrd, DISK_PATH: disk}
        spec = VmmSpec(
            cell_id=new_cell_id(),
            kind="proof",
            role=Role.TEMPLATE,
            shape=shape,
            limits=vmm_limits(shape, deadline_s + 20),
            root=ensure_vmm_root(home, accel),
            binds=tuple(JailBind(source=file, target=path) for path, file in binds.items()),
        )
        try:
            async with AsyncExitStack() as owner:
                vmm = await start_vmm(spec, home=home, owner=owner)
                try:
                    await vmm.client.wait_ready(timeout_s=deadline_s)
                except BelljarError as exc:
                    detail = vmm.panic() or vmm.diagnosis() or exc.what
                    words, _, _ = detail.partition("\\n")  # without the VMM's register dump
                    what = f"a guest started under {accel} did not come up in {deadline_s:.0f} s"
                    return Trial.of(f"{what}: {words[:300]}")
        except CellError as exc:
            return Trial.of(exc.what)
    return Trial.of("")
