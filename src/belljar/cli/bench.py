"""`belljar bench`: times of cells on this host, beside its container tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from belljar.cli.console import TIERS, json_option, notice, print_json, run_async, table_lines
from belljar.errors import CellError, HostError, PolicyError
from belljar.package import __version__
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.bench.figures import Figures
    from belljar.bench.peers import Peer

_MIB: Final = 1 << 20
_TASK: Final = """\
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import solver
from inspect_ai.util import sandbox


@solver
def work():
    async def solve(state, generate):
        box = sandbox()
        await box.write_file("in.txt", "3\\n1\\n2\\n")
        await box.exec(["sh", "-c", "sort in.txt >out.txt"])
        state.output.completion = await box.read_file("out.txt")
        return state

    return solve


@task
def bench():
    samples = [Sample(id=number, input="sort", target="1\\n2\\n3") for number in range({samples})]
    return Task(dataset=MemoryDataset(samples), solver=work(), scorer=includes(), sandbox="belljar")
"""
# An evaluation that hangs must not hang the benchmark.
_EVALUATION_TIMEOUT_S: Final = 3600


@click.command()
@click.option(
    "--tier", "tiers", multiple=True, type=click.Choice(TIERS), help="Repeatable. Default: all."
)
@click.option(
    "--in-flight",
    multiple=True,
    type=click.IntRange(1, 200),
    help="Whole lives at once. Repeatable. Default: 1, 10, 50 and 100.",
)
@click.option("--rounds", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option(
    "--samples",
    type=click.IntRange(0, 10_000),
    default=100,
    show_default=True,
    help="Of an Inspect evaluation in each tier; 0: none.",
)
@click.option("--quick", is_flag=True, help="Under two minutes: 5 rounds, 1 and 10 at once.")
@click.option("--no-peers", is_flag=True, help="Measure cells alone.")
@json_option("Print one JSON object: host, series with raw samples, absent, memory_mib.")
def bench(
    *,
    tiers: tuple[str, ...],
    in_flight: tuple[int, ...],
    rounds: int,
    samples: int,
    quick: bool,
    no_peers: bool,
    as_json: bool,
) -> int:
    """Measure cells on this host, and its container tools in the same run.

    Create, first output, exec, files, revert, a pool and destruction in each tier; whole lives at
    once; an Inspect evaluation. Docker, runc, runsc and bubblewrap run the same command with the
    same root file system, where they are installed. The ratio is a row's median over the median
    of the first of them that works.

    \b
    Exit codes:
      0  all was measured
      3  a tier can't be used here: its rows are missing, the reason is printed
      5  a cell failed: its row says how many
    """
    from belljar.bench.figures import Figures

    if quick:
        rounds, in_flight, samples = min(rounds, 5), in_flight or (1, 10), 0
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as scratch:
        with _peers(Path(scratch), figures, wanted=not no_peers) as found:
            for count in in_flight or (1, 10, 50, 100):
                _time_peers(found, figures, count, rounds if count == 1 else 1)
            _time_one_container(found, figures, rounds, Path(scratch), quick=quick)
        for tier in tiers or TIERS:
            _time_tier(tier, figures, rounds, in_flight or (1, 10, 50, 100), quick=quick)
            if samples and tier not in figures.absent:
                _time_evaluation(tier, figures, samples, Path(scratch))
    peer = found[0].name if found else ""
    _print(figures, peer, as_json=as_json)
    if any(tier in figures.absent for tier in tiers or TIERS):
        return HostError.exit_code
    return CellError.exit_code if any(row.subject in TIERS for row in figures.failures) else 0


@contextmanager
def _peers(scratch: Path, figures: Figures, *, wanted: bool) -> Iterator[list[Peer]]:
    if not wanted:
        yield []
        return
    from belljar.bench.peers import peers
    from belljar.image import Store
    from belljar.store.home import belljar_home

    notice("looking for Docker, runc, runsc and bubblewrap")
    with peers(Store(belljar_home()).find("default").rootfs, scratch, figures) as found:
        yield found


def _time_peers(found: list[Peer], figures: Figures, count: int, rounds: int) -> None:
    for peer in found:
        notice(f"{peer.name}: {count} at once")
        with ThreadPoolExecutor(count) as threads:
            for _ in range(rounds):
                for each in [threads.submit(peer.run, figures, count) for _ in range(count)]:
                    each.result()


def _time_one_container(
    found: list[Peer], figures: Figures, rounds: int, scratch: Path, *, quick: bool
) -> None:
    from belljar.bench.peers import DOCKER, time_docker

    if any(peer.name == DOCKER for peer in found):
        blob = scratch / "blob"
        blob.write_bytes(os.urandom(_file_mib(quick=quick) * _MIB))
        time_docker(figures, rounds, blob)


def _file_mib(*, quick: bool) -> int:
    return 10 if quick else 50


def _time_tier(
    tier: str, figures: Figures, rounds: int, in_flight: tuple[int, ...], *, quick: bool
) -> None:
    from belljar.bench.cells import Workload, time_tier

    file_bytes = _file_mib(quick=quick) * _MIB
    work = Workload(tier=tier, rounds=rounds, in_flight=in_flight, file_bytes=file_bytes)
    try:
        run_async(time_tier, work, figures, notice)
    except (HostError, PolicyError) as error:
        figures.absent[tier] = str(error)


def _time_evaluation(tier: str, figures: Figures, samples: int, scratch: Path) -> None:
    """Time a whole `belljar run`, Python's and Inspect's start included."""
    from belljar.bench.cells import POLICY
    from belljar.bench.figures import Measure, Row

    notice(f"{tier}: an evaluation of {samples} samples")
    task, policy = scratch / "bench_task.py", scratch / f"{tier}.yaml"
    task.write_text(_TASK.replace("{samples}", str(samples)))
    policy.write_text(json.dumps({**POLICY, "tier": tier}))
    argv = [sys.executable, "-m", "belljar", "run", str(task), "--policy", str(policy)]
    argv += ["--model", "mockllm/model", "--display", "none", "--json"]
    row = Row(tier, Measure.EVALUATION, samples)
    with figures.timed(row):
        done = subprocess.run(
            argv, capture_output=True, check=False, cwd=scratch, timeout=_EVALUATION_TIMEOUT_S
        )
    if done.returncode:
        figures.samples_ms.pop(row)
        figures.fail(row, f"`belljar run` ended with {done.returncode}")


def _print(figures: Figures, peer: str, *, as_json: bool) -> None:
    from belljar.cli.policy import host_facts
    from belljar.store.home import belljar_home

    facts = host_facts(belljar_home(), prove=False)
    host: dict[str, Any] = {
        "belljar": __version__,
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": os.getloadavg(),
        "microvm_is_emulated": facts.kvm.state != "proven",
        "facts": asdict(facts),
    }
    if as_json:
        known = {"absent": figures.absent, "memory_mib": figures.memory_mib}
        print_json({"host": host, "peer": peer, **known, "series": figures.document(peer)})
        return
    for line in table_lines(figures.table(peer)):
        click.echo(line)
    click.echo()
    for tier, mib in figures.memory_mib.items():
        click.echo(f"memory of one used cell, {tier}: {mib} MiB")
    for row, failures in figures.failures.items():
        click.echo(f"failed, {row.subject}, {row.measure}: {printable(failures[0], max_chars=300)}")
    for name, why in figures.absent.items():
        click.echo(f"absent, {name}: {printable(why, max_chars=300)}")
    emulated = "; the microVM is emulated" if host["microvm_is_emulated"] else ""
    click.echo(f"{facts.cpus} cores, {facts.cpu_model}, load {host['load'][0]:.1f}{emulated}")
