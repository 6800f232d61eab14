"""Opens and closes a session's run; keeps or cleans cells."""

from __future__ import annotations

import signal
import threading
from typing import Final

import anyio
from inspect_ai.hooks import Hooks, RunEnd, hooks
from typing_extensions import override

from belljar.descriptors import raise_soft_limit
from belljar.errors import BelljarError, CellError
from belljar.harness.attach import login_command, release_cells, remove_dead_sockets
from belljar.harness.operator import restore_start
from belljar.harness.session import Session, current_session
from belljar.probe.witness import sweep_watches
from belljar.units import printable
from belljar.waiting import print_status

# A person waits for kept cells to end; nothing else depends on it.
_CHECK_INTERVAL_S: Final = 2.0


def enter(session: Session) -> None:
    """Count a user in; the first opens a run."""
    # Each cell holds several descriptors of this process.
    raise_soft_limit()
    opened_before = session.run is not None
    if not opened_before:
        # Inspect's command has read a `.env` file by now.
        restore_start()
    run = session.ensure_run()
    if not session.users:
        remove_dead_sockets(session.home)
        sweep_watches()
    session.users += 1
    if not opened_before:
        print_status(f"belljar: recording into {run.path}")


@hooks(name="belljar_model_cells", description="Closes the model cells of an evaluation.")
class CloseModels(Hooks):
    """For evaluations whose tasks have no sandbox of ours."""

    @override
    def enabled(self) -> bool:
        """Only while a model cell runs."""
        return bool(current_session().models.opened)

    @override
    async def on_run_end(self, data: RunEnd) -> None:
        """Close what is still open, and the run that only a model cell opened."""
        session = current_session()
        if not session.users:
            await leave(session)


async def leave(session: Session) -> None:
    """Count a user out; the last closes the run."""
    # `CloseModels` leaves without having entered.
    session.users = max(0, session.users - 1)
    if not session.users:
        session.breaches += await session.models.close()
    if session.users or session.own is None:
        return
    from belljar.harness.evidence import own_evidence, put_on_record
    from belljar.report.samples import headline
    from belljar.report.verdict import judge

    run = session.ensure_run()
    run.finish("failed", exit_code=2)  # until it is judged
    try:
        session.record_end(interrupted=bool(session.termination_signals))
        # In a thread: Inspect reads logs with its own event loop.
        findings = judge(await anyio.to_thread.run_sync(own_evidence, run))
        put_on_record(run, findings)
    finally:
        session.close_own_run()
    if not findings.refusal_code:
        print_status(f"belljar: {printable(headline(findings))}")
        print_status(f"belljar: reasons and evidence: belljar verdict {run.run_id}")


def as_prerequisite_error(error: BelljarError) -> Exception:
    """An error of ours, shown without a traceback."""
    from inspect_ai._util.error import PrerequisiteError
    from rich.markup import escape

    # Inspect prints the text as rich's markup, where brackets are styles.
    return PrerequisiteError(escape("\n".join(printable(line) for line in str(error).splitlines())))


async def keep_cells(session: Session) -> None:
    """Keep the cells for a person (`--no-sandbox-cleanup`), and serve their attach sockets.

    Returns at Ctrl-C, SIGTERM, `inspect sandbox cleanup belljar [ID]`, or when the last cell's
    lifetime is over: a cell never outlives its process.
    """
    count = len(session.live)
    print_status(f"belljar: {count} cell(s) kept until this process ends; Ctrl-C destroys them.")
    for each in session.live:
        sample = printable(each.identity.sample)
        print_status(f"  {each.cell.id}  sample {sample}  {login_command(each.cell.id, None)}")
    async with anyio.create_task_group() as tasks:

        async def end_at_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    tasks.cancel_scope.cancel()

        # Python handles signals in the main thread only.
        if threading.current_thread() is threading.main_thread():
            tasks.start_soon(end_at_signal)
        # A copy: a cell that is closed leaves the list.
        for each in tuple(session.live):
            tasks.start_soon(each.attach_socket.serve, each.cell)
        while session.live:
            for each in tuple(session.live):
                try:
                    await each.cell.ping()
                    is_over = each.attach_socket.released
                # It died, or reached the end of its lifetime.
                except CellError:
                    is_over = True
                if is_over:
                    await each.close(outcome="completed")
            await anyio.sleep(_CHECK_INTERVAL_S)
        tasks.cancel_scope.cancel()


async def close_all(session: Session, *, outcome: str) -> None:
    """Close every running cell, then raise the first error."""
    errors: list[Exception] = []
    # Each of them: an error of one must not keep the others running.
    for each in tuple(session.live):
        try:
            await each.close(outcome=outcome)
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)
    if errors:
        raise errors[0]


async def clean(cell_id: str | None) -> None:
    """Release kept cells, and reap crashed owners'."""
    for name in await anyio.to_thread.run_sync(release_cells, cell_id):
        print_status(f"belljar: {name} released; its owner destroys it")
    from belljar.isolation.reap import reap

    for reaped in await reap(None, cell_id=cell_id):
        print_status(f"belljar: {printable(str(reaped))}")
