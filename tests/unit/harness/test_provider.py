"""The provider over fake cells: Inspect's contract, as far as it does not need isolation."""

from __future__ import annotations

import errno
import inspect
from typing import Any

import anyio
import pytest
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.util import OutputLimitExceededError, SandboxUnavailableError
from tests.fakes.cell import FakeCells, FakeRun
from tests.unit.harness.runs import active_sample, close, opened

from belljar.cell.health import HealthFinding
from belljar.errors import ContainmentBreach, PolicyError
from belljar.events import Kind
from belljar.harness.evidence import FINDINGS
from belljar.harness.provider import BelljarSandboxEnvironment
from belljar.harness.session import Session

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


async def test_exec_has_exactly_the_parameters_that_inspect_counts(session: Session) -> None:
    """With a ninth parameter Inspect would silently stop passing `concurrency`."""
    environment = await opened()
    assert len(inspect.signature(environment.exec).parameters) == 8
    await close(environment)


async def test_a_sample_is_recorded_and_its_cell_destroyed(
    session: Session, cells: FakeCells
) -> None:
    """Probed at both ends, finished after the destruction with the verdict, in one ledger."""
    environment = await opened()
    await environment.exec(["true"])
    await close(environment)
    assert cells.opened[0].destroyed
    assert not session.live
    assert session.run is not None
    recorder: Any = session.run.recorder
    probes = [Kind.PROBE_STARTED, Kind.PROBE_COMPLETED]
    checks = [Kind.CELL_CHECKING, Kind.CELL_CHECKED]
    begin = [Kind.SAMPLE_STARTED, *probes, Kind.SAMPLE_RUNNING, *checks]
    assert recorder.kinds() == [*begin, *checks, *probes, Kind.CELL_DESTROYED, Kind.SAMPLE_FINISHED]
    done = [event for event in recorder.events if event.kind is Kind.PROBE_COMPLETED]
    assert [event.data["phase"] for event in done] == ["start", "end"]
    said = recorder.events[-1].data["containment"]
    assert (said["cell_verdict"], said["destroyed"]) == ("contained", True)
    assert said["run_id"] == session.run.run_id


@pytest.mark.promise("7.2")
async def test_the_beginning_of_a_samples_own_work_is_recorded(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, before its first operation."""
    active = active_sample(started=None)
    monkeypatch.setattr("belljar.harness.sample.sample_active", lambda: active)
    environment = await opened()
    await environment.write_file("prepared", "x")
    assert session.run is not None
    recorder: Any = session.run.recorder
    assert recorder.events[0].data["preparing"] is True
    assert Kind.SAMPLE_RUNNING not in recorder.kinds()
    active.started = 1.0
    await environment.exec(["true"])
    await environment.exec(["true"])
    assert recorder.kinds().count(Kind.SAMPLE_RUNNING) == 1
    await close(environment)


async def test_output_over_the_policys_bound_is_an_error(session: Session) -> None:
    """What the policy drops can't be shown as if it were all."""
    environment = await opened()
    with pytest.raises(OutputLimitExceededError) as caught:
        await environment.exec(["sh", "-c", "head -c 11000000 /dev/zero"])
    assert caught.value.truncated_output
    await close(environment)


async def test_a_dead_cell_is_unavailable_and_tells_the_model_nothing(
    session: Session, cells: FakeCells
) -> None:
    """The cause of death holds host paths: it goes to the operator's log only."""
    environment = await opened()
    cells.opened[0].dead = True
    files = (environment.read_file("x"), environment.write_file("x", ""))
    for call in (environment.exec(["true"]), *files):
        with pytest.raises(SandboxUnavailableError) as caught:
            await call
        assert "/secret" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
    await close(environment)


async def test_task_init_prepares_and_the_last_cleanup_closes_the_run(
    session: Session, cells: FakeCells
) -> None:
    """One run directory for the whole batch, opened by the first, closed by the last."""
    await BelljarSandboxEnvironment.task_init("startup", None)
    await BelljarSandboxEnvironment.task_init("startup", "critical")
    assert [loaded.source for loaded in cells.prepared] == ["preset:high", "preset:critical"]
    assert len(cells.runs) == 1
    environment = await opened()
    await BelljarSandboxEnvironment.task_cleanup("shutdown", None, cleanup=True)
    assert cells.opened[0].destroyed, "a cell that its sample left behind is destroyed"
    run: FakeRun = cells.runs[0]
    assert not run.closed
    await BelljarSandboxEnvironment.task_cleanup("shutdown", "critical", cleanup=True)
    assert run.closed
    assert FINDINGS in run.files
    assert not environment.attach_socket.path.exists()


async def test_a_refusal_ends_the_task_before_it_begins(session: Session, cells: FakeCells) -> None:
    """Inspect's own error for set-up; `belljar run` finds ours in the session; the run is sealed."""
    cells.prepare_error = PolicyError("risk critical needs hardware", hint="use another host")
    with pytest.raises(PrerequisiteError, match="risk critical needs hardware"):
        await BelljarSandboxEnvironment.task_init("startup", None)
    assert session.refusal is cells.prepare_error
    assert cells.runs[0].closed


@pytest.mark.promise("7.2")
async def test_a_breach_is_raised_and_remembered(session: Session, cells: FakeCells) -> None:
    """Destruction that left something ends the sample with an error and is the run's breach."""
    environment = await opened()
    cells.destroy_error = ContainmentBreach("destruction left: a process")
    with pytest.raises(ContainmentBreach):
        await close(environment)
    assert session.breaches == [cells.destroy_error]
    assert not session.live


async def test_cleanup_is_shielded_from_cancellation(session: Session, cells: FakeCells) -> None:
    """An interrupted sample's cell is destroyed all the same."""
    environment = await opened()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await BelljarSandboxEnvironment.sample_cleanup(
            "task", None, {"default": environment}, interrupted=True
        )
    assert cells.opened[0].destroyed


NO_SHELL = HealthFinding(stage="exec", errno=errno.ENOENT)


def checks(session: Session) -> list[tuple[str, str]]:
    """Phase and cause of each check on record, each begun before it was made."""
    assert session.run is not None
    recorder: Any = session.run.recorder
    done = [each.data for each in recorder.events if each.kind is Kind.CELL_CHECKED]
    assert recorder.kinds().count(Kind.CELL_CHECKING) == len(done)
    return [(each["phase"], each["cause"]) for each in done]


@pytest.mark.promise("7.5")
async def test_damage_is_noticed_at_the_next_call_and_kept(
    session: Session, cells: FakeCells
) -> None:
    """The call itself is an ordinary failure; the damage is looked for no more."""
    environment = await opened()
    await environment.exec(["true"])
    cells.opened[0].healths[:] = [NO_SHELL]
    for _ in range(2):
        assert (await environment.exec(["no-such-program"])).returncode == 127
    await close(environment)
    assert checks(session) == [("baseline", ""), ("call", "shell_missing")]
    environment = await opened()
    await environment.exec(["true"])
    cells.opened[1].die()
    with pytest.raises(SandboxUnavailableError):
        await environment.exec(["true"])
    await close(environment)
    assert checks(session)[2:] == [("baseline", ""), ("call", "agent_died")]
