"""Docker on this host, with the root file system of the cells' image.

It is used as its manual says, with its defaults and no network. It gives less than a cell does (no
record, no proof of destruction): it shows what this host's kernel and disk cost anybody.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from belljar.bench.figures import PEER, BenchRow, Figures, Measure
from belljar.errors import HostError

_TAG: Final = f"belljar-bench:{uuid4().hex[:12]}"
_RUN: Final = ("run", "--rm", "--network", "none", _TAG, "echo", "hello")
# Of one command: a daemon that hangs must not hang the benchmark.
_TIMEOUT_S: Final = 120.0


@contextmanager
def docker_image(rootfs: Path, scratch: Path) -> Iterator[None]:
    """Import the image's file system, a squashfs, for the block. Raises `HostError`."""
    tree, archive = scratch / "tree", scratch / "tree.tar"
    _run("docker", "info")
    _run("unsquashfs", "-quiet", "-no-progress", "-d", tree, rootfs)
    _run("tar", "-C", tree, "-cf", archive, ".")
    _run("docker", "import", archive, _TAG)
    try:
        _run("docker", *_RUN)  # the first fills caches
        yield
    finally:
        _run("docker", "image", "rm", "--force", _TAG)


def time_life(figures: Figures, in_flight: int) -> None:
    """Time one container's life; a failure is noted."""
    row = BenchRow(PEER, Measure.LIFE, in_flight)
    try:
        with figures.timed(row):
            if _run("docker", *_RUN) != b"hello\n":
                raise HostError("a container printed something else than hello")
    except HostError as error:
        figures.fail(row, error.what)


def time_container(figures: Figures, rounds: int, blob: Path) -> None:
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
                with figures.timed(BenchRow(PEER, measure)):
                    _run("docker", *words)
    finally:
        with figures.timed(BenchRow(PEER, Measure.DESTROY)):
            _run("docker", "rm", "--force", name)


def _run(*argv: str | Path) -> bytes:
    """Run a command and return its output; any failure is a `HostError` of one line."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_TIMEOUT_S
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{argv[0]} can't be used: {error}") from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise HostError(f"{argv[0]} ended with {done.returncode}: {' '.join(last)[:200]}")
    return done.stdout
