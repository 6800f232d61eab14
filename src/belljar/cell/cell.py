"""A running cell and its operations, recorded before they begin and when they have ended.

On a cell that has died each raises `CellError` with the cause of death; nothing is retried.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from signal import SIGTERM
from typing import Any, Final, Literal

import anyio
from anyio.abc import ByteStream

from belljar.capture import Capture
from belljar.cell.base import text
from belljar.cell.exec import ExecOperations
from belljar.cell.files import FileOperations
from belljar.channel import Operation
from belljar.channel.outcomes import agent_request
from belljar.dataclass import dataclass, field
from belljar.errors import BelljarError, CellError, PolicyError
from belljar.events import JsonValue, Kind
from belljar.isolation.hold import killed_error
from belljar.isolation.survivors import Destruction
from belljar.process import end_if_forked
from belljar.units import format_duration, printable

# How much of each direction the ledger keeps: a cell may have many streams.
KEEP_STREAM_BYTES: Final = 1 << 20
_CONNECT: Final = (Kind.CONNECT_STARTED, Kind.CONNECT_COMPLETED, Kind.CONNECT_FAILED)
# A server that never reads must not keep the block from being left.
_CLOSE_TIMEOUT_S: Final = 10.0
_MAX_PATH_BYTES: Final = 107  # sockaddr_un
_ENDLESS: Final = 1 << 62  # a stream has no cap; what comes is bounded by the channel's window


def parse_target(target: int | str | os.PathLike[str]) -> tuple[str, str]:
    """Return `tcp` and a port, or `unix` and a path. Raise `ValueError`."""
    if isinstance(target, int):
        if isinstance(target, bool) or not 1 <= target <= 0xFFFF:
            raise ValueError(f"{target!r} is no port; give a number from 1 to 65535")
        return "tcp", str(target)
    path = os.fspath(target)
    if not path.startswith("/") or "\0" in path or len(os.fsencode(path)) > _MAX_PATH_BYTES:
        what = f"neither a port's number nor a socket's absolute path of {_MAX_PATH_BYTES} bytes"
        raise ValueError(f"{path!r} is {what} or less")
    return "unix", path


class CellStream(ByteStream):
    """A stream to a server in a cell."""

    def __init__(
        self, running: Operation, died: Callable[[BaseException], None], keep_bytes: int
    ) -> None:
        self.sent = Capture("sent", max_kept_bytes=keep_bytes)
        self.received = Capture("received", max_kept_bytes=keep_bytes)
        self._running, self._died = running, died
        self._held = b""
        self._sent_eof = self._closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Receive at least one byte. Raise `CellError` when the cell died.

        Raise `anyio.EndOfStream` when the server has ended its side or reset the connection.
        """
        self._check_open()
        if not self._held:
            with self._death_reported():
                self._held = await self._running.receive_stdout() or b""
            if not self._held:
                raise anyio.EndOfStream
        taken, self._held = self._held[:max_bytes], self._held[max_bytes:]
        self.received.feed(taken)
        return taken

    async def send(self, item: bytes) -> None:
        """Send all of it; wait while the server doesn't read.

        Raise `anyio.BrokenResourceError` when the server is gone, `CellError` when the cell died.
        """
        self._check_open()
        if self._sent_eof:
            raise anyio.ClosedResourceError
        self.sent.feed(item)
        try:
            with self._death_reported():
                await self._running.send_stdin(item)
        except BrokenPipeError as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """End this side; the server's remaining data can be received."""
        self._check_open()
        with self._death_reported():
            self._sent_eof = True
            await self._running.close_stdin()

    async def aclose(self) -> None:
        """Close both sides; 10 s are allowed for delivery."""
        if self._closed:
            return
        self._closed = True
        with suppress(CellError), anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
            await self._running.close_stdin()
            await self._running.signal(SIGTERM)
            await self._running.wait()

    def end(self) -> None:
        """Take and send no more."""
        self._closed = True

    @contextmanager
    def _death_reported(self) -> Iterator[None]:
        try:
            yield
        except CellError as error:
            self._died(error)
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A cell at one moment. Its run deletes it at the end, with proof.

    Attributes:
        state: `machine` has memory, processes and files, `files` only files (container, gvisor).
        digest: the SHA-256 of all of it.
        key: a digest of VMM, processor, kernel, image and limits, which a fork needs again.
    """

    id: str
    name: str
    state: Literal["machine", "files"]
    digest: str
    key: str
    cell: str
    size_bytes: int
    directory: Path = field(repr=False)
    # A `SavedMachine` or None, and a `CellOrigin`, whose module knows this one
    machine: Any = field(repr=False)
    origin: Any = field(repr=False)

    @asynccontextmanager
    async def fork(self) -> AsyncIterator[Cell]:
        """Open a cell that goes on from here with its own identity, randomness and clock.

        A revert of it leads to the policy's clean state. Raise as `open_cell`, `CellError` for a
        changed or deleted snapshot, `HostError` for another VMM, processor, kernel or image.
        """
        async with self.origin.fork(self) as opened:
            yield opened.cell


class Cell(ExecOperations, FileOperations):
    """One running sandbox: one root filesystem, one guest agent. `open_cell` makes it.

    Attributes:
        has_port: it has a network device, on its range's network.
        image_command: the image's entrypoint and command, often nothing.
        image_health: the image's check, as `health` of a target cell.
        describe: adds `sample` or `epoch` to its entry in `belljar ps`.
        tier, emulated: how it is isolated; the guest and VMM lack hardware virtualisation.
        env: a command's default variables: the image's with the policy's on top.
        timings_ms: the duration of each phase of its making.
        failure: the error of its death, once an operation has met it.
        destruction: the findings of its end.
    """

    @property
    def host_pid(self) -> int | None:
        """Return the host pid of its outermost process."""
        return self._live.host_pid

    async def ping(self, *, timeout_s: float = 10) -> float:
        """Return the guest agent's round trip in seconds. Raise `CellError`."""
        try:
            return await self._live.client.ping(timeout_s=timeout_s)
        except CellError as error:
            self._end_if_dead(error)
            raise

    async def wait_dead(self) -> str:
        """Wait for its end; return the cause the host saw."""
        return await self._live.wait_dead()

    def disconnect(self) -> None:
        """End all its operations. Any thread may call it."""
        self._live.client.disconnect()

    def mark_failed(self, error: BelljarError) -> None:
        """End all its operations with `error`. Any thread may call it."""
        killed = killed_error(self._live.killed(), where=f"cell {self.id}")
        self.failure = self.failure or killed or error
        self._live.kill()
        self._live.client.disconnect()

    async def snapshot(self, name: str | None = None) -> Snapshot:
        """Save the cell as it is now, until the end of its run.

        Raise `PolicyError` if the policy or what the cell has (docs/revert.md) forbids it,
        `CellError` if a command runs, the cell died, or the image lacks GNU find and tar, and
        `HostError` without space; the cell goes on.
        """
        if self.failure is not None:
            raise self.failure
        from belljar.cell.snapshot import take_snapshot

        return await take_snapshot(self, name)

    async def revert(self, *, verify: bool | None = None, to: Snapshot | None = None) -> None:
        """Go on in another machine, in the policy's clean state: one of the pool, else a new one.

        Running operations end with `CellError`. The old machine is destroyed meanwhile, with
        proof; the end of the cell's block raises its findings. A failed revert leaves the old
        machine unchanged; a breach ends it, too.

        `to` is a snapshot of any cell of this run and policy. `verify` searches the new machine
        for traces left in the old one just before; risk `high` and above does by default.

        Raise `PolicyError` in a range with a network, `ContainmentBreach` for a trace, `CellError`
        if the cell was killed by order or its block was left, `HostError` if none could be made.
        """
        del verify, to
        raise PolicyError(
            "the cells of a range with a network can't be reverted: its gateway, stand-ins and "
            "target cells keep their state",
            where=f"cell {self.id}",
            hint="open another range, or use a policy without a network",
        )

    async def destroy(self, *, reason: str = "closed") -> Destruction:
        """End the cell now; report what was left, each time the same."""
        end_if_forked(self._pid)
        self._is_ending = True
        try:
            for command in self._background:
                await command.end()
            if self.destruction is None and self.failure is None:
                self._record_death_limit()
        finally:
            with anyio.CancelScope(shield=True):
                destruction = self.destruction = await self._live.destroy(reason=reason)
        return destruction

    @asynccontextmanager
    async def connect(
        self,
        target: int | str | os.PathLike[str],
        *,
        user: str | None = None,
        timeout_s: float = 10,
    ) -> AsyncIterator[CellStream]:
        """Open a byte stream to a port of the cell's own loopback, or to a unix socket in it.

        It goes through the channel, not a network or gateway. Leaving the block closes it.

        Raise `ConnectionRefusedError`, `FileNotFoundError` (no such socket) or another `OSError`
        of the guest's, `TimeoutError`, `ValueError` (no port, no absolute path), `CellError`.
        """
        (kind, name), who = parse_target(target), self._user(user)
        started: dict[str, JsonValue] = {"target": kind, "name": text(name), "user": who}
        seen = list[Capture]()
        bodies = lambda: [body for each in seen for body in each.bodies()]  # noqa: E731
        with self._recorded(_CONNECT, started, seen=bodies) as result:
            async with AsyncExitStack() as stack:
                stream = await self._connected(stack, kind, name, who, timeout_s)
                seen += stream.sent, stream.received
                try:
                    yield stream
                    await stream.aclose()
                finally:
                    stream.end()  # what was not received is in no record, and must not be later
            result |= {f"{each.name}_bytes": each.total_bytes for each in seen}

    async def _connected(
        self, stack: AsyncExitStack, kind: str, name: str, user: str, timeout_s: float
    ) -> CellStream:
        bounds = {"max_stdout_bytes": _ENDLESS, "max_stderr_bytes": 0}
        request = agent_request(["connect", "connect", kind, name], user, **bounds)
        target = printable(f"port {name}" if kind == "tcp" else name)
        model = self.plan.policy.model
        kept_bytes = KEEP_STREAM_BYTES if model is None or model.record == "text" else 0
        with anyio.move_on_after(timeout_s):
            running = await stack.enter_async_context(self._live.client.open_exec(request))
            stream = CellStream(running, self._end_if_dead, kept_bytes)
            answer = await running.receive_stdout()
            if answer is None:
                why = (await running.wait()).why_not_started or "the relay in the cell was killed"
                raise OSError(errno.EIO, f"no connection could be begun: {printable(why)}")
            if code := answer[0]:  # a byte that the guest chooses freely
                raise OSError(code, os.strerror(code), f"{target} in the cell")
            stream._held = answer[1:]
            return stream
        limit = format_duration(timeout_s)
        raise TimeoutError(f"{target} in the cell took no connection within {limit}")
