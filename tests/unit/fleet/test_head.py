"""The head of a fleet, with an engine of the test's: units end as it says."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, cast

import pytest

from belljar.dataclass import replace
from belljar.errors import ContainmentBreach, LedgerError
from belljar.events import Event, JsonValue, Kind
from belljar.fleet.archive import pack
from belljar.fleet.engine import Engine
from belljar.fleet.head import Head
from belljar.fleet.units import KIND, Node
from belljar.harness.evaluate import RunOutcome
from belljar.harness.host_processes import watched_host
from belljar.harness.options import SelectedTask
from belljar.ledger.keys import local_fingerprint
from belljar.ledger.listing import read_events
from belljar.ledger.rundir import RunDirectory
from belljar.policy.limits import Tier
from belljar.probe.model import Verdict
from belljar.report.reasons import ReasonCode

TASK = SelectedTask(
    name="t", root=None, words=(), check_words=(), samples=("a",), epochs=1, tier=Tier.CONTAINER
)


class Scripted:
    """The first attempt sends `first` from its node, each other one a run that ended."""

    def __init__(self, home: Path, first: Iterable[Any]) -> None:
        self.first: Iterable[Any] = first
        self.last_heard_s, self.is_stopping = dict[str, float](), False
        self.needs_token = True
        self.runs = {name: unit_run(home / name) for name in ("n1", "n2")}
        self.placed: list[str] = []

    def start(
        self, _arguments: Sequence[Any], *, nodes: Sequence[str], **_: object
    ) -> Iterator[Any]:
        """Place a unit on the first node that may have it."""
        self.placed.append(nodes[0])
        items = self.first if len(self.placed) == 1 else self.runs[nodes[0]]
        return chain([{"node": nodes[0]}], items)

    def ready(self, units: Sequence[Any], **_: float) -> Iterator[tuple[Any, Any]]:
        for unit in units:
            yield unit, next(unit, None)

    def cancel(self, unit: object) -> None:
        """Nothing runs."""

    def watch(self, fleet: str, nodes: Sequence[str]) -> None:
        """Nothing is watched."""


PROBE: Mapping[str, JsonValue] = {"which": "quick", "phase": "start", "user": "0"}
RESULT: Mapping[str, JsonValue] = {"verdict": "breached", "probes": 1}
BREACH: Mapping[str, JsonValue] = {**PROBE, **RESULT, "duration_ms": 1, "problem": ""}


def unit_run(
    home: Path, *, interrupted: bool = False, breached: bool = False, killed: bool = False
) -> list[Any]:
    """What a unit sends: its run, and how it ended."""
    with RunDirectory(home, "run", []) as run:
        if breached:
            for kind, data in ((Kind.PROBE_STARTED, PROBE), (Kind.PROBE_COMPLETED, BREACH)):
                run.recorder.record(Event(kind=kind, data={**data}, cell_id="c" * 32))
        if killed:
            archive = b"".join(pack(run.path))
        else:
            ends: dict[str, JsonValue] = {"stopped": False, "errors": []}
            ends["interrupted"] = interrupted
            run.recorder.record(Event(kind=Kind.RUN_EVALUATED, data=ends))
    if not killed:
        archive = b"".join(pack(run.path))
    return [archive, {**NO_RUN, "run_id": run.run_id, "exit_code": 0, "why": ""}]


NO_RUN: Mapping[str, Any] = {"run_id": "", "exit_code": 5, "why": "no space"}


@dataclass
class Ended:
    engine: Scripted
    outcome: RunOutcome
    failed: list[dict[str, Any]]
    finished: list[dict[str, Any]]
    tars: list[str]


@contextmanager
def fleet(
    home: Path, first: Iterable[Any], task: SelectedTask = TASK
) -> Iterator[tuple[Head, Callable[[], Ended]]]:
    """A head with two nodes, and how to run it to its end."""
    engine = Scripted(home, first)
    keys = {name: local_fingerprint(home / name) or "" for name in engine.runs}
    nodes = [Node(node_id=name, name=name, key=key, cells=1) for name, key in keys.items()]
    with RunDirectory(home / "head", KIND, []) as run, watched_host() as host:
        head = Head(task, cast("Engine", engine), run, nodes, host)

        def ended() -> Ended:
            outcome = head.run_all("w", require_contained=False)
            events = [*read_events(run.path)]
            return Ended(
                engine=engine,
                outcome=outcome,
                failed=[e.data for e in events if e.kind is Kind.FLEET_UNIT_FAILED],
                finished=[e.data for e in events if e.kind is Kind.FLEET_UNIT_FINISHED],
                tars=sorted(path.name for path in (run.path / "units").iterdir()),
            )

        yield head, ended


def run_of(home: Path, first: Iterable[Any]) -> Ended:
    with fleet(home, first) as (_, ended):
        return ended()


LOST = OSError("connection lost")
AGAIN: dict[str, Callable[[Path], list[Any]]] = {
    "lost": lambda _: [LOST],
    "refused": lambda _: [NO_RUN],
    "broken off": lambda home: [unit_run(home)[0][:-1024], LOST],
    "interrupted": lambda home: unit_run(home, interrupted=True),
    "killed": lambda home: unit_run(home, killed=True),
}


@pytest.mark.parametrize("how", AGAIN)
def test_what_a_node_did_to_a_unit_is_tried_on_another(tmp_path: Path, how: str) -> None:
    """A unit whose connection ended, also within its record, that did not begin, that its node
    interrupted or whose process died: the failure or both records are there, and the second attempt
    counts."""
    ended = run_of(tmp_path, AGAIN[how](tmp_path / "n1"))
    assert ended.engine.placed[:2] == ["n1", "n2"]
    finished = [(each["node"], each["attempt"]) for each in ended.finished]
    if how in ("interrupted", "killed"):
        assert finished == [("n1", 1), ("n2", 2)]
        assert ended.tars[:2] == ["00001-1.tar", "00001-2.tar"]
    else:
        assert (ended.failed[0]["node"], ended.failed[0]["attempt"]) == ("n1", 1)
        assert finished == [("n2", 2)]


@pytest.mark.parametrize("how", ["interrupted", "killed", "lost after it"])
def test_a_breach_in_a_record_that_came_stops_the_fleet(tmp_path: Path, how: str) -> None:
    """Whatever happened to its unit: it counts, and nothing is tried again."""
    items = unit_run(tmp_path / "n1", breached=True, **({how: True} if " " not in how else {}))
    ended = run_of(tmp_path, [*items, *[LOST] * (" " in how)])
    assert ended.engine.placed == ["n1"]
    assert ended.engine.is_stopping
    assert ended.outcome.findings.verdict is Verdict.BREACHED


UNJUDGED: dict[str, Callable[[bytes, dict[str, Any]], list[Any]]] = {
    "changed": lambda _, end: [b"x", end],
    "malformed": lambda archive, _: [archive, {"run_id": 1}],
    "without a run": lambda archive, end: [archive, {**end, "run_id": ""}],
    "without an end": lambda archive, _: [archive],
    "cut off": lambda archive, _: [archive, LOST],
}


@pytest.mark.parametrize("how", UNJUDGED)
def test_a_record_that_came_and_can_not_be_judged_is_kept_and_not_tried_again(
    tmp_path: Path, how: str
) -> None:
    """It may be that of a breach: one that arrived changed, with an end of another shape, with no
    run's name, or without an end, is not replaced by another attempt's."""
    first = UNJUDGED[how](*unit_run(tmp_path / "n1", breached=True))
    ended = run_of(tmp_path, first)
    assert ended.engine.placed == ["n1"]
    assert ended.tars == ["00001-1.tar"]
    (failed,) = ended.failed
    assert failed["archive"] == hashlib.sha256(first[0]).hexdigest()
    problems = ended.outcome.findings.problems
    assert ReasonCode.LEDGER_BAD in {reason.code for reason in problems}
    assert ended.outcome.exit_code == 2


@pytest.mark.parametrize("kind", [Kind.FLEET_UNIT_FINISHED, Kind.RUN_EVALUATED])
def test_a_breach_is_told_though_the_head_can_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """A full disk, where its own record is, hides none."""
    record = Head.record

    def full(head: Head, what: Kind, **data: Any) -> None:  # noqa: ANN401 - an event's data
        if what is kind:
            raise LedgerError("no space left on device")
        record(head, what, **data)

    monkeypatch.setattr(Head, "record", full)
    with pytest.raises(ContainmentBreach, match="00001-1 on n1"):
        run_of(tmp_path, unit_run(tmp_path / "n1", breached=True))


@pytest.mark.parametrize("how", ["deadline_s", "MAX_ARCHIVE_BYTES", "its node twice"])
def test_what_a_guest_or_a_live_node_may_have_caused_has_no_second_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A unit past its deadline, a record without bound and a node named again are void."""
    first: Iterable[Any] = repeat(b"x")
    if how == "deadline_s":
        monkeypatch.setattr("belljar.fleet.units.deadline_s", lambda *_, **__: 0.0)
        first = repeat(b"")
    elif how == "MAX_ARCHIVE_BYTES":
        monkeypatch.setattr("belljar.fleet.head.MAX_ARCHIVE_BYTES", 9)
    else:
        first = repeat({"node": "n1"})
    ended = run_of(tmp_path, first)
    assert ended.engine.placed == ["n1"]
    assert ended.outcome.findings.verdict is Verdict.VOID
    assert ended.failed[0]["is_bad"] is True


def test_no_sample_vanishes_when_no_node_is_left(tmp_path: Path) -> None:
    """Each that was not placed has a void row."""
    task = replace(TASK, samples=("a", "b", "c"))
    with fleet(tmp_path, [], task) as (head, ended):
        head.usable.clear()
        found = ended()
    rows = found.outcome.findings.rows
    assert [(row.transcript.sample, row.verdict) for row in rows] == [
        (name, Verdict.VOID) for name in task.samples
    ]


def test_what_the_heads_own_process_did_is_in_what_left(tmp_path: Path) -> None:
    """It loads the task and computes its metrics: a connection of it is named."""
    with fleet(tmp_path, [NO_RUN]) as (_, ended):
        sys.audit("socket.connect", None, ("203.0.113.9", 443))
        found = ended()
    left = found.outcome.findings.left
    assert (left.claim, [each.name for each in left.destinations]) == (
        "something",
        ["203.0.113.9:443"],
    )
