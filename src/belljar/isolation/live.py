"""What every tier's running cell is to those who use it: one protocol, so that nothing above this
room asks how a cell is isolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from belljar.channel import GuestClient
from belljar.dataclass import dataclass
from belljar.isolation.hold import Order
from belljar.isolation.survivors import Destruction
from belljar.isolation.touches import FileWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUsage:
    """What the host counts of a cell now; None where it can't. `memory_limit_bytes`: of what is
    counted, which is a whole virtual machine where the cell is one."""

    uptime_s: float
    cpu_s: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    disk_bytes: int | None = None
    processes: int | None = None


class Live(Protocol):
    """A cell that runs: its channel, what the host sees of it, and its end."""

    @property
    def cell_id(self) -> str:
        """Its name in journal, ledger and on the host."""
        ...

    @property
    def client(self) -> GuestClient:
        """The channel to its guest agent, ready for commands."""
        ...

    @property
    def emulated(self) -> bool:
        """True when it is a VM without hardware virtualisation."""
        ...

    @property
    def layers(self) -> tuple[str, ...]:
        """The walls in force, outermost first."""
        ...

    @property
    def timings_ms(self) -> Mapping[str, float]:
        """Milliseconds by phase of making it."""
        ...

    @property
    def host_pid(self) -> int | None:
        """The pid on this host of its outermost process, while it lives."""
        ...

    def console(self) -> bytes:
        """What its kernel or its runtime wrote for a person, bounded. The guest's word."""
        ...

    def cause_of_death(self) -> str:
        """Why the cell is dead, as the host saw it; empty while it lives.

        May wait half a second for the supervisor's word.
        """
        ...

    def killed(self) -> Order | None:
        """The kill order over it (`isolation.hold`), also after its end; None: the kill switch was
        not used on it.
        """
        ...

    def death_limit(self) -> str | None:
        """The limit that the cell died of (`memory`, `lifetime`), or None: it lives, or died of
        something else. Does not wait: ask for the cause first.
        """
        ...

    def oom_kills(self) -> int:
        """How often the host's kernel killed a process of the cell for memory, since it was made."""
        ...

    def refused_forks(self) -> int:
        """How often the host's kernel refused the cell a process because it had as many as it may
        have; to have reached that number counts once.
        """
        ...

    def processes_full(self) -> bool:
        """Whether it has as many processes now as it may have, as far as the host sees."""
        ...

    def disk_full(self) -> bool:
        """Whether there is no room, or no inode, left now in what the cell may write, as far as the
        host can see into it.
        """
        ...

    def usage(self) -> HostUsage:
        """What it uses now, as far as the host can count it."""
        ...

    async def watch_files(self, paths: Sequence[str]) -> FileWatch:
        """A sensor that sees who opens or reads these files.

        Raises `HostError` or `CellError` when this cell can have none.
        """
        ...

    def kill(self) -> None:
        """Kill everything in it now, from any thread; `destroy` is still to be called.

        Does nothing when it has ended.
        """
        ...

    async def wait_dead(self) -> str:
        """Until the cell has ended; the cause of death."""
        ...

    async def destroy(self, *, reason: str = "closed") -> Destruction:
        """Kill it, look for survivors by the cell's id, and record what was found.

        Idempotent; shielded from cancellation.
        """
        ...
