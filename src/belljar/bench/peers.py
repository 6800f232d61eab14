"""The container tools of this host, each with the root file system of the cells' image.

A peer is used as its manual says, with its defaults and no network. It gives less than a cell does
(no record, no proof of destruction): it shows what this host's kernel and disk cost anybody.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias
from uuid import uuid4

from belljar.bench.figures import BenchRow, Figures, Measure
from belljar.errors import HostError

DOCKER: Final = "docker run --rm"
_TAG: Final = f"belljar-bench:{uuid4().hex[:12]}"
_HELLO: Final = ("echo", "hello")
# Of one command of a peer: a daemon that hangs must not hang the benchmark.
_TIMEOUT_S: Final = 120.0

Life: TypeAlias = Callable[[], Sequence[str | Path]]


@dataclass(frozen=True, slots=True)
class BenchPeer:
    """A tool that runs one command in a fresh container. `life` returns its command line."""

    name: str
    life: Life

    def run(self, figures: Figures, in_flight: int) -> None:
        """Time one life; a failure is noted."""
        row, argv = BenchRow(self.name, Measure.LIFE, in_flight), self.life()
        try:
            with figures.timed(row):
                if _run(*argv) != b"hello\n":
                    raise HostError(f"{self.name} printed something else than hello")
        except HostError as error:
            figures.fail(row, error.what)


@contextmanager
def peers(rootfs: Path, scratch: Path, figures: Figures) -> Iterator[list[BenchPeer]]:
    """Yield the peers that work here; the others are noted as absent, with the reason.

    Args:
        rootfs: the image's file system, a squashfs.
        scratch: an empty directory for the unpacked tree and the tools' state.
    """
    tree, found = scratch / "tree", []
    _run("unsquashfs", "-quiet", "-no-progress", "-d", tree, rootfs)
    with ExitStack() as stack:
        prepares: dict[str, Callable[[], Life]] = {
            DOCKER: partial(_prepare_docker, tree, stack),
            "runc": partial(_prepare_runtime, "runc", tree),
            "runsc": partial(_prepare_runtime, "runsc", tree, "--network=none"),
            "bwrap": partial(_prepare_bubblewrap, tree),
        }
        for name, prepare in prepares.items():
            trial = Figures()
            try:
                peer = BenchPeer(name, prepare())
            except HostError as error:
                figures.absent[name] = error.what
                continue
            peer.run(trial, 1)
            if trial.failures:
                figures.absent[name] = trial.failures[BenchRow(name, Measure.LIFE)][0]
            else:
                found.append(peer)
        yield found


def time_docker(figures: Figures, rounds: int, blob: Path) -> None:
    """Time `docker exec`, `docker cp` and `docker rm -f` in one container."""
    argv = ("docker", "run", "-d", "--network", "none", _TAG, "sleep", "3600")
    name = _run(*argv).decode().strip()
    try:
        steps: tuple[tuple[Measure, int, tuple[str | Path, ...]], ...] = (
            (Measure.EXEC, rounds, ("exec", name, "true")),
            (Measure.FILE_IN, 3, ("cp", blob, f"{name}:/tmp/blob")),
            (Measure.FILE_OUT, 3, ("cp", f"{name}:/tmp/blob", blob.with_suffix(".back"))),
        )
        for measure, times, words in steps:
            for _ in range(times):
                with figures.timed(BenchRow(DOCKER, measure)):
                    _run("docker", *words)
    finally:
        with figures.timed(BenchRow(DOCKER, Measure.DESTROY)):
            _run("docker", "rm", "--force", name)


def _prepare_docker(tree: Path, stack: ExitStack) -> Life:
    """Import the tree as an image, which is removed when the stack is closed."""
    _run("docker", "info")
    archive = tree.with_suffix(".tar")
    _run("tar", "-C", tree, "-cf", archive, ".")
    _run("docker", "import", archive, _TAG)
    stack.callback(_run, "docker", "image", "rm", "--force", _TAG)
    argv = ("docker", "run", "--rm", "--network", "none", _TAG, *_HELLO)
    return lambda: argv


def _prepare_runtime(name: str, tree: Path, *options: str) -> Life:
    """Write an OCI bundle with the runtime's own default configuration."""
    bundle = tree.with_name(name)
    bundle.mkdir()
    _run(name, "spec", "--bundle", bundle)
    document = json.loads((bundle / "config.json").read_text())
    document["process"] |= {"terminal": False, "args": list(_HELLO)}
    document["root"] = {"path": str(tree), "readonly": True}
    (bundle / "config.json").write_text(json.dumps(document))
    argv: tuple[str | Path, ...]
    argv = (name, *options, "--root", bundle / "state", "run", "--bundle", bundle)
    return lambda: (*argv, f"bench-{uuid4().hex[:12]}")


def _prepare_bubblewrap(tree: Path) -> Life:
    mounts = ("--ro-bind", tree, "/", "--proc", "/proc", "--dev", "/dev")
    argv = ("bwrap", "--unshare-all", "--die-with-parent", *mounts, *_HELLO)
    return lambda: argv


def _run(*argv: str | Path) -> bytes:
    """Run a peer's command and return its output; any failure is a `HostError` of one line."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise HostError(f"there is no {argv[0]} on the PATH") from error
    except subprocess.TimeoutExpired as error:
        raise HostError(f"{argv[0]} took longer than {_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise HostError(f"{argv[0]} ended with {done.returncode}: {' '.join(last)[:200]}")
    return done.stdout
