"""`belljar kill` and `belljar release`: halt cells of any process of this user."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from belljar.cli.failures import Misuse
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.isolation.kill import Killed, KillReport


@click.command("kill")
@click.argument("names", nargs=-1, metavar="[CELL|RUN]...")
@click.option("--all", "everything", is_flag=True, help="Every cell of this user's store.")
@click.option(
    "--hold", "hold_too", is_flag=True, help="And make no new cell until `belljar release`."
)
@click.option("--reason", default="", help="What owners and the record are told.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def kill(
    names: tuple[str, ...], *, everything: bool, hold_too: bool, reason: str, as_json: bool
) -> int:
    """Halt cells at once and prove that nothing of them is left.

    It works from any login of the same user and needs no help of the process that owns the cells.
    A cell of a range is killed with the whole range; a run with all its cells.

    Exit code 2 when something could not be halted, or its end not be proven.
    """
    from belljar.isolation.kill import kill_now
    from belljar.store.home import belljar_home

    if bool(names) == everything:
        raise Misuse(
            "name cells or runs, or give --all"
            if not names
            else "--all and names exclude each other",
            hint="`belljar ps` lists the cells",
        )
    try:
        report = kill_now(
            belljar_home(), names, everything=everything, hold_too=hold_too, reason=reason
        )
    except LookupError as unknown:
        name = printable(str(unknown.args[0]), max_chars=100)
        what = f"there is no cell or run {name} here; nothing was killed"
        raise Misuse(what, param="CELL", hint="`belljar ps` lists the cells") from None
    if as_json:
        click.echo(json.dumps(_as_object(report), indent=2))
    else:
        _print(report, held=hold_too)
    return 0 if report.ok else 2


def _as_object(report: KillReport) -> dict[str, object]:
    cells = [{**asdict(cell), "ok": cell.ok} for cell in report.cells]
    return {
        "kill_id": report.order.kill_id,
        "ok": report.ok,
        "scope": report.order.scope,
        "reason": report.order.reason,
        "duration_ms": round(report.duration_ms, 1),
        "cells": cells,
        "problems": list(report.problems),
    }


def _print(report: KillReport, *, held: bool) -> None:
    if report.cells:
        click.echo(f"{'CELL':16} {'KIND':9} {'HALTED':>9}  DESTROYED")
    for cell in report.cells:
        after = "NO" if cell.halted_ms is None else f"{cell.halted_ms:.0f} ms"
        click.echo(f"{cell.cell_id:16} {cell.kind:9} {after:>9}  {_destroyed(cell)}")
    for problem in report.problems:
        click.echo(f"not proven: {printable(problem, max_chars=300)}")
    if not report.cells and not report.problems:
        click.echo("nothing to kill: there are no cells")
    if held:
        click.echo("held: no new cell is made until `belljar release`")


def _destroyed(cell: Killed) -> str:
    if cell.remaining:
        return f"NOT PROVEN: {', '.join(cell.remaining)}"
    by = {
        "owner": "by its owner",
        "kill": "by this command: its owner did not react",
        "reap": "by this command: its owner is dead",
    }
    return by.get(cell.ended_by, "NOT PROVEN")


@click.command("release")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def release(*, as_json: bool) -> None:
    """Lift the hold of `belljar kill --hold`: cells may be made again."""
    from belljar.isolation.hold import release as lift
    from belljar.store.home import belljar_home

    held = lift(belljar_home())
    if as_json:
        click.echo(
            json.dumps(
                {"released": held is not None, "hold": None if held is None else asdict(held)},
                indent=2,
            )
        )
    else:
        click.echo("nothing was held" if held is None else f"released; until now: {held}")
