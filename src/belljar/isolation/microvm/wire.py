"""The wire: relays frames between VMM and port, in its own jail.

An unprivileged program (`native/wire/`) holds both descriptors and the VMM's lifeline: its end
kills the VMM. The packet socket opens before anything hostile is read.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from belljar.dataclass import replace
from belljar.errors import CellError
from belljar.isolation.identity import hold_identity
from belljar.isolation.jail import JailEnd
from belljar.isolation.microvm.vmm import Vmm
from belljar.isolation.program_root import ProgramRoot, RootRecipe, ensure_root, package_program
from belljar.isolation.renewal import MTU, GivenPort
from belljar.isolation.sandbox import Sandbox, SandboxSpec, owned
from belljar.package import __version__
from belljar.plan.jail import JailIds
from belljar.process import signal_name
from belljar.store.journal import new_cell_id

# The relay's program in its own root.
_INNER: Final = "/wire"
_MIB: Final = 1 << 20
# The relay holds a frame at a time.
_ADDRESS_SPACE_BYTES: Final = 16 * _MIB
# Lets the VMM's lifetime end first.
_MORE_LIFETIME_S: Final = 60.0
_STEP_DEADLINE_S: Final = 20.0
# The words of the relay's protocol (native/wire), a byte each.
_NAMESPACE_MADE: Final = b"n"
_LINK_IS_THERE: Final = b"g"
_RELAYS: Final = b"r"
# Of the namespace of whoever opens it: the relay is told its own.
_NET_SETTINGS: Final = "/proc/sys/net"


class Wire(Sandbox):
    """It is in the VMM's groups, and destroyed before it."""

    def __init__(self, vmm: Vmm, port: GivenPort, home: Path) -> None:
        self._port, self._vmm = port, vmm
        self._control, self._theirs = socket.socketpair()
        self._control.setblocking(False)  # noqa: FBT003
        limits = replace(
            vmm.limits,
            lifetime_s=vmm.limits.lifetime_s + _MORE_LIFETIME_S,
            address_space_bytes=_ADDRESS_SPACE_BYTES,
        )
        spec = SandboxSpec(cell_id=new_cell_id(), kind="wire", limits=limits, part_of=vmm.cell_id)
        super().__init__(spec, identity=hold_identity(), home=home)

    async def start(self) -> None:
        """Raise `HostError` or `CellError`."""
        try:
            root = await anyio.to_thread.run_sync(self._make_root)
            await anyio.to_thread.run_sync(self.make)
            self._start_in(root)  # not in a thread: it would be the jail's parent
        finally:
            self._theirs.close()
        await self.wait_running()
        await self._expect(_NAMESPACE_MADE, "did not make its network namespace")
        if (pid := self.host_pid) is None:
            raise RuntimeError("a running wire without a process")
        await self._port.attach(pid)
        with suppress(OSError):  # it ended meanwhile: the next line says how
            self._control.send(_LINK_IS_THERE)
        await self._expect(_RELAYS, "did not open its link")

    def explain(self, end: JailEnd) -> str:
        if end.signal is not None:
            return f"its wire was killed by signal {signal_name(end.signal)}"
        return f"its wire ended: {self.diagnosis() or f'status {end.status}'}"

    def _release(self) -> None:
        self._theirs.close()
        self._control.close()

    def _make_root(self) -> ProgramRoot:
        program = package_program("wire", mode=os.X_OK)
        recipe = RootRecipe(
            directory="wires",
            program=program,
            inside=_INNER,
            what="the wire",
            files=lambda: ((_INNER, program),),
            version=lambda: __version__,
        )
        return ensure_root(self._home, recipe)

    def _start_in(self, root: ProgramRoot) -> None:
        identity, net, below = self.identity.jail, self._vmm.net, self._port.user_namespace
        if net is None or self._vmm.jail is None:
            raise RuntimeError("this VMM has no network device, or does not run")
        # In the range's user namespace this user is 0
        uid, gid = (identity.host_uid, identity.host_gid) if below is None else (0, 0)
        spec = replace(
            self.jail_spec(root),
            cgroups=self._vmm.groups.directories,
            ids=JailIds(uid_map=((0, uid, 1),), gid_map=((0, gid, 1),)),
            keep_capabilities=True,
            rlimits=(("nofile", 64), ("memlock", 0), ("fsize", 0)),
        )
        with ExitStack() as undo:
            settings = os.open(_NET_SETTINGS, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            undo.callback(os.close, settings)
            lifeline = self._vmm.jail.lend_lifeline()
            undo.callback(os.close, lifeline)
            kept = (net.fileno(), self._theirs.fileno(), lifeline, settings)
            argv = (root.program, *map(str, kept), str(MTU))
            self.start_program(spec, argv, kept=kept, user_namespace=below)
        net.close()

    async def _expect(self, word: bytes, failure: str) -> None:
        with anyio.move_on_after(_STEP_DEADLINE_S), suppress(OSError):
            while True:
                await anyio.wait_readable(self._control)
                with suppress(BlockingIOError):
                    if self._control.recv(1) == word:
                        return
                    break
        # It is late, or has gone: then its diagnosis says why.
        detail = f": {words}" if (words := self.diagnosis()) else ""
        where = f"wire {self.cell_id} of cell {self._vmm.cell_id}"
        raise CellError(f"the wire {failure}{detail}", where=where)


async def start_wire(vmm: Vmm, port: GivenPort, *, home: Path) -> None:
    """Raise `HostError` or `CellError`."""
    async with owned(Wire(vmm, port, home), vmm.companions) as wire:
        vmm.wire = wire  # Before it starts: its destruction counts as the VMM's
        await wire.start()
