"""One jailed VMM: everything it needs made in the order of the journal, started, and unmade with
proof.

A template's maker, a clone and a proof of an accelerator are each one `JailedVmm`. It holds no task
and no cancel scope open.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from belljar.dataclass import dataclass
from belljar.errors import CellError, HostError
from belljar.isolation.identity import hold_identity
from belljar.isolation.jail import Jail, JailEnd, measure_counter_khz
from belljar.isolation.jailed import Jailed, OwnedResources
from belljar.isolation.microvm.console import Console
from belljar.isolation.microvm.qmp import Qmp
from belljar.isolation.microvm.vmm_root import VmmRoot
from belljar.isolation.survivors import Destruction
from belljar.plan.jail import JailBind, JailLimits, JailSpec
from belljar.plan.qemu import Role, VmFds, VmShape, qemu_argv
from belljar.store.journal import EntryKind

_KVM_DEVICE: Final = "/dev/kvm"


@dataclass(frozen=True, slots=True, kw_only=True)
class VmmSpec:
    """What one VMM is to be.

    `directories` are the cell's own and vanish with it; writable binds are handed to the jail's
    uid.
    """

    cell_id: str
    kind: EntryKind
    role: Role
    shape: VmShape
    limits: JailLimits
    controllers: tuple[str, ...]
    memory_by_rlimit: bool
    root: VmmRoot
    binds: tuple[JailBind, ...]
    directories: tuple[Path, ...] = ()
    part_of: str = ""


class _Ends:
    """The descriptors of one VMM: the host's ends, and those that the VMM inherits."""

    def __init__(self, spec: VmmSpec) -> None:
        with ExitStack() as undo:
            self.qmp, qmp = _pair(undo)
            self.agent, agent = _pair(undo)
            self.state: socket.socket | None = None
            state: socket.socket | None = None
            if spec.role is Role.CLONE:
                self.state, state = _pair(undo)
            self.net: socket.socket | None = None
            net: socket.socket | None = None
            if spec.shape.nic:
                self.net, net = _pair(undo, socket.SOCK_DGRAM)
            self.console = Console()
            undo.callback(self.console.close)
            kvm = _open_kvm() if spec.shape.accel == "kvm" else None
            self.fds = VmFds(
                qmp=qmp.detach(),
                agent=agent.detach(),
                console=self.console.writer,
                kvm=kvm,
                state=state.detach() if state else None,
                net=net.detach() if net else None,
            )
            undo.pop_all()
        self._inherited: tuple[int, ...] = tuple(
            fd
            for fd in (self.fds.qmp, self.fds.agent, kvm, self.fds.state, self.fds.net)
            if fd is not None
        )

    @property
    def inherited(self) -> tuple[int, ...]:
        return (*self._inherited, self.console.writer)

    def close_inherited(self) -> None:
        """This process's copies of the VMM's ends; a VMM that dies is then seen to."""
        for fd in self._inherited:
            os.close(fd)
        self._inherited = ()
        self.console.close_writer()

    def close(self) -> None:
        self.close_inherited()
        for sock in (self.qmp, self.agent, self.state, self.net):
            if sock is not None:
                sock.close()
        self.console.close()


