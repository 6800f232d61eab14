"""`belljar bench`: times of cells on this host, beside Docker's."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from belljar.cli.console import TIERS, json_option, notice, print_json, run_async, table_lines
from belljar.errors import CellError, HostError, PolicyError
from belljar.package import __version__
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.bench.figures import Figures


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
@click.option("--quick", is_flag=True, help="Under two minutes: 5 rounds, 1 and 10 at once.")
@json_option("Print one JSON object: host, series with raw samples, absent, memory_mib.")
def bench(
    *,
    tiers: tuple[str, ...],
    in_flight: tuple[int, ...],
    rounds: int,
    quick: bool,
    as_json: bool,
) -> int:
    """Measure cells on this host, and Docker in the same run where it is installed.

    Create, first output, exec, files, revert, a pool and destruction in each tier; whole lives at
    once. Docker runs the same command with the same root file system. The ratio is a row's median
    over Docker's.

    \b
    Exit codes:
      0  all was measured
      3  a tier can't be used here: its rows are missing, the reason is printed
      5  a cell failed: its row says how many
    """
    from belljar.bench.cells import Workload, time_tier
    from belljar.bench.figures import BenchRow, Figures, Measure

    rounds = min(rounds, 5) if quick else rounds
    counts = in_flight or ((1, 10) if quick else (1, 10, 50, 100))
    # Random, so that nothing on the way compresses it.
    blob, figures = os.urandom((10 if quick else 50) << 20), Figures()
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as scratch:
        try:
            try:
                _time_docker(figures, rounds, counts, blob, Path(scratch))
            except HostError as error:
                figures.absent["docker"] = str(error)
            for tier in tiers or TIERS:
                work = Workload(tier=tier, rounds=rounds, in_flight=counts, blob=blob)
                try:
                    run_async(time_tier, work, figures, notice)
                except (HostError, PolicyError) as error:
                    figures.absent[tier] = str(error)
                except CellError as error:
                    figures.fail(BenchRow(tier, Measure.LIFE), str(error))
        # What was measured is printed, after Ctrl-C as well.
        finally:
            _print(figures, as_json=as_json)
    if any(tier in figures.absent for tier in tiers or TIERS):
        return HostError.exit_code
    return CellError.exit_code if any(row.subject in TIERS for row in figures.failures) else 0


def _time_docker(
    figures: Figures, rounds: int, counts: tuple[int, ...], blob: bytes, scratch: Path
) -> None:
    from belljar.bench.docker import docker_image, time_container, time_life
    from belljar.image.store import Store
    from belljar.store.home import belljar_home

    with docker_image(Store(belljar_home()).find("default").rootfs, scratch):
        for count in counts:
            notice(f"docker: {count} at once")
            with ThreadPoolExecutor(count) as threads:
                # Many at once give as many times in one round.
                for _ in range(rounds if count == 1 else 1):
                    list(threads.map(time_life, [figures] * count, [count] * count))
        (scratch / "blob").write_bytes(blob)
        time_container(figures, rounds, scratch / "blob")


def _print(figures: Figures, *, as_json: bool) -> None:
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
        print_json({"host": host, **known, "series": figures.series()})
        return
    lines = [("", "what", "at once", "P50 ms", "P95 ms", "P99 ms", "÷ docker")]
    for each in figures.series():
        numbers = (each[name] for name in ("p50_ms", "p95_ms", "p99_ms", "ratio"))
        shown = ("-" if number is None else f"{number:.2f}" for number in numbers)
        p50, p95, p99, ratio = shown
        lines.append(
            (each["subject"], each["measure"], str(each["in_flight"]), p50, p95, p99, ratio)
        )
    click.echo("\n".join(table_lines(lines)) + "\n")
    for tier, mib in figures.memory_mib.items():
        click.echo(f"memory of one used cell, {tier}: {mib} MiB")
    for row, failures in figures.failures.items():
        click.echo(f"failed, {row.subject}, {row.measure}: {printable(failures[0], max_chars=300)}")
    for name, why in figures.absent.items():
        click.echo(f"absent, {name}: {printable(why, max_chars=300)}")
    emulated = "; the microVM is emulated" if host["microvm_is_emulated"] else ""
    click.echo(f"{facts.cpus} cores, {facts.cpu_model}, load {host['load'][0]:.1f}{emulated}")
