"""A live cell that is only its channel: a real client, a fake guest, a death and limits told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from tests.fakes.guest import FakeGuest, Script
from tests.fakes.hosts import capable_host, image_with_a_user
from tests.fakes.recorder import MemoryRecorder
from tests.fakes.talking import talking

from belljar.cell.cell import Cell
from belljar.channel import GuestClient
from belljar.errors import HostError
from belljar.events import Actor, Event, Kind
from belljar.isolation.hold import KillOrder
from belljar.isolation.jail import JailEnd
from belljar.isolation.sandbox import Sandbox
from belljar.isolation.survivors import Destruction
from belljar.isolation.touches import FileWatch, OnAccess, OnEnd
from belljar.ledger.schema import check_data
from belljar.plan.make import make_plan
from belljar.policy.load import resolve_policy

CELL = "c-0123456789ab"
CONSOLE = b"Kernel panic \xff\x1b[31m"


class FakeFileWatch(FileWatch):
    """A sensor that sees what a test calls `on_access` with."""

    sensor = "inotify"

    def __init__(self, missing: Mapping[str, str]) -> None:
        super().__init__()
        self.missing = missing
        self.is_closed = False
        self.on_access: OnAccess | None = None
        self.on_end: OnEnd | None = None

    def begin(self, on_access: OnAccess, on_end: OnEnd) -> None:
        self.on_access, self.on_end = on_access, on_end

    async def aclose(self) -> None:
        self.is_closed = True


class FakeVm(Sandbox):
    """What a `Cell` uses of a `Sandbox`; `cause` is of its death."""

    def __init__(self, client: GuestClient) -> None:
        self.cell_id, self.client, self.emulated = CELL, client, True
        self.layers = ("jail", "microvm", "container")
        self.timings_ms = {"total": 1.0}
        self.cause = ""
        self.ended: JailEnd | None = None
        self.jail = None
        self.survivors: tuple[str, ...] = ()
        self.watch: FakeFileWatch | None = None

    @property
    def host_pid(self) -> int | None:
        return None

    def console(self) -> bytes:
        return CONSOLE

    def end(self, timeout_s: float = 0.0) -> JailEnd | None:
        return self.ended

    def cause_of_death(self) -> str:
        return self.cause

    def killed(self) -> KillOrder | None:
        return None

    def death_limit(self) -> str | None:
        return None

    def oom_kills(self) -> int:
        return 0

    def refused_forks(self) -> int:
        return 0

    def processes_full(self) -> bool:
        return False

    def disk_full(self) -> bool:
        return False

    async def watch_files(self, paths: Sequence[str]) -> FakeFileWatch:
        if self.watch is None:
            raise HostError(f"no sensor for {len(paths)} file(s)", where="fake")
        return self.watch

    def kill(self, _order: object = None) -> None:
        """It has no processes."""

    async def wait_dead(self) -> str:
        return self.cause

    async def destroy(self, *, reason: str = "closed") -> Destruction:
        return Destruction(survivors=self.survivors, looked_for=("everything",), duration_ms=1.0)


@dataclass
class Stage:
    """A cell in a test: what is played on both sides, and what was recorded."""

    cell: Cell
    vm: FakeVm
    guest: FakeGuest
    recorder: MemoryRecorder

    def kinds(self) -> list[Kind]:
        """The kinds recorded so far, each event checked against the ledger's schema."""
        for event in self.recorder.events:
            check_data(event.kind, dict(event.data))
        return self.recorder.kinds()

    def last(self, kind: Kind) -> Event:
        return [event for event in self.recorder.events if event.kind is kind][-1]


@asynccontextmanager
async def staged(scripts: dict[bytes, Script] | None = None) -> AsyncIterator[Stage]:
    """A cell of the preset `high` over a fake guest."""
    async with talking(scripts) as (guest, client):
        vm, recorder = FakeVm(client), MemoryRecorder()
        plan = make_plan(resolve_policy("high").policy, capable_host(), image_with_a_user())
        yield Stage(
            Cell(vm, plan, recorder, actor=Actor.OPERATOR, has_port=False), vm, guest, recorder
        )


def opening(
    scripts: dict[bytes, Script] | None = None,
) -> Callable[..., AbstractAsyncContextManager[Cell]]:
    """Something to stand where `open_cell` stands: a staged cell, destroyed at the end."""

    @asynccontextmanager
    async def open_cell(_policy: object = None, **_options: object) -> AsyncIterator[Cell]:
        async with staged(scripts) as stage:
            try:
                yield stage.cell
            finally:
                await stage.cell.destroy()

    return open_cell
