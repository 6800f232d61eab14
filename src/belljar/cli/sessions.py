"""`belljar shell` and `attach`."""

from __future__ import annotations

import json
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
import click
from anyio.abc import UNIXSocketStream

from belljar.cli import console
from belljar.cli.exec import report_skipped_tiers, standard_input, typed_policy
from belljar.errors import HostError
from belljar.harness import attach as wire
from belljar.units import printable
from belljar.waiting import FIRST_CELL, reported_if_slow

if TYPE_CHECKING:
    from belljar.cell.cell import Cell

# As at a login: the shell that the image's own profile names, which reads that profile.
LOGIN_SHELL: Final = ["/bin/sh", "-c", 'exec "${SHELL:-/bin/sh}" -l']


@click.command("shell")
@console.policy_argument()
@console.tier_option()
@click.option("--user", help="Log in as this user of the image (name, uid or uid:gid).")
def shell(policy: str | None, tier: str | None, user: str | None) -> int:
    """Open a terminal in a fresh cell, which is destroyed when you leave it.

    POLICY is a policy file or a preset; default: high. The session is recorded. Output of the guest
    goes to your terminal unescaped: use a terminal you would trust with hostile output.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        what = "a shell needs a terminal on standard input and output"
        raise console.MisuseError(what, hint="for pipes use `belljar exec -- sh`")
    return console.run_async(_shell, policy, tier, user)


async def _shell(policy: str | None, tier: str | None, user: str | None) -> int:
    from belljar.cell.open import open_cell
    from belljar.cell.parts import start_run

    with start_run("shell", policy or "high", LOGIN_SHELL) as run:
        async with AsyncExitStack() as stack:
            with reported_if_slow(FIRST_CELL):
                opening = open_cell(typed_policy(policy, tier), run=run)
                cell = await stack.enter_async_context(opening)
            report_skipped_tiers(cell.plan)
            about = f"{cell.tier}, emulated" if cell.emulated else cell.tier
            click.echo(f"cell {cell.id} ({about}); leave with exit or Ctrl-D", err=True)
            async with _attachable(cell):
                code = await _terminal(cell.id, LOGIN_SHELL, user)
            if cell.failure is not None:  # or the record would say that the session completed
                raise cell.failure
        run.finish("completed", exit_code=code)
        click.echo(f"cell destroyed; recorded in {run.path}", err=True)
        return code


@asynccontextmanager
async def _attachable(cell: Cell) -> AsyncIterator[None]:
    attached = wire.AttachSocket(cell, home=None)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attached.serve, cell, name="attach socket")
            yield
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await attached.close()


def _terminal_size() -> tuple[int, int]:
    with suppress(OSError):
        size = os.get_terminal_size(0)
        # A serial console may report 0 × 0.
        return size.lines or 24, size.columns or 80
    return 24, 80


@contextmanager
def _raw_terminal() -> Iterator[None]:
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


# --- attach


@click.command("attach")
@click.argument("cell_id", metavar="CELL")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD…]")
@click.option("--user", help="Log in as this user of the image (name, uid or uid:gid).")
def attach(cell_id: str, command: tuple[str, ...], user: str | None) -> int:
    """Open a terminal in a cell of a running evaluation or of `belljar shell`.

    CELL is a cell's id, as `belljar ps` shows it. The session is recorded in that run's ledger; the
    cell still ends with its sample or shell. Output of the guest goes to your terminal unescaped:
    use a terminal you would trust with hostile output.
    """
    return console.run_async(_terminal, cell_id, command, user)


async def _terminal(cell_id: str, command: Sequence[str], user: str | None) -> int:
    try:
        if "/" in cell_id or cell_id in {"", ".", ".."}:  # it becomes a part of a path
            raise FileNotFoundError(cell_id)
        connected = await anyio.to_thread.run_sync(
            wire.connect_to, wire.attach_directory(None) / cell_id
        )
    except OSError as error:
        raise HostError(
            f"no cell {printable(cell_id)} of yours is running here",
            where="attach",
            hint="`belljar ps` lists the cells; same user, same BELLJAR_HOME",
        ) from error
    opening = {"argv": command, "user": user, "term": os.environ.get("TERM", "xterm")}
    content = json.dumps({**opening, "size": _terminal_size()}).encode()
    # Its kind of stream can still be read after a failed write
    async with await UNIXSocketStream.from_socket(connected) as owner:
        with _raw_terminal():
            status = await relay(owner, wire.frame(wire.FrameKind.OPEN, content))
    code, _, why = status.partition(" ")
    if why:
        console.notice(why)
    return int(code) if code.isdigit() else 1


async def relay(owner: UNIXSocketStream, opening: bytes) -> str:
    """Relay until the cell's owner reports how the command ended; return that report.

    `opening`: sent first.
    """
    gone = (anyio.BrokenResourceError, anyio.ClosedResourceError)
    sending = anyio.Lock()

    async def tell(content: bytes) -> None:
        # Keys and sizes are sent by two tasks: their frames must not mix.
        async with sending:
            with suppress(*gone):  # what it said before it closed is still to be read
                await owner.send(content)

    async def tell_size() -> None:
        if sys.stdin.isatty():
            size = json.dumps(_terminal_size()).encode()
            await tell(wire.frame(wire.FrameKind.RESIZE, size))

    async def send_keys() -> None:
        if (keys := standard_input()) is not None:
            async for some in keys:
                await tell(wire.frame(wire.FrameKind.INPUT, some))
        await tell(wire.frame(wire.FrameKind.INPUT_END))

    async def follow_size() -> None:
        # Opened before the first look, so that no change in between is missed.
        with anyio.open_signal_receiver(signal.SIGWINCH) as changes:
            # It may have changed since the opening.
            await tell_size()
            async for _ in changes:
                await tell_size()

    await tell(opening)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send_keys, name="keyboard")
        tasks.start_soon(follow_size, name="terminal size")
        with suppress(*gone):
            async for kind, payload in wire.frames(owner):
                if kind is wire.FrameKind.EXIT:
                    tasks.cancel_scope.cancel()
                    return payload.decode("utf-8", "replace")
                sys.stdout.buffer.write(payload)
                sys.stdout.flush()
        tasks.cancel_scope.cancel()
    return "1 the cell's owner closed the connection"
