"""The policy's `on` over a real journal and real processes, without a cell."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.recorder import MemoryRecorder

from belljar.cell.parts import start_run
from belljar.cell.stop_rules import StopRulesRecorder, stop_rules
from belljar.errors import CellError, ContainmentBreach, LedgerError
from belljar.events import Event, Kind, Recorder
from belljar.isolation.hold import check_may_start, read_order
from belljar.ledger.schema import check_data
from belljar.policy.guarding import Stop, Trigger
from belljar.policy.load import resolve_policy
from belljar.process import identify
from belljar.store.journal import CellAbout, Journal, own_entry

OWN, BESIDE, OTHER = "c-000000000001", "c-000000000002", "c-000000000003"
RUN = "20261123-000000000-abcdef"
USED = Event(
    kind=Kind.DECOY_USED,
    data={"decoy": "aws", "value": "aws/key", "operation": "http.header", "evidence": 1},
    cell_id=OWN,
)


class World:
    def __init__(self, home: Path) -> None:
        self.home, self.recorder = home, MemoryRecorder()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in (OWN, BESIDE, OTHER):
            process = self.processes[name] = subprocess.Popen(["sleep", "600"])
            Journal(home).write(replace(own_entry(name, "cell"), child=identify(process.pid)))
            Journal(home).describe(name, CellAbout(run_id="another" if name == OTHER else RUN))

    def rules(
        self, stops: Mapping[Trigger, Stop], recorder: Recorder | None = None
    ) -> StopRulesRecorder:
        inner = recorder or self.recorder
        return StopRulesRecorder(inner, run_id=RUN, home=self.home, stops=stops)

    def ended(self, *names: str) -> bool:
        return all(self.processes[name].wait(60) == -9 for name in names) and {
            name for name, process in self.processes.items() if process.poll() is not None
        } == set(names)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Whatever of it still runs at the end is killed."""
    made = World(tmp_path)
    yield made
    for process in made.processes.values():
        process.kill()
        process.wait()
    shutil.rmtree(tmp_path / "journal", ignore_errors=True)


@pytest.mark.promise("6.4")
@pytest.mark.parametrize(
    ("stop", "ends"),
    [(Stop.SAMPLE, (OWN,)), (Stop.RUN, (OWN, BESIDE)), (Stop.ALL, (OWN, BESIDE, OTHER))],
)
def test_a_rule_stops_what_it_says(world: World, stop: Stop, ends: tuple[str, ...]) -> None:
    """The event is on record, then the stop, then its scope is halted and no more."""
    world.rules({Trigger.DECOY_USED: stop}).record(USED)
    assert world.ended(*ends)
    used, triggered = world.recorder.events
    assert (used.kind, triggered.kind) == (Kind.DECOY_USED, Kind.KILL_TRIGGERED)
    check_data(triggered.kind, dict(triggered.data))
    assert (triggered.data["rule"], triggered.data["evidence"]) == ("decoy_used", 0)
    assert {name for name in world.processes if read_order(world.home, name) is not None} == set(
        ends
    )
    if stop is Stop.RUN:
        with pytest.raises(CellError, match="decoy_used"):
            check_may_start(world.home, run=RUN)
    else:
        check_may_start(world.home, run=RUN)


def test_a_scope_is_stopped_once_and_a_wider_one_again(world: World) -> None:
    """A thousand contacts are one stop; what is worse still acts."""
    rules = {Trigger.DECOY_USED: Stop.SAMPLE, Trigger.BREACH: Stop.RUN}
    recorder = world.rules(rules)
    for _ in range(3):
        recorder.record(USED)
    recorder.record(Event(kind=Kind.PROBE_COMPLETED, data={"verdict": "breached"}, cell_id=OWN))
    assert world.ended(OWN, BESIDE)
    assert world.recorder.kinds().count(Kind.KILL_TRIGGERED) == 2


def test_what_could_not_be_read_is_stopped_by_the_next_event(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that can't be read whole is no stop of all that it holds."""
    recorder, real = world.rules({Trigger.DECOY_USED: Stop.SAMPLE}), Journal.entries_now
    with monkeypatch.context() as blind:
        blind.setattr(Journal, "entries_now", lambda _self, problems: problems.append("x") or ())
        recorder.record(USED)
    assert world.ended()
    monkeypatch.setattr(Journal, "entries_now", real)
    recorder.record(USED)
    assert world.ended(OWN)


class Full:
    def record(self, event: Event) -> int:
        raise LedgerError("no room")


@pytest.mark.promise("6.4")
def test_it_acts_where_nothing_can_be_recorded(world: World) -> None:
    """Neither the event nor the stop is recorded: the cells end, and the caller gets the error."""
    with pytest.raises(LedgerError):
        world.rules({Trigger.DECOY_USED: Stop.RUN}, Full()).record(USED)
    assert world.ended(OWN, BESIDE)


@pytest.mark.promise("6.4")
@pytest.mark.parametrize("is_grouped", [False, True])
def test_a_breach_that_is_raised_stops_the_run(world: World, is_grouped: bool) -> None:
    """Whatever is on record of it, also in a task group's error."""
    error: Exception = ContainmentBreach("a way out")
    if is_grouped:
        error = ExceptionGroup("tasks", [ValueError(), ExceptionGroup("more", [error])])
    with start_run("cell", "test", [], home=world.home) as run:
        Journal(world.home).describe(OWN, CellAbout(run_id=run.run_id))
        with pytest.raises(type(error)), stop_rules(run, resolve_policy("low").policy, world.home):
            raise error
        assert world.ended(OWN)
        with pytest.raises(CellError):
            check_may_start(world.home, run=run.run_id)
