"""`belljar serve` and `belljar watch`: runs while they last."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from belljar.cli.console import notice
from belljar.errors import HostError
from belljar.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.table import Table

    from belljar.live.feed import Feed

# Streams end within a second; a browser that reads nothing must not keep the server.
_END_WITHIN_S: Final = 5
# Each browser holds one, for as long as it shows the page: this many fit into a usual descriptor
# limit.
_MAX_CONNECTIONS: Final = 500
_FIRST_LOOK_S: Final = 0.5  # between two looks at used processor time, for a share
_INTERVAL_S: Final = 1.0


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
    from belljar.store.home import belljar_home

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
        config.timeout_graceful_shutdown = _END_WITHIN_S
        runner = uvicorn.Server(config)
        # uvicorn ends well at SIGTERM, then raises it anew: the socket's path must be removed first
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.is_ending = lambda: runner.should_exit
        runner.run(sockets=[bound])
    return 0


@contextmanager
def _bound(port: int, unix_path: Path | None) -> Iterator[socket.socket]:
    """Bind the address, for this user alone if it is a path, which is gone afterwards."""
    bound = socket.socket(socket.AF_INET if unix_path is None else socket.AF_UNIX)
    with bound:
        try:
            if unix_path is None:
                # Else a restarted server would wait for old connections (socket(7),
                # SO_REUSEADDR).
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                bound.bind(("127.0.0.1", port))
            else:
                _remove_dead(unix_path)
                # By `bind` the socket's file is there: a later chmod would let others connect
                # before it.
                before = os.umask(0o177)
                try:
                    bound.bind(str(unix_path))
                finally:
                    os.umask(before)
            bound.listen(128)  # before the address is printed: it can be opened at once
        except OSError as error:
            what, hint = f"can't listen: {error.strerror}", "is another `belljar serve` running?"
            raise HostError(what, where=str(unix_path or port), hint=hint) from error
        try:
            yield bound
        finally:
            if unix_path is not None:
                unix_path.unlink(missing_ok=True)


def _remove_dead(path: Path) -> None:
    """Remove the socket of a killed server, to which nobody can connect."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except OSError:
            # It is in use, or no socket: `bind` then fails and says so.
            return


@click.command()
@click.option("--once", is_flag=True, help="Print one table and end.")
def watch(*, once: bool) -> None:
    """Show running cells like `top`: phase, memory, processor, last command, signals."""
    from rich.console import Console
    from rich.live import Live

    from belljar.live.feed import Feed
    from belljar.store.home import belljar_home

    with Feed(belljar_home()) as feed:
        if once or not sys.stdout.isatty():
            # A share of processor time takes two looks: this is the first.
            feed.look()
            feed.state()
            time.sleep(_FIRST_LOOK_S)
            feed.look()
            # Without a terminal no column is cut.
            Console(width=None if sys.stdout.isatty() else 500).print(_table(feed))
            return
        notice("Ctrl-C ends the watch; runs go on")
        with Live(console=Console(highlight=False), auto_refresh=False) as live:
            while True:
                feed.look()
                live.update(_table(feed), refresh=True)
                time.sleep(_INTERVAL_S)


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
