"""How long a bundle takes, and how large it is:
`python bench/bench_bundle.py [--create ARGUMENT]... [--rounds N] [--json]`.

`belljar bundle create`, `verify` and `install --no-packages` as commands, each round with a directory and a store of
its own: create anew, create again from the parts of an interrupted call, verify, install into an empty store, install
over that. `--create` adds to `create`, such as `--create=--model=examples/model_cell/model.yaml`. pip fetches what its
cache lacks, apt everything: the first round shows the network, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

BELLJAR = [sys.executable, "-m", "belljar", "bundle"]


def timed(*words: str, home: Path | None = None) -> tuple[float, str]:
    """How long a command takes, and what it prints."""
    env = {**os.environ, **({"BELLJAR_HOME": str(home)} if home else {})}
    began = time.perf_counter()
    done = subprocess.run([*BELLJAR, *words], env=env, check=True, stdout=subprocess.PIPE)
    return time.perf_counter() - began, done.stdout.decode()


def sizes(bundle: Path) -> dict[str, int]:
    """Bytes of each kind of item."""
    found = Counter[str]()
    for file in bundle.rglob("*"):
        inner = file.relative_to(bundle).parts
        found[inner[0] if len(inner) > 1 else "manifest"] += file.stat().st_size * file.is_file()
    return dict(found)


def measure(more: list[str], folder: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """One round: seconds of each step; items and bytes."""
    out, home, seconds = folder / "bundle", folder / "home", dict[str, float]()
    seconds["create"], said = timed("create", str(out), *more, "--json")
    about = json.loads(said)
    seconds["verify"], _ = timed("verify", str(out))
    install = ("install", str(out), "--no-packages", "--key", about["key"])
    for step in ("install", "install over it"):
        seconds[step], _ = timed(*install, home=home)
    return seconds, {"items": about["items"], "bytes": sizes(out)}


def main() -> None:
    """Print a table, or JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--create", action="append", default=[])
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    found, about = defaultdict[str, list[float]](list), dict[str, Any]()
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory(prefix="belljar-bench-") as folder:
            seconds, about = measure(given.create, Path(folder))
        for step, value in seconds.items():
            found[step].append(value)
    if given.json:
        print(json.dumps({"seconds": found, **about}))
        return
    print(f"{about['items']} items, {sum(about['bytes'].values()) / 2**20:.0f} MiB:", end=" ")
    print(", ".join(f"{kind} {size / 2**20:.1f}" for kind, size in about["bytes"].items()))
    for step, values in found.items():
        print(f"{step:16} {statistics.median(values):7.1f} s  ({min(values):.1f} to {max(values):.1f})")


if __name__ == "__main__":
    main()