def _pair(undo: ExitStack, kind: int = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    undo.callback(ours.close)
    undo.callback(theirs.close)
    return ours, theirs


def _open_kvm() -> int:
    try:
        return os.open(_KVM_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as exc:
        raise HostError(
            f"{_KVM_DEVICE} can't be opened: {exc.strerror}",
            where=_KVM_DEVICE,
            hint="add this user to the group kvm",
        ) from exc


async def start_vmm(spec: VmmSpec, *, home: Path) -> JailedVmm:
    """Journal it, make what it needs, start it, and wait until its monitor answers.

    Raises:
        HostError: this host can't (namespaces, control groups, no uid free, no space). CellError:
            the VMM did not come up. Nothing is left then.
    """
    vmm = JailedVmm(spec, home)
    try:
        await vmm.bring_up()
    except BaseException:
        await vmm.destroy()
        raise
    return vmm


class JailedVmm:
    """A VMM in its jail.

    Made only by `start_vmm`. Whoever takes `agent` (the host's end of the guest agent's port)
    closes it. `net`: the other end of its network device, one frame a datagram; None without one.
    """

    def __init__(self, spec: VmmSpec, home: Path) -> None:
        self.spec = spec
        self.timings_ms: dict[str, float] = {}
        mine = OwnedResources(
            cell_id=spec.cell_id,
            kind=spec.kind,
            limits=spec.limits,
            controllers=spec.controllers,
            directories=spec.directories,
            part_of=spec.part_of,
        )
        with ExitStack() as undo:
            self._ends = _Ends(spec)
            undo.callback(self._ends.close)
            self.jailed = Jailed(mine, home, hold_identity(home), let_go=self._ends.close)
            undo.pop_all()
        self.qmp = Qmp(self._ends.qmp, where=f"VMM of cell {spec.cell_id}")
        self.agent, self.state, self.console = (
            self._ends.agent,
            self._ends.state,
            self._ends.console,
        )
        self.state_fd = self._ends.fds.state
        self.net = self._ends.net

    async def bring_up(self) -> None:
        """Journal, then create; then start and greet. Called once, by `start_vmm`."""
        started = time.monotonic()
        await anyio.to_thread.run_sync(self._make)
        made = time.monotonic()
        self._start()
        await self._wait_up()
        self.timings_ms["prepare"] = (made - started) * 1000
        self.timings_ms["vmm_start"] = (time.monotonic() - made) * 1000

    @property
    def destruction(self) -> Destruction | None:
        """What its end found, once it has ended."""
        return self.jailed.destruction

    @property
    def jail(self) -> Jail | None:
        """Its jail, once it was started."""
        return self.jailed.jail

    def end(self) -> JailEnd | None:
        """How the VMM ended, if it has, as far as its supervisor has said. Does not wait."""
        return self.jailed.end()

    def last_word(self, timeout_s: float) -> JailEnd | None:
        """As `end`, but waits a moment. Blocking."""
        return self.jailed.last_word(timeout_s)

    def panic(self) -> str:
        """What the guest's kernel panicked of, escaped; empty when it did not."""
        return self.console.panic()

    def diagnosis(self) -> str:
        """What launcher and VMM wrote on standard error, escaped and bounded."""
        return self.jailed.diagnosis()

    def count_oom_kills(self) -> int:
        """How often the kernel killed in the cell's memory group, now or, after its end, until
        then.
        """
        return self.jailed.count_oom_kills()

    async def destroy(self) -> Destruction:
        """Kill, look for survivors, forget the cell.

        Idempotent, shielded from cancellation, bounded to some ten seconds.
        """
        return await self.jailed.destroy()

    def _make(self) -> None:
        self.jailed.make()
        identity = self.jailed.identity.jail
        if identity.privileged:
            for bind in self.spec.binds:
                if bind.writable:
                    os.chown(bind.source, identity.host_uid, identity.host_gid)

    def _start(self) -> None:
        spec = self.spec
        jail = JailSpec(
            cell_id=spec.cell_id,
            owner_pid=os.getpid(),
            root=spec.root.root,
            binds=spec.binds,
            identity=self.jailed.identity.jail,
            limits=spec.limits,
            cgroups=self.jailed.groups.directories,
            memory_by_rlimit=spec.memory_by_rlimit,
        )
        argv = qemu_argv(
            spec.root.program,
            spec.shape,
            role=spec.role,
            name=spec.cell_id,
            fds=self._ends.fds,
            counter_khz=0 if spec.role is Role.CLONE else measure_counter_khz(),
        )
        try:
            self.jailed.start(jail, argv, kept=self._ends.inherited)
        finally:
            self._ends.close_inherited()

    async def _wait_up(self) -> None:
        await self.jailed.wait_running()
        try:
            await self.qmp.greet()
        except CellError as exc:
            said = self.diagnosis()
            raise CellError(f"the VMM did not start: {said or exc.what}", where=exc.where) from exc
