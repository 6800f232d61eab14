"""Events of a packet record's reader are checked, and what it does not report is recorded."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.network.capture.test_conversations import record
from tests.unit.network.capture.test_traffic_analysis import LAYOUT, PLAN, TALK

from belljar.errors import LedgerError
from belljar.events import Body, Event, Kind, MemoryRecorder, Trust
from belljar.network import ipc
from belljar.network.capture.traffic_analysis import seen_exchanges
from belljar.network.ipc import ALIVE, ASK, READY, Item, WireViolation
from belljar.network.ipc import encode_event as datagrams_of
from belljar.network.owner import reading
from belljar.network.owner.budget import Budget
from belljar.network.owner.reading import (
    KINDS,
    MAX_LIMITS,
    MAX_PROCESSOR_S,
    Taker,
    Task,
    read_back,
    take_in,
)

TASK = Task(files=(), range_id="r-1", layout=LAYOUT, network=PLAN, budget=Budget.of(1 << 20))
FLOW = Item(
    Kind.NETWORK_FLOW,
    {
        "cell": "a",
        "protocol": "tcp",
        "address": "",
        "port": 1,
        "verdict": "allowed",
        "reason": "segment",
        "bytes": 1,
    },
)
LIMIT = Item(Kind.LIMIT_HIT, {"limit": "traffic_analysis_bytes", "value": 1, "count": 2})
LAST = Item(READY, {})


def words(*items: Item) -> list[bytes]:
    """As a reader sends them."""
    return [piece for number, item in enumerate(items, 1) for piece in datagrams_of(number, item)]


def taken(*said: bytes, task: Task = TASK) -> list[Event]:
    """What is put on record."""
    recorder = MemoryRecorder()
    taker = Taker(task, recorder)
    for datagram in said:
        taker.take(datagram)
    return list(recorder.events)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The owner's and the reader's."""
    ours, theirs = ipc.pair()
    with ours, theirs:
        yield ours, theirs


def told(budget: Budget) -> list[Event]:
    """By an honest reader."""
    files = [io.BytesIO(record([each for talk in TALK for each in talk]))]
    return list(seen_exchanges(files, LAYOUT, PLAN, range_id="r-1", budget=budget))


@given(st.integers(500, 30_000), st.integers(0, 20_000), st.integers(0, 3))
def test_an_honest_reader_is_recorded(recorded: int, spent: int, cut: int) -> None:
    """Whatever of the budget is left: it reports no more than it may, and all of it is recorded,
    bodies too."""
    budget = replace(Budget.of(recorded), spent_bytes=spent, events=7, cut_events=cut)
    events = told(budget)
    on_record = taken(
        *words(*(Item(event.kind, event.data, event.bodies) for event in events)),
        task=replace(TASK, budget=budget),
    )
    assert [(each.kind, dict(each.data), each.bodies) for each in on_record] == [
        (each.kind, dict(each.data), each.bodies) for each in events
    ]


def test_whose_events_they_are_is_the_owners_word() -> None:
    """Not the reader's."""
    (event,) = taken(
        *words(replace(FLOW, data={**FLOW.data, "range": "r-2", "traffic_analysis": False}))
    )
    assert (event.data["range"], event.data["traffic_analysis"], event.trust) == (
        "r-1",
        True,
        Trust.HOST_OBSERVED,
    )


BODY = Body(name="request", content=b"", total_bytes=0, sha256="0" * 64)


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    "items",
    [
        [Item(Kind.NETWORK_DNS, {"name": "x"})],
        [Item(Kind.RANGE_DESTROYED, {})],
        [Item(ALIVE, {})],
        [Item(ASK, {"what": "dial"}, (replace(BODY, name="question"),))],
        [LIMIT] * (MAX_LIMITS + 1),
        [replace(LIMIT, bodies=(BODY,))],
        [replace(LIMIT, data={**LIMIT.data, "more": "x" * 5000})],
        [replace(FLOW, data={**FLOW.data, "cell": "x" * 2000})] * 1000,
    ],
)
def test_what_no_reader_says_is_a_violation(items: list[Item]) -> None:
    """Kinds that are not its own, more limits than there are, more than the budget has room for."""
    with pytest.raises(WireViolation):
        taken(*words(*items))


