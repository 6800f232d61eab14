"""`belljar ps`, `reap`, `kill`, `release`, `prune`, `watch` and `serve`."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from belljar.cli import console
from belljar.errors import HostError
from belljar.isolation.hold import RELEASE_HINT, read_hold
from belljar.isolation.hold import release as lift
from belljar.isolation.reap import list_cells
from belljar.isolation.reap import reap as reap_cells
from belljar.store.home import belljar_home
from belljar.units import format_duration, format_size, parse_duration, printable

if TYPE_CHECKING:
    from rich.table import Table

    from belljar.isolation.kill import KillReport
    from belljar.isolation.reap import CellListing
    from belljar.live.feed import Feed

_COLUMNS = ("CELL", "STATE", "AGE", "TIER", "SAMPLE", "MEMORY", "POLICY", "RUN", "OWNER", "KIND")
# Of browsers, each as long as it shows the page: so many fit into a usual limit of descriptors.
_MAX_CONNECTIONS: Final = 500


@click.command("ps")
@console.json_option("Print a JSON list.")
def ps(*, as_json: bool) -> int:
    """List the cells that exist or whose owner crashed.

    `orphaned`: the process that made the cell is gone; `belljar reap` removes what is left.
    MEMORY: used, of the policy's limit.
    """
    cells = list_cells()
    warn_if_held()
    if as_json:
        console.print_json([asdict(cell) for cell in cells])
    elif not cells:
        click.echo("no cells")
    else:
        click.echo("\n".join(console.table_lines([_COLUMNS, *(_row(cell) for cell in cells)])))
    return 0


def warn_if_held() -> bool:
    if (held := read_hold(belljar_home())) is not None:
        click.echo(console.message(HostError(str(held), hint=RELEASE_HINT)), err=True)
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
@console.json_option("Print a JSON list.")
def reap(*, as_json: bool) -> int:
    """Remove what crashed owners left behind: processes, control groups, mounts, files.

    An owner is the process that made a cell. Cells of living owners are not touched.

    Exit code 2 when something could not be removed.
    """
    from belljar.harness.attach import remove_dead_sockets
    from belljar.probe.witness import sweep_watches

    reaped = console.run_async(reap_cells, None)
    remove_dead_sockets()
    sweep_watches()
    if as_json:
        console.print_json([asdict(one) for one in reaped])
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
@console.json_option()
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

    hint = "`belljar ps` lists the cells"
    if bool(names) == everything:
        both, neither = "--all and names exclude each other", "name cells or runs, or give --all"
        raise console.MisuseError(both if names else neither, hint=hint)
    if fleet:
        from belljar.fleet.nodes import kill_fleet

        if not everything:
            raise console.MisuseError("--fleet needs --all", hint=hint)
        nodes = kill_fleet(fleet, hold_too=hold_too, reason=reason)
        if as_json:
            console.print_json(nodes)
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
        raise console.MisuseError(what, hint=hint) from None
    if as_json:
        order = report.order
        console.print_json(
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
    rows = [("CELL", "KIND", "HALTED", "DESTROYED")]
    for cell in report.cells:
        after = "NO" if cell.halted_ms is None else f"{cell.halted_ms:.0f} ms"
        destroyed = f"NOT PROVEN: {', '.join(cell.remaining)}" if cell.remaining else "proven"
        rows.append((cell.cell_id, cell.kind, after, destroyed))
    if report.cells:
        click.echo("\n".join(console.table_lines(rows)))
    for problem in report.problems:
        click.echo(f"not proven: {printable(problem, max_chars=300)}")
    if not report.cells and not report.problems:
        click.echo("nothing to kill: there are no cells")
    if held:
        click.echo("on hold: new cells are refused until `belljar release`")


@click.command("release")
@console.json_option()
def release(*, as_json: bool) -> None:
    """Lift the hold of `belljar kill --hold`: new cells are allowed again."""
    held = lift(belljar_home())
    if as_json:
        hold = None if held is None else asdict(held)
        console.print_json({"released": held is not None, "hold": hold})
    else:
        click.echo("there was no hold" if held is None else f"released; it was: {held}")


@click.command("prune")
@click.option(
    "--unused-for",
    callback=console.parsed_by(parse_duration),
    metavar="DURATION",
    default="14d",
    show_default=True,
    help="Remove what was not used for this long; 0s: all that no running cell uses.",
)
@console.json_option("Print a JSON list.")
def prune(unused_for: float, *, as_json: bool) -> int:
    """Remove unused templates, unpacked images, parts of builds and program roots.

    A template is the snapshot of a booted guest from which microVM cells start. Images, runs, keys,
    guest kernels and what a running cell uses stay. What is needed again is made again.

    Exit code 3 when something could not be removed.
    """
    from belljar.isolation.prune import prune as prune_store

    parts = console.run_async(prune_store, belljar_home(), unused_for_s=unused_for)
    if as_json:
        console.print_json([{**asdict(part), "path": str(part.path)} for part in parts])
    else:
        for part in parts:
            done = f"NOT removed: {part.problem}:" if part.problem else "removed"
            click.echo(printable(f"{done} {part.kind} {part.path.name[:12]}"))
        if not parts:
            click.echo("nothing to remove")
    return HostError.exit_code if any(part.problem for part in parts) else 0


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=7462, show_default=True)
@click.option("--unix", "unix_path", type=click.Path(path_type=Path), help="Instead of a port.")
@click.option("--operator", is_flag=True, help="Allow the page to stop runs, hold and release.")
def serve(port: int, unix_path: Path | None, *, operator: bool) -> int:
    """Serve a page that shows runs, samples and cells while they last, on loopback.

    Prints an address with a token; whoever has it may look, and with that of --operator may stop.
    The tokens are kept in the store: remove `keys/live-token` or `keys/live-operator-token` there
    to have a new one. From elsewhere, reach it through ssh, or by a proxy with TLS before --unix.
    """
    try:
        import uvicorn

        from belljar.live.server import OPERATOR, VIEWER, LiveServer, load_token
    except ImportError as error:
        what = f"{error.name} is not installed"
        raise HostError(what, hint="install Belljar with the extra `web`") from error

    home = belljar_home()
    viewer = load_token(home, VIEWER)
    stops = load_token(home, OPERATOR) if operator else None
    with _bound(port, unix_path) as bound:
        name, origins = str(unix_path), frozenset[str]()
        if unix_path is None:
            name = f"http://127.0.0.1:{bound.getsockname()[1]}"
            # A browser's Origin is the name that was typed: both mean this host.
            origins = frozenset((name, name.replace("127.0.0.1", "localhost")))
            name += "/"
        server = LiveServer(home, viewer, stops, origins=origins)
        click.echo(f"{name}#{stops or viewer}")
        config = uvicorn.Config(
            server.app(),
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=_MAX_CONNECTIONS,
        )
        # Streams end within a second; a browser that reads nothing must not keep the server.
        config.timeout_graceful_shutdown = 5
        runner = uvicorn.Server(config)
        # uvicorn ends well at SIGTERM, then raises it anew: the socket's path must be removed first
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.is_ending = lambda: runner.should_exit
        runner.run(sockets=[bound])
    return 0


@contextmanager
def _bound(port: int, unix_path: Path | None) -> Iterator[socket.socket]:
    address = ("127.0.0.1", port) if unix_path is None else str(unix_path)
    family = socket.AF_INET if unix_path is None else socket.AF_UNIX
    before = os.umask(0o177)  # a later chmod of a path would let others connect before it
    try:
        # It listens before its address is printed, which can be opened at once.
        bound = socket.create_server(address, family=family, backlog=128)
    except OSError as error:
        what = f"can't listen: {error.strerror}"
        hint = "is another `belljar serve` running? A killed one's socket can be removed"
        raise HostError(what, where=str(unix_path or port), hint=hint) from error
    finally:
        os.umask(before)
    with bound:
        try:
            yield bound
        finally:
            if unix_path is not None:
                unix_path.unlink(missing_ok=True)


@click.command()
def watch() -> None:
    """Show running cells like `top`: phase, memory, processor, last command, signals.

    Without a terminal, it prints one table and ends.
    """
    from rich.console import Console
    from rich.live import Live

    from belljar.live.feed import Feed

    with Feed(belljar_home()) as feed:
        if not sys.stdout.isatty():
            feed.look()
            Console(width=500).print(_table(feed))  # no column is cut
            return
        console.notice("Ctrl-C ends the watch; runs go on")
        with Live(console=Console(highlight=False), auto_refresh=False) as live:
            while True:
                feed.look()
                live.update(_table(feed), refresh=True)
                time.sleep(1)


def _table(feed: Feed) -> Table:
    from rich.markup import escape
    from rich.table import Table

    state = feed.state()
    cells = [(run, cell) for run in state["runs"] for cell in run["cells"]]
    begun, finished = (sum(run[name] for run in state["runs"]) for name in ("begun", "finished"))
    title = f"{len(state['runs'])} runs, {len(cells)} cells, {finished} of {begun} samples finished"
    if state["held"]:
        title += f"; [bold red]{escape(state['held'])}[/]"
    table = Table(title=title, box=None, pad_edge=False, title_justify="left")
    for name in ("run", "cell", "tier", "sample", "phase", "age", "memory", "cpu"):
        table.add_column(name, no_wrap=True)
    for name in ("commands", "requests", "refused", "signals"):
        table.add_column(name, justify="right")
    table.add_column("last command", no_wrap=True, overflow="ellipsis", ratio=1)
    for run, cell in cells:
        memory = "-" if cell["memory_bytes"] is None else format_size(cell["memory_bytes"])
        words = (run["run"][-6:], cell["cell"], cell["tier"], cell["sample"], cell["phase"])
        table.add_row(
            *map(escape, words),
            format_duration(cell["age_s"]),
            memory,
            "-" if cell["cpu_percent"] is None else f"{cell['cpu_percent']} %",
            *(str(cell[name]) for name in ("commands", "requests", "refused", "signals")),
            escape(cell["command"]),
            style="yellow" if cell["signals"] else None,
        )
    return table
