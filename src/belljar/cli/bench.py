"""`belljar bench`: times of cells on this host, beside its container tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from belljar.cli.console import TIERS, json_option, notice, print_json, run_async, table_lines
from belljar.errors import CellError, ContainmentBreach, HostError, PolicyError
from belljar.package import __version__
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.bench.figures import Figures

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
    from belljar.bench.cells import Workload, time_tier
    from belljar.bench.figures import BenchRow, Figures, Measure

    if quick:
        rounds, samples = min(rounds, 5), 0
    counts = in_flight or ((1, 10) if quick else (1, 10, 50, 100))
    # Random, so that nothing on the way compresses it.
    blob, figures, peer = os.urandom((10 if quick else 50) << 20), Figures(), ""
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as scratch:
        try:
            if not no_peers:
                try:
                    peer = _time_peers(figures, rounds, counts, blob, Path(scratch))
                except HostError as error:
                    figures.absent["peers"] = str(error)
            for tier in tiers or TIERS:
                work = Workload(tier=tier, rounds=rounds, in_flight=counts, blob=blob)
                try:
                    run_async(time_tier, work, figures, notice)
                    if samples:
                        _time_evaluation(tier, figures, samples, Path(scratch))
                except (HostError, PolicyError) as error:
                    figures.absent[tier] = str(error)
                except CellError as error:
                    figures.fail(BenchRow(tier, Measure.LIFE), str(error))
        # What was measured is printed, after Ctrl-C as well.
        finally:
            _print(figures, peer, as_json=as_json)
    if any(tier in figures.absent for tier in tiers or TIERS):
        return HostError.exit_code
    return CellError.exit_code if any(row.subject in TIERS for row in figures.failures) else 0


def _time_peers(
    figures: Figures, rounds: int, counts: tuple[int, ...], blob: bytes, scratch: Path
) -> str:
    """Time the peers that work here and return the first one's name, or ""."""
    from belljar.bench.peers import DOCKER, peers, time_docker
    from belljar.image.store import Store
    from belljar.store.home import belljar_home

    notice("looking for Docker, runc, runsc and bubblewrap")
    with peers(Store(belljar_home()).find("default").rootfs, scratch, figures) as found:
        for peer, count in ((peer, count) for peer in found for count in counts):
            notice(f"{peer.name}: {count} at once")
            with ThreadPoolExecutor(count) as threads:
                # Many at once give as many times in one round.
                for _ in range(rounds if count == 1 else 1):
                    list(threads.map(peer.run, [figures] * count, [count] * count))
        if any(peer.name == DOCKER for peer in found):
            (scratch / "blob").write_bytes(blob)
            time_docker(figures, rounds, scratch / "blob")
        return found[0].name if found else ""


def _time_evaluation(tier: str, figures: Figures, samples: int, scratch: Path) -> None:
    """Time a whole `belljar run`, Python's and Inspect's start included."""
    from belljar.bench.cells import POLICY
    from belljar.bench.figures import BenchRow, Measure

    notice(f"{tier}: an evaluation of {samples} samples")
    task, policy = scratch / "bench_task.py", scratch / f"{tier}.yaml"
    task.write_text(_TASK.replace("{samples}", str(samples)))
    policy.write_text(json.dumps({**POLICY, "tier": tier}))
    argv = [sys.executable, "-m", "belljar", "run", str(task), "--policy", str(policy)]
    argv += ["--model", "mockllm/model", "--display", "none", "--json"]
    row = BenchRow(tier, Measure.EVALUATION, samples)
    try:
        with figures.timed(row):
            done = subprocess.run(
                argv, capture_output=True, check=False, cwd=scratch, timeout=_EVALUATION_TIMEOUT_S
            )
    except subprocess.TimeoutExpired:
        figures.fail(row, f"`belljar run` took longer than {_EVALUATION_TIMEOUT_S} s")
        return
    if done.returncode:
        # The time of a failed evaluation measures nothing.
        del figures.samples_ms[row]
        figures.fail(row, f"`belljar run` ended with {done.returncode}")
    if done.returncode == ContainmentBreach.exit_code and b'"verdict": "breached"' in done.stdout:
        raise ContainmentBreach("a sample of the evaluation was breached", where=tier)


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
        print_json({"host": host, "peer": peer, **known, "series": figures.series(peer)})
        return
    lines: list[tuple[str, ...]] = [
        ("", "what", "at once", "P50 ms", "P95 ms", "P99 ms", f"÷ {peer or 'peer'}")
    ]
    for each in figures.series(peer):
        numbers = (each[name] for name in ("p50_ms", "p95_ms", "p99_ms", "ratio"))
        texts = ["-" if number is None else f"{number:.2f}" for number in numbers]
        lines.append((each["subject"], each["measure"], str(each["in_flight"]), *texts))
    click.echo("\n".join(table_lines(lines)) + "\n")
    for tier, mib in figures.memory_mib.items():
        click.echo(f"memory of one used cell, {tier}: {mib} MiB")
    for row, failures in figures.failures.items():
        click.echo(f"failed, {row.subject}, {row.measure}: {printable(failures[0], max_chars=300)}")
    for name, why in figures.absent.items():
        click.echo(f"absent, {name}: {printable(why, max_chars=300)}")
    emulated = "; the microVM is emulated" if host["microvm_is_emulated"] else ""
    click.echo(f"{facts.cpus} cores, {facts.cpu_model}, load {host['load'][0]:.1f}{emulated}")
