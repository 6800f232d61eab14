"""A sample whose cell is reverted: each machine is the sample's, with evidence of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
from tests.fakes.cell import FakeCell, FakeCells
from tests.fakes.probing import read_canary
from tests.unit.harness.runs import opened
from tests.unit.report.stories import CONTACT, line

from belljar.errors import CellError, ContainmentBreach
from belljar.events import Kind
from belljar.harness import score
from belljar.harness.session import Session
from belljar.ledger.schema import Line
from belljar.probe.model import Verdict
from belljar.report.signals import SignalCode

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _revertible(cells: FakeCells) -> None:
    cells.are_revertible = True


def seen_of(cells: FakeCells) -> list[list[tuple[Kind, str]]]:
    """What is on record of each cell's belonging and probes, in order of their making."""
    kinds = {Kind.SAMPLE_STARTED: "sample", Kind.PROBE_COMPLETED: "phase"}
    return [
        [
            (event.kind, str(event.data[kinds[event.kind]]))
            for event in cells.runs[0].recorder.events
            if event.cell_id == cell.id and event.kind in kinds
        ]
        for cell in cells.opened
    ]


WHOLE = [
    (Kind.SAMPLE_STARTED, "s1"),
    (Kind.PROBE_COMPLETED, "start"),
    (Kind.PROBE_COMPLETED, "end"),
]


@pytest.mark.promise("3.5")
@pytest.mark.parametrize("phase", ["start", "end"])
async def test_a_machine_without_its_probes_makes_the_sample_void(
    session: Session, cells: FakeCells, phase: str
) -> None:
    """The new one or the old one: good probes of the others don't stand for it."""
    environment, at_start = await opened(), phase == "start"

    def fail(cell: FakeCell, at: str) -> None:
        if at == phase and cell is cells.opened[at_start]:
            raise CellError("no probe")

    cells.on_probe = fail
    none: AbstractContextManager[object] = nullcontext()
    with pytest.raises(Exception, match="not running") if at_start else none:
        await environment.revert()
    assert (environment.cell.id == cells.opened[0].id) is at_start
    assert not at_start or seen_of(cells)[1] == [WHOLE[0], WHOLE[2]]
    assert (await environment.exec(["true"])).success
    with none if at_start else pytest.raises(CellError):
        await environment.close(outcome="completed")
    assert environment.containment.cell_verdict is Verdict.VOID


async def test_a_breach_of_a_new_machine_is_the_samples(session: Session, cells: FakeCells) -> None:
    """It stops the run, and the machine that never came into use is in the sample's evidence."""
    environment = await opened()

    def arm(cell: FakeCell, phase: str) -> None:
        if cell is cells.opened[1] and phase == "start":
            cell.run_probe_program.touch = read_canary

    cells.on_probe = arm
    with pytest.raises(ContainmentBreach):
        await environment.revert()
    assert session.breaches
    await environment.close(outcome="stopped")
    assert seen_of(cells) == [WHOLE] * 2
    assert environment.containment.cell_verdict is Verdict.BREACHED


def _lines(cells: FakeCells) -> Iterator[Line]:
    for event in cells.runs[0].recorder.events:
        yield line(event.kind, event.cell_id, **event.data)


async def test_the_score_counts_the_signals_of_all_machines(
    session: Session, cells: FakeCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of reverted machines too, whoever reverted, also what is found at their end."""
    environment, other = await opened(), await opened()
    cells.opened[1].note(Kind.DECOY_TOUCHED, CONTACT)

    def contact(cell: FakeCell, phase: str) -> None:
        """A finding of the last look."""
        if phase == "end":
            cell.note(Kind.DECOY_USED, CONTACT)

    cells.opened[0].note(Kind.DECOY_TAKEN, CONTACT)
    cells.on_probe = contact
    monkeypatch.setattr(score, "sample_environment", lambda: environment)
    monkeypatch.setattr(score, "read_events", lambda _: _lines(cells))
    await environment.cell.revert()
    await environment.revert()
    environment.cell.note(Kind.DECOY_SENT, CONTACT)
    found = await score.signals_so_far()
    assert {signal.code for signal in found.signals} == {
        SignalCode.DECOY_TAKEN,
        SignalCode.DECOY_USED,
        SignalCode.DECOY_SENT,
    }
    for each in (environment, other):
        await each.close(outcome="completed")