def test_no_more_events_are_taken_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside those that the range had."""
    monkeypatch.setattr(reading, "MAX_EVENTS", 3)
    task = replace(TASK, budget=replace(TASK.budget, events=5))
    assert len(taken(*words(*[FLOW] * 3), task=task)) == 3
    with pytest.raises(WireViolation, match="more events"):
        taken(*words(*[FLOW] * 4), task=task)


@given(
    st.lists(st.binary(max_size=200) | st.sampled_from(words(FLOW, LIMIT, LAST, FLOW)), max_size=8)
)
def test_whatever_a_reader_says(said: list[bytes]) -> None:
    """Events of its kinds are on record, or it has broken its protocol; nothing else happens."""
    recorder = MemoryRecorder()
    taker = Taker(TASK, recorder)
    try:
        for datagram in said:
            taker.take(datagram)
    except WireViolation:
        pass
    assert {event.kind for event in recorder.events} <= KINDS


@pytest.mark.promise("5.4")
def test_what_was_reported_is_kept(ends: tuple[socket.socket, socket.socket]) -> None:
    """When the reader is gone, silent, or breaks its protocol; and after its last message nothing
    is read."""
    ours, theirs = ends
    recorder = MemoryRecorder()
    for datagram in [*words(FLOW, LAST), b"ignored"]:
        theirs.send(datagram)
    assert take_in(ours, Taker(TASK, recorder), timeout_s=60) == ""
    assert "broke its protocol" in take_in(ours, Taker(TASK, recorder), timeout_s=60)
    theirs.send(words(FLOW)[0])
    assert "took more than 0 s" in take_in(ours, Taker(TASK, recorder), timeout_s=0)
    theirs.close()
    with pytest.raises(ipc.Closed):
        take_in(ours, Taker(TASK, recorder), timeout_s=60)
    assert [event.kind for event in recorder.events] == [Kind.NETWORK_FLOW] * 2


class FullLedger:
    """Has no room."""

    def record(self, event: Event) -> int:
        """Never."""
        raise OSError(28, "No space left on device", str(event.kind))


def test_what_cannot_be_recorded_is_an_error() -> None:
    """Not the reader's."""
    with pytest.raises(LedgerError):
        Taker(TASK, FullLedger()).take(words(FLOW)[0])


def test_a_record_that_is_gone_is_told(tmp_path: Path) -> None:
    """What has no reader is not read, which is on record; nothing is raised."""
    recorder = MemoryRecorder()
    read_back(replace(TASK, files=(tmp_path / "none",)), home=tmp_path, recorder=recorder)
    (event,) = recorder.events
    assert (event.data["limit"], event.data["range"]) == ("traffic_analysis_reader", "r-1")
    assert str(event.data["effect"]).startswith("not read further: it has no reader")


def test_packets_that_are_not_in_the_record_are_reported(tmp_path: Path) -> None:
    """The owner reports them, whatever becomes of the reader."""
    for files in ((), (tmp_path / "none",)):
        recorder = MemoryRecorder()
        read_back(replace(TASK, files=files, lost_packets=7), home=tmp_path, recorder=recorder)
        event = recorder.events[0]
        assert (event.data["limit"], event.data["count"]) == ("traffic_analysis_packets", 7)
        assert event.data["effect"] == "what they carried is not on record"
        assert len(recorder.events) == 1 + len(files)


def test_a_task_is_a_ranges_own(tmp_path: Path) -> None:
    """With what the range counted; a larger record has more time, and not without end."""
    counters = {
        "recorded_bytes": 9,
        "events_recorded": 3,
        "events_cut": 1,
        "packets_recorded_and_dropped": 7,
        "packets_unaccounted": 4,
        "packets_not_recorded": 2,
    }
    file = tmp_path / "packets"
    seconds = []
    for size in (0, 600 << 20, 60 << 30):
        with file.open("wb") as sparse:
            sparse.truncate(size)
        task = Task.of([file], counters, range_id="r-1", layout=LAYOUT, network=PLAN)
        seconds.append(task.processor_s)
    assert seconds == [20, 100, MAX_PROCESSOR_S]
    assert (
        task.lost_packets,
        task.budget.spent_bytes,
        task.budget.events,
        task.budget.cut_events,
    ) == (6, 9, 3, 1)
    assert json.loads(json.dumps(task.to_json(None)))["processor_s"] == MAX_PROCESSOR_S
