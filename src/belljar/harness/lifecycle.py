"""The acts around a sample's cell that are not the cell's own: its run directory, template, holding
and cleaning up.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import anyio

from belljar.descriptors import raise_soft_limit
from belljar.errors import BelljarError, CellError
from belljar.harness.release import release_cells, remove_dead_sockets
from belljar.harness.session import Session
from belljar.probe.witness import sweep_watches
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.harness.provider import BelljarSandboxEnvironment
    from belljar.ledger import RunDirectory
    from belljar.report.samples import RunFindings

_LOOK_EVERY_S: Final = 2.0


def enter(session: Session) -> None:
    """Count a user of the session in; the first opens a run directory unless `belljar run` gave
    one.
    """
    raise_soft_limit()
    opened_before = session.run is not None
    run = session.ensure_run()
    if not session.users:
        remove_dead_sockets(session.home)
        sweep_watches()
    session.users += 1
    if not opened_before:
        say(f"belljar: recording into {run.path}")


def tell(session: Session, notes: Iterable[str]) -> None:
    """Say each sentence once in a session."""
    for note in dict.fromkeys(notes):
        if note not in session.said:
            session.said.add(note)
            say(f"belljar: {note}")


async def leave(session: Session) -> None:
    """Count a user out; the last judges and closes the run directory that `enter` opened."""
    session.users = max(0, session.users - 1)
    if session.users or session.own is None:
        return
    from belljar.report.samples import headline

    run = session.ensure_run()
    run.finish("failed", exit_code=2)  # until it is judged
    try:
        session.record_end(interrupted=bool(session.told_to_end))
        findings = await anyio.to_thread.run_sync(_judge_own, run)
    finally:
        session.close_own_run()
    if not findings.refusal_code:
        say(f"belljar: {printable(headline(findings))}")
        say(f"belljar: reasons and evidence: belljar verdict {run.run_id}")


def _judge_own(run: RunDirectory) -> RunFindings:
    """In a thread: Inspect reads its logs with an event loop of its own."""
    from belljar.harness.judge import own_evidence, put_on_record
    from belljar.report.verdict import judge

    findings = judge(own_evidence(run))
    put_on_record(run, findings)
    return findings


def refused(error: BelljarError) -> Exception:
    """An error of ours as Inspect shows errors of set-up: without a traceback."""
    from inspect_ai._util.error import PrerequisiteError
    from rich.markup import escape

    return PrerequisiteError(escape("\n".join(printable(line) for line in str(error).splitlines())))


async def hold(session: Session) -> None:
    """`--no-sandbox-cleanup`: keep the cells while someone may want to look into them.

    A cell dies with the process that owns it, by design. So this process stays, serves the cells'
    attach sockets, and ends the wait at Ctrl-C, SIGTERM, `inspect sandbox cleanup belljar [ID]`, or
    when the last cell's lifetime is over; then the cells are destroyed as always.
    """
    from belljar.harness.provider import login_command

    say(
        f"belljar: {len(session.live)} cell(s) kept. They die with this process; Ctrl-C destroys "
        f"them."
    )
    for environment in session.live.values():
        say(
            f"  {environment.cell.id}  sample {printable(environment.who.sample)}  "
            f"{login_command(environment.cell.id, None)}"
        )
    async with anyio.create_task_group() as tasks:
        for environment in list(session.live.values()):
            tasks.start_soon(environment.attach_socket.serve, environment.cell)
        tasks.start_soon(_until_signal, tasks.cancel_scope)
        while session.live:
            for environment in list(session.live.values()):
                if environment.attach_socket.released or not await _answers(environment):
                    await environment.close(outcome="completed")
            await anyio.sleep(_LOOK_EVERY_S)
        tasks.cancel_scope.cancel()


async def close_all(session: Session, *, outcome: str) -> None:
    """Close every cell that stands, whatever comes of one of them; then raise what came first."""
    errors: list[BelljarError] = []
    for environment in list(session.live.values()):
        try:
            await environment.close(outcome=outcome)
        except BelljarError as error:
            errors.append(error)
    if errors:
        raise errors[0]


async def _answers(environment: BelljarSandboxEnvironment) -> bool:
    try:
        await environment.cell.ping()
    except CellError:
        return False
    return True


async def _until_signal(scope: anyio.CancelScope) -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return


async def clean(cell_id: str | None) -> None:
    """Release held cells (all, or one) and reap what crashed owners left behind.

    Prints what it did.
    """
    released = await anyio.to_thread.run_sync(release_cells, cell_id)
    for name in released:
        say(f"belljar: {name} released; its owner destroys it")
    from belljar.isolation.reap import reap

    for reaped in await reap(None, cell_id=cell_id):
        say(f"belljar: {printable(str(reaped))}")


def say(text: str) -> None:
    """A line for the person at the terminal; standard output stays the results'."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
