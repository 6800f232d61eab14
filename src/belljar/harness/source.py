"""Makes cells, images and run directories."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from belljar.cell.open import open_range
from belljar.cell.parts import prepare
from belljar.differences import Difference
from belljar.errors import HostError
from belljar.events import Actor
from belljar.harness.preview import image_differences
from belljar.image.missing import build_missing
from belljar.image.store import MissingImage, Store, find_images, missing_images
from belljar.ledger.rundir import RunDirectory
from belljar.probe.run import breach_of, probe_cell
from belljar.store.home import belljar_home
from belljar.store.locks import locked
from belljar.units import printable
from belljar.waiting import FIRST_CELL, print_status, reported_if_slow

if TYPE_CHECKING:
    from belljar.cell.cell import Cell
    from belljar.cell.range import Range
    from belljar.compose.document import ServiceBuild
    from belljar.policy.loaded import LoadedPolicy
    from belljar.probe.judge import Router
    from belljar.probe.model import ProbeReport

MAX_STARTS: Final = "BELLJAR_MAX_STARTS"
_SLOT_POLL_S: Final = 0.1  # far less than a start; file locks can't be waited for without a thread


@contextlib.contextmanager
def standard_output_to_error() -> Iterator[None]:
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)  # the descriptor as well: programs that are started write to it directly
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()  # a library may have kept the old `sys.stdout`, and buffered something
        os.dup2(kept, 1)
        os.close(kept)


class RealCells:
    """An image's name means one image in a run."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home  # its session's
        self._digests: dict[str, str] = {}
        self._has_opened = False

    @property
    def store(self) -> Path:
        return self.home or belljar_home()

    def start_run(
        self, kind: str, argv: list[str], *, what: str = ""
    ) -> AbstractContextManager[RunDirectory]:
        return RunDirectory(self.store, kind, argv, what=what)

    def build_images(self, builds: Iterable[ServiceBuild], images: Set[str]) -> None:
        build_missing(builds, images, self.store, report=print_status)

    def missing_images(self, policies: Iterable[LoadedPolicy]) -> tuple[MissingImage, ...]:
        names = (name for each in policies for name in each.policy.images)
        return missing_images(Store(self.store), names)

    def image_differences(self, policy: LoadedPolicy) -> tuple[Difference, ...]:
        return image_differences(Store(self.store), policy)

    async def prepare(self, policy: LoadedPolicy, run: RunDirectory) -> None:
        await anyio.to_thread.run_sync(hold_required_gap, run, [policy])
        self.check_unchanged(policy)  # earlier samples have had the same one
        with reported_if_slow(FIRST_CELL):
            parts = await prepare(policy, recorder=run.recorder, home=self.store)
        for sentence in parts.plan.skipped_tiers:
            print_status(f"belljar: {sentence}")

    @asynccontextmanager
    async def open_range(self, policy: LoadedPolicy, run: RunDirectory) -> AsyncIterator[Range]:
        """Raises `HostError` for a replaced image."""

        # Before its own program runs
        async def on_target(target: Cell, router: Router | None) -> None:
            report = await self.probe(target, router, run=run, phase="start")
            if (breach := breach_of(report, target.id)) is not None:
                raise breach

        async with AsyncExitStack() as stack:
            opening = open_range(
                policy, run=run, home=self.home, actor=Actor.HARNESS, on_target=on_target
            )
            # The first may make a template; later ones have nothing to report.
            is_first, self._has_opened = not self._has_opened, True
            async with start_slot(self.store):
                with reported_if_slow(FIRST_CELL) if is_first else contextlib.nullcontext():
                    opened = await stack.enter_async_context(opening)
            for cell in opened.cells.values():
                if cell.plan.image is not None:
                    self._check(cell.plan.policy.image, cell.plan.image.digest)
            yield opened

    def check_unchanged(self, policy: LoadedPolicy) -> None:
        """Raise `HostError` for a replaced image."""
        for name, image in find_images(Store(self.store), policy.policy.images).items():
            self._check(name, image.digest)

    def _check(self, name: str, digest: str) -> None:
        if self._digests.setdefault(name, digest) != digest:  # the first one is the run's
            what = f"the image {printable(name)} was replaced in the store while this run uses it"
            hint = "start the run again; give images of other tasks names of their own"
            raise HostError(what, hint=hint)

    async def probe(
        self, cell: Cell, router: Router | None, *, run: RunDirectory, phase: str
    ) -> ProbeReport:
        return await probe_cell(cell, recorder=run.recorder, router=router, phase=phase)


@asynccontextmanager
async def start_slot(home: Path) -> AsyncIterator[None]:
    """Wait until fewer than `BELLJAR_MAX_STARTS` cells of this store start."""
    text = os.environ.get(MAX_STARTS) or "0"
    if not text.isdecimal():
        raise HostError(f"{MAX_STARTS} is no number", hint="unset it, or give a number of cells")
    with contextlib.ExitStack() as stack:
        for number in itertools.cycle(range(int(text))):
            with contextlib.suppress(BlockingIOError):
                stack.enter_context(locked(home, f"start-{number}", wait=False))
                break
            if number == int(text) - 1:
                await anyio.sleep(_SLOT_POLL_S)
        yield


def hold_required_gap(run: RunDirectory, policies: Sequence[LoadedPolicy]) -> None:
    """Check and hold a required air gap. Raises `HostError`."""
    for policy in (each for each in policies if each.policy.host):
        from belljar.cell.air_gap import hold_air_gap  # late: few policies require it

        hold_air_gap(run, policy)
