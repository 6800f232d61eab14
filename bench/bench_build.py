"""`belljar image build` against `docker build` of the same Dockerfile, as root: `python bench/bench_build.py [--rounds N] [--json]`.

Cold: neither has built it before (each round has another file in its context). Warm: the same again. Docker's daemon is the
benchmark's own, with the default image as base, without network.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from peer import IMAGE, Docker, docker

from belljar.image.buildah import BuildRequest, build_dockerfile, remove_kept
from belljar.image.store import Store
from belljar.store.home import belljar_home

_TEXT = "FROM {base}\nUSER root\nRUN mkdir /made && seq {number} > /made/numbers\nCOPY . /context\nRUN ls /context\n"
_STATES = ("cold", "changed", "warm")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    home = belljar_home()
    taken: dict[str, list[float]] = defaultdict(list)
    base = Store(home).find("default")
    remove_kept(home, home / "build-bases" / base.digest)
    with docker(base.rootfs) as client, tempfile.TemporaryDirectory() as folder:
        first_s = timed(lambda: by_belljar(home, context(Path(folder), "default", 0)))
        for number in range(1, options.rounds + 1):
            ours, theirs = (context(Path(folder), base, number) for base in ("default", IMAGE))
            for state in _STATES:
                if state == "changed":
                    for directory in (ours, theirs):
                        (directory / "file").write_text(f"{time.time_ns()}")
                taken[f"belljar, {state}"].append(timed(lambda: by_belljar(home, ours)))  # noqa: B023 - called at once
                taken[f"docker, {state}"].append(timed(lambda: by_docker(client, theirs)))  # noqa: B023
        for image in Store(home).list():  # each build took the name from the one before
            if image.source.startswith(f"build {folder}/"):
                Store(home).remove(image.digest)
    taken["belljar, base"].append(first_s - min(taken["belljar, cold"]))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    if options.json:
        print(json.dumps({name: round(seconds, 3) for name, seconds in medians.items()}))
        return
    print(f"base: belljar {medians['belljar, base']:.1f} s")
    for state in _STATES:
        ours_s, theirs_s = medians[f"belljar, {state}"], medians[f"docker, {state}"]
        print(f"{state}: belljar {ours_s:.2f} s, docker {theirs_s:.2f} s, ratio {ours_s / theirs_s:.2f}")


def context(folder: Path, base: str, number: int) -> Path:
    """A directory that nobody has built."""
    directory = folder / f"{number}-{base.partition(':')[0]}"
    directory.mkdir()
    (directory / "Dockerfile").write_text(_TEXT.format(base=base, number=100_000 + time.time_ns() % 1000))
    (directory / "file").write_text(f"{time.time_ns()}")
    return directory


def by_belljar(home: Path, directory: Path) -> None:
    """Into the store."""
    build_dockerfile(home, BuildRequest(context=directory, name="bench-build"))


def by_docker(client: Docker, directory: Path) -> None:
    """Into the daemon."""
    client.run("build", "--network", "none", "-t", "bench-build", str(directory))


def timed(work: Callable[[], None]) -> float:
    """Its duration in seconds."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        raise SystemExit(error.stderr.decode("utf-8", "replace")) from error
