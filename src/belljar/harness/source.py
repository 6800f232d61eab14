"""Makes cells, images and run directories."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belljar.differences import Difference, DifferenceKind
from belljar.errors import HostError, PolicyError
from belljar.events import Actor
from belljar.image.store import MADE_HERE
from belljar.plan.make import granted
from belljar.policy.files import check_below
from belljar.policy.limits import demanded_tier
from belljar.store.home import belljar_home
from belljar.store.locks import locked
from belljar.units import printable
from belljar.waiting import FIRST_CELL, print_status, reported_if_slow

if TYPE_CHECKING:
    from belljar.cell.cell import Cell
    from belljar.cell.range import Range
    from belljar.compose.document import ServiceBuild
    from belljar.image.store import MissingImage
    from belljar.ledger.rundir import RunDirectory
    from belljar.policy.loaded import LoadedPolicy
    from belljar.probe.judge import Router
    from belljar.probe.model import ProbeReport


MAX_STARTS: Final = "BELLJAR_MAX_STARTS"
# Far less than a cell's start; file locks can't be waited for without a thread.
_SLOT_POLL_S: Final = 0.1


@contextlib.contextmanager
def standard_output_to_error() -> Iterator[None]:
    """Keep standard output for `--json` only."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        # The descriptor as well: programs that are started write to it directly.
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        # A library may have kept the old `sys.stdout`: what it buffered goes to standard error,
        # too.
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


class RealCells:
    """Real cells; image names stay fixed in a run."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home  # its session's
        self._digests: dict[str, str] = {}
        self._has_opened = False

    @property
    def store(self) -> Path:
        """The store's directory."""
        return self.home or belljar_home()

    def start_run(
        self, kind: str, argv: list[str], *, what: str = ""
    ) -> AbstractContextManager[RunDirectory]:
        """Make a new run directory."""
        from belljar.ledger.rundir import RunDirectory

        return RunDirectory(self.store, kind, argv, what=what)

    def build_images(self, builds: Iterable[ServiceBuild], images: Set[str]) -> None:
        """By buildah. Raises `PolicyError` or `HostError`."""
        build_missing(builds, images, self.store, report=print_status)

    def check_images(self, policies: Sequence[LoadedPolicy]) -> None:
        """Raise `HostError` for images that the store lacks."""
        from belljar.image.store import refuse_missing

        refuse_missing(self.missing_images(policies))

    def missing_images(self, policies: Iterable[LoadedPolicy]) -> tuple[MissingImage, ...]:
        """The images of these ranges that the store lacks."""
        from belljar.image.store import Store, missing_images

        names = (name for each in policies for name in each.policy.images)
        return tuple(missing_images(Store(self.store), names))

    def image_differences(self, policy: LoadedPolicy) -> tuple[Difference, ...]:
        """How these cells differ from their stored images' configuration."""
        from belljar.image.config import image_differences
        from belljar.image.store import Store

        store, found = Store(self.store), list[Difference]()
        rights, tier = policy.policy.rights, demanded_tier(policy.policy.risk, policy.policy.tier)
        for name in policy.policy.images:
            # A missing image has no configuration; `check_images` refuses it.
            with contextlib.suppress(HostError):
                image = store.find(name)
                facts = [*image_differences(image.config)]
                if rights is not None and rights.setuid_programs != "off" and image.setuid_programs:
                    kind, hint = DifferenceKind.DROPPED, "run it with --tier microvm"
                    detail = f"`su` and `sudo` gain nothing in a {tier.value} cell"
                    if image.setuid_programs == "removed":
                        hint = "import it again with --keep-setuid"
                        detail = "its programs lost the bit at import: `su` and `sudo` gain nothing"
                    elif granted(rights, tier).setuid_programs:
                        kind, hint = DifferenceKind.GRANTED, ""
                        detail = "its programs gain their owner's rights, at most the cell's root's"
                    facts.append(Difference(kind=kind, key="set-user-ID", detail=detail, hint=hint))
                found += [replace(fact, where=f"image {name}") for fact in facts]
        return tuple(found)

    async def prepare(self, policy: LoadedPolicy, run: RunDirectory) -> None:
        """Plan here and make the template."""
        import anyio.to_thread

        from belljar.cell.parts import prepare

        await anyio.to_thread.run_sync(hold_required_gap, run, [policy])
        # Before the template is made: it would be of another image than earlier samples have.
        self.check_unchanged(policy)
        with reported_if_slow(FIRST_CELL):
            parts = await prepare(policy, recorder=run.recorder, home=self.store)
        for sentence in parts.plan.skipped_tiers:
            print_status(f"belljar: {sentence}")

    @asynccontextmanager
    async def open_range(self, policy: LoadedPolicy, run: RunDirectory) -> AsyncIterator[Range]:
        """The templates' clones. Raises `HostError` for a replaced image."""
        from belljar.cell.open import open_range
        from belljar.probe.run import breach_of

        # before its own program runs
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
        from belljar.image.store import Store, find_images

        for name, image in find_images(Store(self.store), policy.policy.images).items():
            self._check(name, image.digest)

    def _check(self, name: str, digest: str) -> None:
        # The first digest that was seen is the run's, whatever the name means later.
        if self._digests.setdefault(name, digest) != digest:
            what = f"the image {printable(name)} was replaced in the store while this run uses it"
            hint = "start the run again; give images of other tasks names of their own"
            raise HostError(what, hint=hint)

    async def probe(
        self, cell: Cell, router: Router | None, *, run: RunDirectory, phase: str
    ) -> ProbeReport:
        """As the workload, with the host's witnesses."""
        from belljar.probe.run import probe_cell

        return await probe_cell(cell, recorder=run.recorder, router=router, phase=phase)


