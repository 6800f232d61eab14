"""`belljar shell`: a terminal in a fresh cell."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import click

from belljar.cli.complete import policies
from belljar.cli.exec import TIERS, report_skipped_tiers, typed_policy
from belljar.cli.failures import Misuse
from belljar.units import printable

if TYPE_CHECKING:
    from anyio import CancelScope

    from belljar.cell import Cell, RunningCommand

LOGIN_SHELL = ["/bin/sh", "-c", 'exec "${SHELL:-/bin/sh}" -l']


@click.command("shell")
@click.argument("policy", required=False, metavar="[POLICY|PRESET]", shell_complete=policies)
@click.option(
    "--tier",
    type=click.Choice(TIERS),
    help="Exactly this tier, at or above what the policy demands.",
)
@click.option("--user", help="Log in as this user of the image (name, uid or uid:gid).")
def shell(policy: str | None, tier: str | None, user: str | None) -> int:
    """Open a terminal in a fresh cell, which is destroyed when you leave it.

    POLICY is a policy file or a preset; default: high. The session is recorded. What the guest
    writes goes to your terminal as it is: use a terminal you would trust with hostile output.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse(
            "a shell needs a terminal on standard input and output",
            hint="for pipes use `belljar exec -- sh`",
        )
    from belljar.cli._async import run_async

    return run_async(_shell, policy, tier, user)


async def _shell(policy: str | None, tier: str | None, user: str | None) -> int:
    from belljar.cell import PtySize, open_cell, start_run

    with start_run("shell", policy or "high", LOGIN_SHELL) as run:
        async with open_cell(typed_policy(policy, tier), run=run) as cell:
            report_skipped_tiers(cell.plan)
            click.echo(
                f"cell {cell.id} ({cell.tier}{', emulated' if cell.emulated else ''}); leave "
                f"with exit or Ctrl-D",
                err=True,
            )
            rows, cols = _size()
            env = {"TERM": os.environ.get("TERM", "xterm")}
            pty = PtySize(rows=rows, cols=cols)
            async with (
                _attachable(cell),
                cell.open_exec(LOGIN_SHELL, user=user, env=env, pty=pty) as running,
            ):
                code = await converse(running)
        run.finish("completed", exit_code=code)
        click.echo(f"cell destroyed; recorded in {run.path}", err=True)
        return code


@asynccontextmanager
async def _attachable(cell: Cell) -> AsyncIterator[None]:
    """Let `belljar attach` and `forward` reach the cell while the block lasts."""
    import anyio

    from belljar.harness.attach import AttachSocket

    attached = AttachSocket.for_cell(cell, home=None)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attached.serve, cell, name="attach socket")
            yield
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await attached.close()


def _size() -> tuple[int, int]:
    """A serial line, or a terminal that another program made, may not know its size."""
    size = os.get_terminal_size(0)
    return size.lines or 24, size.columns or 80


async def converse(running: RunningCommand) -> int:
    """Join this terminal to a running command until it ends; returns its exit code.

    The terminal's own settings are restored.
    """
    import anyio

    with _raw_terminal():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_type, running, name="keyboard")
            tasks.start_soon(_follow_size, running, name="terminal size")
            async for _stream, chunk in running:
                content = chunk
                while content:
                    content = content[os.write(1, content) :]
            output = await running.wait()
            _stop(tasks.cancel_scope)
    if output.not_started_errno is not None:
        click.echo(
            f"belljar: the shell did not start: {printable(output.why_not_started)}", err=True
        )
    return output.returncode


def _stop(scope: CancelScope) -> None:
    scope.cancel()


@contextmanager
def _raw_terminal() -> Iterator[None]:
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


async def _type(running: RunningCommand) -> None:
    from belljar.cli.exec import read_descriptor

    async for keys in read_descriptor(0, waits=True):
        await running.send_stdin(keys)
    await running.close_stdin()


async def _follow_size(running: RunningCommand) -> None:
    import anyio

    with anyio.open_signal_receiver(signal.SIGWINCH) as changes:
        async for _ in changes:
            await running.resize(*_size())
