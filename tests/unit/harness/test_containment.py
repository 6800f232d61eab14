"""A sample's verdict: its probes, its destruction, its reverts; what a breach does to the session."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import anyio
import pytest
from tests.fakes.cell import FakeCell, FakeCells
from tests.fakes.probing import read_canary
from tests.unit.harness.runs import opened

from belljar.errors import CellError, ContainmentBreach, HostError
from belljar.events import Kind
from belljar.harness import session as session_module
from belljar.harness.sample import Containment
from belljar.harness.session import Session
from belljar.probe.judge import Router
from belljar.probe.model import AttemptOutcome, Finding, ProbeReport, Side, Verdict
from belljar.probe.run import breach_of

pytestmark = pytest.mark.anyio
C, V, B = Verdict.CONTAINED, Verdict.VOID, Verdict.BREACHED


def report(verdict: Verdict) -> ProbeReport:
    finding = Finding(
        name="a.b",
        verdict=verdict,
        outcome=AttemptOutcome.DENIED,
        detail="",
        seen="w",
        seen_by=Side.HOST,
    )
    return ProbeReport(verdict=verdict, findings=(finding,), which="quick", duration_ms=1)


@pytest.mark.promise("7.3")
@pytest.mark.parametrize(
    ("start", "end", "clean", "verdict"),
    [
        (C, C, True, C),
        (C, C, False, V),
        (C, C, None, V),
        (C, V, True, V),
        (B, V, None, B),
        (C, None, True, V),
        (None, B, True, B),
    ],
)
def test_the_worst_is_the_verdict(
    start: Verdict | None, end: Verdict | None, clean: bool | None, verdict: Verdict
) -> None:
    """Both ends of all its machines and the destruction: the worst of them."""
    starts, ends = ({"a": report(C), "b": report(one)} if one else {} for one in (start, end))
    for machines in (["b"], ["a", "b"]):
        found = Containment(machines=machines, starts=starts, ends=ends, clean=clean)
        assert found.cell_verdict is verdict
        assert found.data()["cell_verdict"] == verdict.value
    assert isinstance(breach_of(report(B), "c"), ContainmentBreach)
    assert breach_of(None, "c") is breach_of(report(V), "c") is None


def at(wanted: str, touch: Callable[[dict[str, str]], object]) -> Callable[[FakeCell, str], None]:
    def arm(cell: FakeCell, phase: str) -> None:
        cell.run_probe_program.touch = touch if phase == wanted else lambda _: None

    return arm


async def test_a_breach_at_the_start(
    session: Session, cells: FakeCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample does not run, its cell is destroyed, and no further sample begins."""
    stops: list[int] = []
    monkeypatch.setattr(session_module, "_STOP_TIMEOUT_S", 0.5)
    cells.on_probe = at("start", read_canary)
    with anyio.CancelScope() as evaluation:

        def stop() -> None:
            stops.append(1)
            evaluation.cancel()

        session.stop = stop
        await opened()
    assert evaluation.cancelled_caught
    assert (len(stops), cells.opened[0].destroyed, len(session.live)) == (1, True, 0)
    cells.on_probe = at("never", read_canary)
    with pytest.raises(ContainmentBreach, match="stopped"):
        await opened()
    assert len(cells.opened) == 1


@pytest.mark.parametrize("is_left", [False, True])
async def test_a_breach_at_the_end_stops_the_others(
    session: Session, cells: FakeCells, *, is_left: bool
) -> None:
    """A breach that shows at one sample's end, also of a cell that can't be destroyed."""
    cells.on_probe = at("end", read_canary)
    first, second = await opened(), await opened()
    cells.destroy_error = HostError("it is left") if is_left else None
    with pytest.raises(HostError if is_left else ContainmentBreach):
        await first.close(outcome="completed")
    cells.on_probe, cells.destroy_error = at("never", read_canary), None
    for call in (second.exec(["true"]), second.read_file("x"), second.write_file("x", "y")):
        with pytest.raises(ContainmentBreach, match="stopped"):
            await call
    await second.close(outcome="completed")
    assert (first.containment.cell_verdict, second.containment.cell_verdict) == (B, C)
    assert all(cell.destroyed for cell in cells.opened)


async def test_every_cell_of_a_range_is_probed_with_its_router(
    session: Session, cells: FakeCells
) -> None:
    """The sample's own at both ends, its target at the end, a scorer's cell at both."""
    cells.router = Router(interface="eth0", mac="02:00:00:00:00:01")
    seen: list[str] = []
    cells.on_probe = lambda cell, phase: seen.append(phase) if cell.has_port else None
    environment = await opened()
    async with environment.another_cell():
        pass
    await environment.close(outcome="completed")
    assert seen == ["start", "start", "end", "end", "end"]
    assert environment.containment.cell_verdict is C
    lost = await opened()
    cast("dict[str, object]", lost.range.routers).clear()
    with pytest.raises(ValueError, match="router"):
        await lost.close(outcome="completed")
    assert (lost.containment.cell_verdict, cells.opened[-1].destroyed) == (V, True)


async def test_a_breach_of_another_cell(session: Session, cells: FakeCells) -> None:
    """That of a scorer's stops the run, whatever was raised."""
    environment = await opened()
    for phase in ("start", "end"):
        session.stopped = None
        cells.on_probe = at(phase, read_canary)
        with pytest.raises(ContainmentBreach):
            async with environment.another_cell():
                raise ValueError("the scorer failed")
        assert isinstance(session.stopped, ContainmentBreach)
    cells.on_probe = at("never", read_canary)
    await environment.close(outcome="completed")


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
