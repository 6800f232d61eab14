"""A virtual machine: QEMU jailed, monitor, console, and the wire.

The wire (`native/wire/`) holds the VMM's lifeline: its end kills the VMM.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from belljar.capture import Capture
from belljar.dataclass import asdict, dataclass, replace
from belljar.descriptors import open_fd
from belljar.errors import CellError, host_errors
from belljar.events import Recorder
from belljar.isolation.identity import hold_identity
from belljar.isolation.jail import JailEnd, measure_counter_khz
from belljar.isolation.program_root import ProgramRoot, RootRecipe, ensure_root, package_program
from belljar.isolation.renewal import MTU, GivenPort
from belljar.isolation.sandbox import FINAL_STATUS_TIMEOUT_S, Sandbox, SandboxSpec, owned
from belljar.isolation.survivors import Destruction, together
from belljar.isolation.touches import FileWatch, watch_guest
from belljar.plan.jail import JailIds
from belljar.plan.qemu import Role, VmFds, VmShape, qemu_argv
from belljar.store.journal import new_cell_id
from belljar.units import printable

_KVM_DEVICE: Final = "/dev/kvm"


@dataclass(frozen=True, slots=True, kw_only=True)
class VmmSpec(SandboxSpec):
    role: Role
    shape: VmShape
    root: ProgramRoot
    binds: Mapping[str, Path]
    keeps_monitor: bool = False  # of a clone, for snapshots


class Vmm(Sandbox):
    """`companions` owns the wire."""

    def __init__(self, spec: VmmSpec, home: Path, recorder: Recorder | None = None) -> None:
        self.spec, self.emulated = spec, spec.shape.accel == "tcg"
        self.wire: Wire | None = None
        self.companions = AsyncExitStack()
        self._ours, self._theirs, self.serial = dict[str, socket.socket](), ExitStack(), Console()
        self._theirs.callback(os.close, self.serial.writer)
        with ExitStack() as undo:
            undo.callback(self._release)
            self._fds = self._open_ends()
            undo.pop_all()
        super().__init__(spec, identity=hold_identity(), home=home, recorder=recorder)
        self.qmp = Qmp(self._ours["qmp"], where=f"VMM of cell {spec.cell_id}")
        self.agent, self.state = self._ours["agent"], self._ours.get("state")
        self.net, self.state_fd = self._ours.get("net"), self._fds.state

    def _open_ends(self) -> VmFds:
        kinds = {"qmp": socket.SOCK_STREAM, "agent": socket.SOCK_STREAM}
        if self.spec.role is Role.CLONE:
            kinds["state"] = socket.SOCK_STREAM
        if self.spec.shape.nic:
            kinds["net"] = socket.SOCK_DGRAM
        inherited: dict[str, int] = {}
        for name, kind in kinds.items():
            self._ours[name], theirs = socket.socketpair(socket.AF_UNIX, kind)
            inherited[name] = self._theirs.enter_context(theirs).fileno()
        if not self.emulated:
            hint = "add this user to the group kvm"
            with host_errors(f"{_KVM_DEVICE} can't be opened", where=_KVM_DEVICE, hint=hint):
                inherited["kvm"] = os.open(_KVM_DEVICE, os.O_RDWR | os.O_CLOEXEC)
            self._theirs.callback(os.close, inherited["kvm"])
        return VmFds(console=self.serial.writer, **inherited)

    async def start(self) -> None:
        await anyio.to_thread.run_sync(self.make)
        spec = self.spec
        jail = replace(self.jail_spec(spec.root), binds=spec.binds)
        argv = qemu_argv(
            spec.root.program,
            spec.shape,
            role=spec.role,
            name=spec.cell_id,
            fds=self._fds,
            counter_khz=0 if spec.role is Role.CLONE else measure_counter_khz(),
        )
        kept = tuple(fd for fd in asdict(self._fds).values() if fd is not None)
        try:
            self.start_program(jail, argv, kept=kept)
        finally:
            self._theirs.close()
        await self.wait_running()
        try:
            await self.qmp.greet()
        except CellError as exc:
            what = f"the VMM did not start: {self.diagnosis() or exc.what}"
            raise CellError(what, where=exc.where) from exc

    def console(self) -> bytes:
        return self.serial.read()

    def cause_of_death(self) -> str:
        """The wire's end looks like the owner's."""
        cause, end = super().cause_of_death(), self.end()
        if self.wire is None or end is None or end.cause != "owner":
            return cause
        wire_end = self.wire.end(FINAL_STATUS_TIMEOUT_S)
        if wire_end is None or wire_end.cause == "owner":
            return cause
        return self.wire.explain(wire_end)

    def explain(self, end: JailEnd) -> str:
        if panic := self.serial.panic():
            return f"the guest's kernel panicked: {panic}"
        if end.signal is not None:
            is_full = self.fatal_oom_kills() > 0
            memory = " (out of memory in its control group)" if is_full else ""
            return f"the VMM was killed by signal {end}{memory}"
        detail = f": {words}" if (words := self.diagnosis()) else ""
        return f"the guest shut down or the VMM ended with {end}{detail}"

    def fatal_oom_kills(self) -> int:
        """Its group holds only the VMM."""
        return self.oom_kills()

    async def watch_files(self, paths: Sequence[str]) -> FileWatch:
        return await watch_guest(self.client, paths)

    async def unmake(self) -> Destruction:
        try:
            await self.client.aclose()
            await self.companions.aclose()
        finally:
            destruction = await super().unmake()
        wire = self.wire
        if wire is None:
            return destruction
        missed = Destruction(unproven=("the wire: its destruction failed",))
        return together(destruction, wire.destruction or missed)

    def _release(self) -> None:
        self._theirs.close()
        for sock in self._ours.values():
            sock.close()
        self.serial.close()


async def start_vmm(spec: VmmSpec, *, home: Path, owner: AsyncExitStack) -> Vmm:
    """Start it, and leave nothing if that fails."""
    async with owned(Vmm(spec, home), owner) as vmm:
        await vmm.start()
    return vmm


# The relay's program in its own root.
_INNER: Final = "/wire"
_ADDRESS_SPACE_BYTES: Final = 16 << 20  # it holds a frame at a time
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
        return f"its wire ended: {self.diagnosis() or end}"

    def _release(self) -> None:
        self._theirs.close()
        self._control.close()

    def _make_root(self) -> ProgramRoot:
        program = package_program("wire", mode=os.X_OK)
        recipe = RootRecipe(
            directory="wires", program=program, inside=_INNER, files=lambda: [(_INNER, program)]
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
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        with (
            open_fd(os.open(_NET_SETTINGS, flags)) as settings,
            open_fd(self._vmm.jail.lend_lifeline()) as lifeline,
        ):
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
    async with owned(Wire(vmm, port, home), vmm.companions) as wire:
        vmm.wire = wire  # Before it starts: its destruction counts as the VMM's
        await wire.start()


_MAX_LINE_BYTES: Final = 1 << 20  # a compromised VMM may send one without end
_MAX_EVENTS: Final = 256


class Qmp:
    """The VMM may be compromised: answers are bounded, with deadlines. Raises `CellError`."""

    def __init__(self, sock: socket.socket, *, where: str) -> None:
        sock.setblocking(False)  # noqa: FBT003
        self._socket = sock
        self._where = where
        self._buffer = bytearray()
        self.events = deque[Mapping[str, Any]](maxlen=_MAX_EVENTS)

    async def greet(self, *, timeout_s: float = 20.0) -> None:
        with anyio.move_on_after(timeout_s):
            while "QMP" not in await self._line():
                continue
            await self.execute("qmp_capabilities", timeout_s=timeout_s)
            return
        raise self._late("did not open its monitor")

    async def execute(
        self,
        command: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        fd: int | None = None,
        timeout_s: float = 20.0,
    ) -> Any:  # noqa: ANN401 - JSON
        """Return its answer. `fd` is sent along."""
        message = {"execute": command, **({"arguments": dict(arguments)} if arguments else {})}
        with anyio.move_on_after(timeout_s):
            await self._send(json.dumps(message).encode() + b"\n", fd)
            while True:
                reply = await self._line()
                if "error" in reply:
                    error = reply["error"]
                    said = error.get("desc") if isinstance(error, dict) else None
                    why = printable(said if isinstance(said, str) else "?", max_chars=300)
                    raise CellError(f"the VMM refused {command}: {why}", where=self._where)
                if "return" in reply:
                    return reply["return"]
                self.events.append(reply)
        raise self._late(f"did not answer {command}")

    async def wait_migrated(self, *, timeout_s: float) -> None:
        """It needs the capability `events`."""
        with anyio.move_on_after(timeout_s):
            while True:
                event = self.events.popleft() if self.events else await self._line()
                data = event.get("data")
                if event.get("event") != "MIGRATION" or not isinstance(data, dict):
                    continue
                if (status := data.get("status")) == "completed":
                    return
                if status in ("failed", "cancelled"):
                    what = f"the VMM could not move the device state: {status}"
                    raise CellError(what, where=self._where)
        raise self._late("did not finish moving the device state")

    def close(self) -> None:
        self._socket.close()

    def _late(self, what: str) -> CellError:
        return CellError(f"the VMM {what} in time", where=self._where)

    async def _send(self, message: bytes, fd: int | None) -> None:
        """Commands fit the socket's buffer: sent whole."""
        await anyio.wait_writable(self._socket)
        try:
            sent = socket.send_fds(self._socket, [message], [] if fd is None else [fd])
        except OSError as exc:
            raise CellError("the VMM has closed its monitor", where=self._where) from exc
        if sent != len(message):
            raise CellError("the VMM does not read its monitor", where=self._where)

    async def _line(self) -> dict[str, Any]:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _MAX_LINE_BYTES:
                raise CellError("the VMM's monitor sent an endless line", where=self._where)
            await anyio.wait_readable(self._socket)
            try:
                chunk = self._socket.recv(65536)
            except BlockingIOError:
                continue
            except OSError:
                chunk = b""
            if not chunk:
                raise CellError("the VMM has closed its monitor", where=self._where)
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        value = None
        with suppress(ValueError, RecursionError):
            value = json.loads(line)
        if not isinstance(value, dict):
            raise CellError("the VMM's monitor sent no JSON object", where=self._where)
        return value


MAX_CONSOLE_BYTES: Final = 64 << 10  # a panic with its trace fits
_PIPE_BYTES: Final = 256 << 10
_READS: Final = 4
# As Linux says it; on the console it is the only word of a guest that stopped.
_PANIC: Final = re.compile(rb"Kernel panic - not syncing: ([^\r\n]{0,200})")


class Console:
    """The caller closes `writer`, the VMM's end."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        with suppress(OSError):  # the host may allow less
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._kept = Capture(max_kept_bytes=MAX_CONSOLE_BYTES, keep="tail", hashed=False)
        self._open = True

    def read(self) -> bytes:
        """Return its last 64 KiB; the guest controls them."""
        # All that is in the pipe: a VMM that writes on and on does not hold up the caller
        for _ in range(_READS if self._open else 0):
            with suppress(BlockingIOError):
                self._kept.feed(os.read(self._reader, _PIPE_BYTES))
        return self._kept.kept

    def panic(self) -> str:
        match = _PANIC.search(self.read())
        return printable(match[1]) if match else ""

    def close(self) -> None:
        """Read the rest first; `read` still answers."""
        if self._open:
            self.read()
            self._open = False
            os.close(self._reader)
