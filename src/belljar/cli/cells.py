"""`belljar ps`, `reap`, `kill`, `release` and `prune`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from belljar.cli.console import (
    Failure,
    MisuseError,
    json_option,
    parsed_by,
    print_json,
    run_async,
    table_lines,
)
from belljar.errors import HostError
from belljar.units import format_duration, format_size, parse_duration, printable

if TYPE_CHECKING:
    from belljar.isolation.kill import KillReport
    from belljar.isolation.reap import CellListing

_ENDED_BY: Final = {
    "owner": "by its owner",
    "kill": "by this command: its owner did not react",
    "reap": "by this command: its owner is dead",
}
_PRUNED: Final = {
    "unneeded": "would remove",
    "removed": "removed",
    "in use": "kept",
    "failed": "NOT removed",
}
_COLUMNS = ("CELL", "STATE", "AGE", "TIER", "SAMPLE", "MEMORY", "POLICY", "RUN", "OWNER", "KIND")


@click.command("ps")
@json_option("Print a JSON list.")
def ps(*, as_json: bool) -> int:
    """List the cells that exist or whose owner crashed.

    `orphaned`: the process that made the cell is gone; `belljar reap` removes what is left.
    MEMORY: used, of the policy's limit.
    """
    from belljar.isolation.reap import list_cells

    cells = list_cells()
    warn_if_held()
    if as_json:
        print_json([asdict(cell) for cell in cells])
    elif not cells:
        click.echo("no cells")
    else:
        click.echo("\n".join(table_lines([_COLUMNS, *(_row(cell) for cell in cells)])))
    return 0


def warn_if_held() -> bool:
    """Print a hold on standard error; returns whether there is one."""
    from belljar.isolation.hold import RELEASE_HINT, read_hold
    from belljar.store.home import belljar_home

    if (held := read_hold(belljar_home())) is not None:
        click.echo(str(Failure("", str(held), hint=RELEASE_HINT)), err=True)
    return held is not None


def _row(cell: CellListing) -> tuple[str, ...]:
    about = cell.about
    used = format_size(cell.memory_bytes) if cell.memory_bytes is not None else "-"
    limit = f" of {format_size(about.memory_limit_bytes)}" if about.memory_limit_bytes else ""
    of_range = f"{about.name} of {about.range_id}" if about.name and about.name != "default" else ""
    sample = f"{about.sample} epoch {about.epoch}" if about.epoch > 1 else about.sample
    words = (
        cell.cell_id,
        cell.state,
        format_duration(cell.started_s_ago),
        about.tier,
        " ".join(word for word in (sample, of_range) if word),
        used + limit,
        about.policy,
        about.run_id,
        str(cell.owner_pid or "-"),
        cell.kind,
    )
    return tuple(word[:40] or "-" for word in words)


@click.command("reap")
@json_option("Print a JSON list.")
def reap(*, as_json: bool) -> int:
    """Remove what crashed owners left behind: processes, control groups, mounts, files.

    An owner is the process that made a cell. Cells of living owners are not touched.

    Exit code 2 when something could not be removed.
    """
    from belljar.harness.attach import remove_dead_sockets
    from belljar.isolation.reap import reap as reap_cells
    from belljar.probe.witness import sweep_watches

    reaped = run_async(reap_cells, None)
    remove_dead_sockets()
    sweep_watches()
    if as_json:
        print_json([asdict(one) for one in reaped])
    elif not reaped:
        click.echo("nothing to reap")
    else:
        click.echo("\n".join(printable(str(one)) for one in reaped))
    return 2 if any(one.remaining for one in reaped) else 0


@click.command("kill")
@click.argument("names", nargs=-1, metavar="[CELL|RUN]...")
@click.option("--all", "everything", is_flag=True, help="Every cell of this user's store.")
@click.option("--fleet", default="", metavar="ray[://HOST:PORT]|slurm", help="With --all.")
@click.option("--hold", "hold_too", is_flag=True, help="Refuse new cells until `release`.")
@click.option("--reason", default="", help="Text for the record and the cells' owners.")
@json_option()
def kill(
    names: tuple[str, ...],
    *,
    everything: bool,
    fleet: str,
    hold_too: bool,
    reason: str,
    as_json: bool,
) -> int:
    """Halt cells at once and prove that nothing of them is left.

    Works from any login of the same user, without the process that owns the cells. A cell of a
    range is killed with the whole range, a run with all its cells.

    Exit code 2 when a cell could not be halted or its destruction not be proven.
    """
    from belljar.isolation.kill import kill_now
    from belljar.store.home import belljar_home

    hint = "`belljar ps` lists the cells"
    if bool(names) == everything:
        both, neither = "--all and names exclude each other", "name cells or runs, or give --all"
        raise MisuseError(both if names else neither, hint=hint)
    if fleet:
        from belljar.fleet.nodes import kill_fleet

        if not everything:
            raise MisuseError("--fleet needs --all", hint=hint)
        nodes = kill_fleet(fleet, hold_too=hold_too, reason=reason)
        if as_json:
            print_json(nodes)
        for each in () if as_json else nodes:
            state = "killed" if each["ok"] else "NOT PROVEN" if each["name"] else "NO ANSWER"
            named = " ".join(dict.fromkeys((each["node"][:12], each["name"]))).strip()
            click.echo(f"{printable(named, max_chars=80)}: {state}: {each['said']}")
        # No node at all is no proof.
        return 0 if nodes and all(each["ok"] for each in nodes) else 2
    try:
        report = kill_now(
            belljar_home(), names, everything=everything, hold_too=hold_too, reason=reason
        )
    except LookupError as unknown:
        name = printable(str(unknown.args[0]), max_chars=100)
        what = f"there is no cell or run {name} here; nothing was killed"
        raise MisuseError(what, param="CELL", hint=hint) from None
    if as_json:
        order = report.order
        print_json(
            {
                "kill_id": order.kill_id,
                "ok": report.ok,
                "scope": order.scope,
                "reason": order.reason,
                "duration_ms": round(report.duration_ms, 1),
                "cells": [{**asdict(cell), "ok": cell.ok} for cell in report.cells],
                "problems": list(report.problems),
            }
        )
    else:
        _print_killed(report, held=hold_too)
    return 0 if report.ok else 2


def _print_killed(report: KillReport, *, held: bool) -> None:
    if report.cells:
        click.echo(f"{'CELL':16} {'KIND':9} {'HALTED':>9}  DESTROYED")
    for cell in report.cells:
        after = "NO" if cell.halted_ms is None else f"{cell.halted_ms:.0f} ms"
        destroyed = _ENDED_BY.get(cell.ended_by, "NOT PROVEN")
        if cell.remaining:
            destroyed = f"NOT PROVEN: {', '.join(cell.remaining)}"
        click.echo(f"{cell.cell_id:16} {cell.kind:9} {after:>9}  {destroyed}")
    for problem in report.problems:
        click.echo(f"not proven: {printable(problem, max_chars=300)}")
    if not report.cells and not report.problems:
        click.echo("nothing to kill: there are no cells")
    if held:
        click.echo("on hold: new cells are refused until `belljar release`")


@click.command("release")
@json_option()
def release(*, as_json: bool) -> None:
    """Lift the hold of `belljar kill --hold`: new cells are allowed again."""
    from belljar.isolation.hold import release as lift
    from belljar.store.home import belljar_home

    held = lift(belljar_home())
    if as_json:
        hold = None if held is None else asdict(held)
        print_json({"released": held is not None, "hold": hold})
    else:
        click.echo("there was no hold" if held is None else f"released; it was: {held}")


@click.command("prune")
@click.option(
    "--unused-for",
    callback=parsed_by(parse_duration),
    metavar="DURATION",
    default="14d",
    show_default=True,
    help="Remove what was not used for this long; 0s: all that no running cell uses.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@json_option()
def prune(unused_for: float, *, dry_run: bool, as_json: bool) -> int:
    """Remove unused templates, unpacked images, parts of builds and program roots.

    A template is the snapshot of a booted guest from which microVM cells start. Images, runs, keys,
    guest kernels and what a running cell uses stay. What is needed again is made again.

    Exit code 3 when something could not be removed.
    """
    from belljar.isolation.prune import prune as prune_store
    from belljar.store.home import belljar_home

    parts = run_async(prune_store, belljar_home(), unused_for_s=unused_for, dry_run=dry_run)
    gone = [part for part in parts if part.state in {"removed", "unneeded"}]
    freed_bytes = sum(part.size_bytes for part in gone)
    if as_json:
        names = ("kind", "path", "why", "size_bytes", "state")
        shown = [{name: getattr(part, name) for name in names} for part in parts]
        shown = [{**part, "path": str(part["path"])} for part in shown]
        print_json({"dry_run": dry_run, "freed_bytes": freed_bytes, "parts": shown})
    else:
        for part in parts:
            name, size = part.path.name[:12], format_size(part.size_bytes)
            what = f"{_PRUNED[part.state]} {part.kind} {name} ({size})"
            click.echo(printable(f"{what}: {part.why}"))
        freed = f"{'would free' if dry_run else 'freed'} {format_size(freed_bytes)}"
        if gone or not parts:
            click.echo(f"{freed} ({len(gone)} parts)" if gone else "nothing to remove")
    return HostError.exit_code if any(part.state == "failed" for part in parts) else 0
