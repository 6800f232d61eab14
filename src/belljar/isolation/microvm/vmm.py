"""A virtual machine: QEMU jailed, monitor, console, guest agent's port."""

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
from belljar.errors import CellError, host_errors
from belljar.events import Recorder
from belljar.isolation.identity import hold_identity
from belljar.isolation.jail import JailEnd, measure_counter_khz
from belljar.isolation.program_root import ProgramRoot
from belljar.isolation.sandbox import FINAL_STATUS_TIMEOUT_S, Sandbox, SandboxSpec, owned
from belljar.isolation.survivors import Destruction, together
from belljar.isolation.touches import FileWatch, watch_guest
from belljar.plan.qemu import Role, VmFds, VmShape, qemu_argv
from belljar.process import signal_name
from belljar.units import printable

_KVM_DEVICE: Final = "/dev/kvm"


@dataclass(frozen=True, slots=True, kw_only=True)
class VmmSpec(SandboxSpec):
    """One VMM."""

    role: Role
    shape: VmShape
    root: ProgramRoot
    binds: Mapping[str, Path]
    keeps_monitor: bool = False  # of a clone, for snapshots


class Vmm(Sandbox):
    """A VMM in its jail. `companions`: owns the wire."""

    def __init__(self, spec: VmmSpec, home: Path, recorder: Recorder | None = None) -> None:
        self.spec, self.emulated = spec, spec.shape.accel == "tcg"
        self.wire: Sandbox | None = None
        self.companions = AsyncExitStack()
        self._ours, self._theirs, self._console = dict[str, socket.socket](), ExitStack(), Console()
        self._theirs.callback(os.close, self._console.writer)
        with ExitStack() as undo:
            undo.callback(self._release)
            self._fds = self._open_ends()
            undo.pop_all()
        super().__init__(spec, identity=hold_identity(), home=home, recorder=recorder)
        self.qmp = Qmp(self._ours["qmp"], where=f"VMM of cell {spec.cell_id}")
        self.agent, self.state = self._ours["agent"], self._ours.get("state")
        self.net, self.state_fd = self._ours.get("net"), self._fds.state

    def _open_ends(self) -> VmFds:
        """Both ends of each connection; the VMM's."""
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
        return VmFds(console=self._console.writer, **inherited)

    async def start(self) -> None:
        """Journal, create, start, await its monitor. Raises `HostError`, `CellError`."""
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

    def panic(self) -> str:
        """The guest kernel's panic, escaped, or empty."""
        return self._console.panic()

    # ---- as Sandbox

    def console(self) -> bytes:
        """Its last 64 KiB; guest-controlled."""
        return self._console.read()

    def cause_of_death(self) -> str:
        """Names the wire's end, which looks like the owner's."""
        cause, end = super().cause_of_death(), self.end()
        if self.wire is None or end is None or end.cause != "owner":
            return cause
        wire_end = self.wire.end(FINAL_STATUS_TIMEOUT_S)
        if wire_end is None or wire_end.cause == "owner":
            return cause
        return self.wire.explain(wire_end)

    def explain(self, end: JailEnd) -> str:
        """A panic, else signal or status."""
        if panic := self.panic():
            return f"the guest's kernel panicked: {panic}"
        if end.signal is not None:
            is_full = self.fatal_oom_kills() > 0
            memory = " (out of memory in its control group)" if is_full else ""
            return f"the VMM was killed by signal {signal_name(end.signal)}{memory}"
        detail = f": {words}" if (words := self.diagnosis()) else ""
        return f"the guest shut down or the VMM ended with status {end.status}{detail}"

    def fatal_oom_kills(self) -> int:
        """All: its group holds only the VMM."""
        return self.oom_kills()

    async def watch_files(self, paths: Sequence[str]) -> FileWatch:
        """The guest agent is the sensor."""
        return await watch_guest(self.client, paths)

    # ----

    async def unmake(self) -> Destruction:
        """Besides, the channel, the port and the wire end."""
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
        self._console.close()


async def start_vmm(spec: VmmSpec, *, home: Path, owner: AsyncExitStack) -> Vmm:
    """As `Vmm.start`; leaves nothing if it fails."""
    async with owned(Vmm(spec, home), owner) as vmm:
        await vmm.start()
    return vmm


_MAX_LINE_BYTES: Final = 1 << 20  # a compromised VMM may send one without end
_MAX_EVENTS: Final = 256


class Qmp:
    """The monitor's client: one command at a time.

    The VMM may be compromised: answers are bounded, strictly parsed, with deadlines. All methods
    raise `CellError`.
    """

    def __init__(self, sock: socket.socket, *, where: str) -> None:
        sock.setblocking(False)  # noqa: FBT003
        self._socket = sock
        self._where = where
        self._buffer = bytearray()
        self._events: deque[Mapping[str, Any]] = deque(maxlen=_MAX_EVENTS)

    async def greet(self, *, timeout_s: float = 20.0) -> None:
        """Await the monitor; enter command mode."""
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
        """Run a command; its answer. `fd` is sent along."""
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
                self._events.append(reply)
        raise self._late(f"did not answer {command}")

    async def wait_migrated(self, *, timeout_s: float) -> None:
        """Wait for migration; needs its events capability."""
        with anyio.move_on_after(timeout_s):
            while True:
                event = self._events.popleft() if self._events else await self._line()
                data = event.get("data")
                if event.get("event") != "MIGRATION" or not isinstance(data, dict):
                    continue
                if (status := data.get("status")) == "completed":
                    return
                if status in ("failed", "cancelled"):
                    what = f"the VMM could not move the device state: {status}"
                    raise CellError(what, where=self._where)
        raise self._late("did not finish moving the device state")

    def forget_events(self) -> None:
        """Drop past events, so that none is waited for."""
        self._events.clear()

    def close(self) -> None:
        """Disconnect from the monitor."""
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
    """The guest's serial console. The caller closes `writer`, the VMM's end."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        with suppress(OSError):  # the host may allow less
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._kept = Capture(max_kept_bytes=MAX_CONSOLE_BYTES, keep="tail", hashed=False)
        self._open = True

    def read(self) -> bytes:
        """Its last 64 KiB; guest-controlled."""
        # All that is in the pipe: a VMM that writes on and on does not hold up the caller
        for _ in range(_READS if self._open else 0):
            with suppress(BlockingIOError):
                self._kept.feed(os.read(self._reader, _PIPE_BYTES))
        return self._kept.kept

    def panic(self) -> str:
        """The guest kernel's panic, or empty."""
        match = _PANIC.search(self.read())
        return printable(match[1]) if match else ""

    def close(self) -> None:
        """Read the rest first; `read` still answers."""
        if self._open:
            self.read()
            self._open = False
            os.close(self._reader)
