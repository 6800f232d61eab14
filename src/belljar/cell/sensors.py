"""Touch sensors: notices that a file in a cell was opened or read, and by which process.

The plan's warnings say what a tier can't see; nothing but the grade "touched" depends on a sensor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import field
from typing import TYPE_CHECKING

from belljar.dataclass import dataclass
from belljar.errors import BelljarError
from belljar.events import Kind, Trust
from belljar.isolation.touches import Access, FileWatch, Operation

if TYPE_CHECKING:
    from belljar.cell.cell import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """A watched file was opened or read.

    Attributes:
        path: as it was given to `watch_files`, whatever name it was touched by.
        decoy: the id given with it.
        process: its name; "": unknown. The workload chooses it.
        pid: in the cell; None: unknown.
        trust: `guest-reported` where the guest agent is the sensor.
        count: touches of this kind since the last one reported: at most one a second for each
            file, operation and process, and 32 a second in all, are reported.
    """

    path: str
    decoy: str
    operation: Operation
    process: str
    pid: int | None
    trust: Trust
    count: int = 1


@dataclass(slots=True)
class Sensor:
    """A cell's sensor. `problems`: why it doesn't see some or all of its files."""

    name: str = ""
    problems: list[str] = field(default_factory=list)


@asynccontextmanager
async def watch_files(
    cell: Cell, files: Mapping[str, str], *, on_touch: Callable[[Touch], None]
) -> AsyncIterator[Sensor]:
    """Report who opens or reads these files of the cell (path → decoy id) until the block is left.

    A sensor that doesn't start, or ends, is on record as `sensor.failed`; it is no error. Reads of
    Belljar's own (`Cell.read_file`, copies) are not reported.

    Args:
        files: regular files that exist. Another file that takes the path later is not watched.
        on_touch: called in any thread. What it raises ends the sensor.

    No task group or cancel scope stays open between entry and exit.
    """
    sensor = Sensor()
    decoys = sorted(set(files.values()))

    def failed(reason: str, of: list[str]) -> None:
        sensor.problems.append(reason)
        cell.note(Kind.SENSOR_FAILED, {"sensor": sensor.name, "decoys": of, "reason": reason})

    watch: FileWatch | None = None
    if files:
        try:
            watch = await cell.watch(list(files))
        except (BelljarError, OSError) as error:
            failed(error.what if isinstance(error, BelljarError) else str(error), decoys)
    if watch is None:
        yield sensor
        return
    try:
        sensor.name = watch.sensor
        for path, reason in watch.missing.items():
            failed(f"{path}: {reason}", [files[path]])
        watched = sorted({decoy for path, decoy in files.items() if path not in watch.missing})
        cell.note(Kind.SENSOR_STARTED, {"sensor": sensor.name, "decoys": watched})
        trust = watch.trust
        watch.begin(
            lambda access: on_touch(_touch(access, files[access.path], trust)),
            lambda reason: failed(reason, watched),
        )
        yield sensor
    finally:
        await watch.aclose()


def _touch(access: Access, decoy: str, trust: Trust) -> Touch:
    return Touch(
        path=access.path,
        decoy=decoy,
        operation=access.operation,
        process=access.process,
        pid=access.pid,
        trust=trust,
        count=access.count,
    )
