"""A running cell and its recorded operations.

Each is recorded twice: before its first byte goes to the guest, and when its outcome is known. On a
cell that has died it raises `CellError` with the cause of death; nothing is retried.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio

from belljar.cell.connection import ConnectOperations
from belljar.cell.exec import ExecOperations
from belljar.cell.files import FileOperations
from belljar.errors import BelljarError, CellError, PolicyError
from belljar.isolation.hold import killed_error
from belljar.isolation.survivors import Destruction
from belljar.isolation.touches import FileWatch
from belljar.process import end_if_forked


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A cell at one moment. Made by `Cell.snapshot`; deleted, with proof, at the end of its run.

    Attributes:
        state: `machine`: memory, processes and files; `files`: files alone (container, gvisor).
        digest: of all of it, in hex.
        key: of what it goes on with alone: VMM, processor, kernel, image and limits, as a digest.
    """

    id: str
    name: str
    state: Literal["machine", "files"]
    digest: str
    key: str
    cell: str
    size_bytes: int
    saved: Any = field(repr=False)  # a `SavedMachine`, or a `SavedFiles`, which knows this module
    origin: Any = field(repr=False)  # a `cell.range.CellOrigin`, whose module knows this one

    @asynccontextmanager
    async def fork(self) -> AsyncIterator[Cell]:
        """Open a cell that goes on from here with an identity, randomness and clock of its own.

        Reverted, it is in the policy's clean state. Raises as `open_cell`, and `CellError` when the
        snapshot was changed or deleted, `HostError` for another VMM, processor, kernel or image.
        """
        async with self.origin.fork(self) as opened:
            yield opened.cell


class Cell(ExecOperations, ConnectOperations, FileOperations):
    """One running sandbox: one root filesystem, one guest agent. Made only by `open_cell`.

    Attributes:
        has_port: it has a network device, on its range's network.
        image_command: the image's entrypoint and command, often nothing.
        image_health: the image's check, as `health` of a target cell; empty where it has none.
        describe: says what it is for, for `belljar ps`: `sample`, `epoch`.
        destruction: what its end found, once it has ended.
    """

    @property
    def host_pid(self) -> int | None:
        """The pid on this host of the cell's outermost process, while it lives."""
        return self._live.host_pid

    async def watch(self, paths: Sequence[str]) -> FileWatch:
        """The tier's sensor for these files. Raises `HostError` or `CellError`."""
        return await self._live.watch_files(paths)

    async def ping(self, *, timeout_s: float = 10) -> float:
        """Seconds to the guest agent and back. Raises `CellError` when it doesn't answer."""
        try:
            return await self._live.client.ping(timeout_s=timeout_s)
        except CellError as error:
            self._end_if_dead(error)
            raise

    async def wait_dead(self) -> str:
        """Until the cell has ended; why it did, as the host saw it."""
        return await self._live.wait_dead()

    def disconnect(self) -> None:
        """End every operation of it, in whatever event loop it waits. From any thread."""
        self._live.client.disconnect()

    def mark_failed(self, error: BelljarError) -> None:
        """End every operation of it, now and later, with `error`, which is on record. From any
        thread; `destroy` is still to be called.
        """
        killed = killed_error(self._live.killed(), where=f"cell {self.id}")
        self._dead = self._dead or killed or error
        self._live.kill()
        self._live.client.disconnect()

    async def snapshot(self, name: str | None = None) -> Snapshot:
        """Save the cell as it is now, until the end of its run, where it is deleted with proof.

        A microVM stands still meanwhile, and is kept whole; of another tier the files alone are.

        Raises:
            PolicyError: the policy doesn't allow it, or the cell is on a network, of a model, with
                decoys or with a `secret` file.
            CellError: a command runs in it; or it died; or the image has no GNU find and tar.
            HostError: no space; it goes on.
        """
        if self._dead is not None:
            raise self._dead
        if self.origin is None:
            raise PolicyError(
                "a cell on a network, or a target cell, can't be saved: its range has state",
                where=f"cell {self.id}",
                hint="use a policy without a network",
            )
        from belljar.cell.snapshot import take_snapshot

        return await take_snapshot(self, Snapshot, name)

    async def revert(self, *, verify: bool | None = None, to: Snapshot | None = None) -> None:
        """Go on in another machine, in the policy's clean state: one of the pool, else a new one.

        Nothing else of the old machine is left; `id`, `last_op` and `destruction` are the new
        one's. Operations that run end with `CellError`. The old machine is destroyed, with proof,
        while the caller goes on; the end of the cell's block waits for that and raises what it
        found. A revert that fails leaves the old machine as it was; a breach ends it, too.

        Args:
            to: go on from there: a snapshot of this run's, of any cell of the same policy.
            verify: look in the new machine for traces that are left in the old one just before.
                Default: at risk `high` and `critical`.

        Raises:
            PolicyError: a range with a network, or a target cell: they can't be reset.
            ContainmentBreach: the new machine had something of the old one.
            CellError: the cell was killed by order, or its block was left.
            HostError: no machine could be made.
        """
        del verify, to
        raise PolicyError(
            "the cells of a range with a network can't be reverted: its gateway, stand-ins and "
            "target cells keep their state",
            where=f"cell {self.id}",
            hint="open another range, or use a policy without a network",
        )

    async def destroy(self, *, reason: str = "closed") -> Destruction:
        """End the cell now and say what was left of it, as leaving `open_cell` does. Idempotent."""
        end_if_forked(self._pid)
        self._is_ending = True
        try:
            for command in self._background:
                await command.end()
            if self.destruction is None and self._dead is None:
                self._record_death_limit()
        finally:
            with anyio.CancelScope(shield=True):
                destruction = self.destruction = await self._live.destroy(reason=reason)
        return destruction
