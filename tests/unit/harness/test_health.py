"""When a sample's cell is checked, and where its damage is told."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from inspect_ai.util import SandboxUnavailableError
from tests.fakes.cell import FakeCells
from tests.unit.harness.runs import close, opened

from belljar.cell.health import HealthFinding
from belljar.events import Kind
from belljar.harness.provider import BelljarSandboxEnvironment
from belljar.harness.session import Session

pytestmark = pytest.mark.anyio
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


@pytest.mark.promise("7.5")
async def test_damage_is_noticed_at_the_end(session: Session, cells: FakeCells) -> None:
    """Though no call ran into it, and ordinary failures ask for no check."""
    for damage, interrupted, expected in (
        ([], False, [("end", "")]),
        ([NO_SHELL], False, [("end", "shell_missing")]),
        ([NO_SHELL], True, []),
    ):
        environment = await opened()
        before = checks(session)
        for script in ("true", "exit 1", "true"):
            await environment.exec(["sh", "-c", script])
        cells.opened[-1].healths[:] = damage or cells.opened[-1].healths
        await BelljarSandboxEnvironment.sample_cleanup(
            "task", None, {"default": environment}, interrupted=interrupted
        )
        assert checks(session)[len(before) :] == [("baseline", ""), *expected]