@asynccontextmanager
async def start_slot(home: Path) -> AsyncIterator[None]:
    """Wait until fewer than `BELLJAR_MAX_STARTS` cells of this store start, in all processes.

    Raises `HostError` for a value that is no number.
    """
    text = os.environ.get(MAX_STARTS) or "0"
    if not text.isdecimal():
        raise HostError(f"{MAX_STARTS} is no number", hint="unset it, or give a number of cells")
    import anyio  # not for `check`, which only reads

    with contextlib.ExitStack() as stack:
        for number in itertools.cycle(range(int(text))):
            with contextlib.suppress(BlockingIOError):
                stack.enter_context(locked(home, f"start-{number}", wait=False))
                break
            if number == int(text) - 1:
                await anyio.sleep(_SLOT_POLL_S)
        yield


def hold_required_gap(run: RunDirectory, policies: Sequence[LoadedPolicy]) -> None:
    """Check and hold the air gap if a policy requires one: what a sample does beside its cell needs
    it, too. Raises `HostError`.
    """
    for policy in (each for each in policies if each.policy.host):
        from belljar.cell.air_gap import hold_air_gap  # late: few policies require it

        hold_air_gap(run, policy)


def build_missing(
    builds: Iterable[ServiceBuild],
    images: Set[str],
    home: Path,
    *,
    report: Callable[[str], None] = lambda _line: None,
) -> None:
    """Build those of `builds` (`BelljarConfig.builds`) in `images` that are not up to date.

    An image that Belljar did not build is used as it is. Raises `PolicyError` for a failed build or
    two builds of one name, `HostError` without buildah or a base.
    """
    from belljar.image.buildah import BuildRequest, StepError, build_dockerfile, is_built
    from belljar.image.store import Store

    store = Store(home)
    running = [each for each in dict.fromkeys(builds) if each.image in images]
    names = [each.image for each in running]
    for name in names:
        # Else a sample would run in another's image.
        if names.count(name) > 1 or name in MADE_HERE:
            raise PolicyError(
                f"several builds, or an image that is Belljar's own, are called {printable(name)}",
                hint="give each of them an `image` of its own in its compose file",
            )
    for each in running:
        root = Path(each.root)
        context, dockerfile = root / each.context, root / each.dockerfile
        for path in (context / "in", dockerfile):
            check_below(path, root)
        request = BuildRequest(
            context=context,
            name=each.image,
            dockerfile=dockerfile,
            inline=each.inline,
            args=each.args,
            target=each.target,
            keep_setuid=True,  # what of it works in a cell is its tier's to say
        )
        if store.missing(request.name) is None:
            found = store.find(request.name)
            if not found.built or is_built(store, found, request):
                continue
        report(f"building the image {printable(request.name)}")
        try:
            build_dockerfile(home, request, report=report)
        except StepError as error:
            network = f"if its steps need the network: {command_of(each, network=True)}"
            hint = network if error.wants_network else error.hint
            raise PolicyError(error.what, where=error.where, hint=hint) from error


def command_of(build: ServiceBuild, *, network: bool = False) -> str:
    """The command line that makes its image."""
    root = Path(build.root)
    command = ["belljar", "image", "build", *(["--network"] if network else []), "--keep-setuid"]
    command += ["-t", build.image, "-f"]
    # The text is in the compose file: the user has to write it into a file first.
    command += ["FILE" if build.inline else str(root / build.dockerfile)]
    for name, value in build.args.items():
        command += ["--build-arg", f"{name}={value}"]
    command += ["--target", build.target] if build.target else []
    return shlex.join([*command, str(root / build.context)])
