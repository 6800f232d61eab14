"""The thread that watches over a range."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import Mock, patch

import pytest
from tests.fakes.recorder import MemoryRecorder

from belljar.errors import BelljarError, CellError
from belljar.events import Event, Kind
from belljar.network.ipc import ALIVE, Item, encode_event
from belljar.network.owner.budget import cost_bytes
from belljar.network.owner.processes import Child
from belljar.network.owner.range_state import RangeProcesses, RangeState
from belljar.network.owner.watch import RangeWatch

MAX_BYTES = 20_000


class Watched:
    """A watch over sockets and pipes that stand for a range's processes."""

    def __init__(self, problem: Exception | None = None) -> None:
        """`problem`: a look at upstream connections raises it, once."""
        self.died: list[BelljarError] = []
        self.recorder = MemoryRecorder()
        (control, self._control), (events, self.gateway) = (
            socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)
        )
        pipes = [os.pipe() for _ in range(3)]
        self._sockets, self._reads = (control, events), [read for read, _ in pipes]
        self._writes = [write for _, write in pipes]
        children = [Mock(spec=Child, pidfd=read) for read, _ in pipes[:2]]

        def look(_: object) -> None:
            if problem is not None:
                self.watch.closing = True
                self.end()
                raise problem

        self.watch = RangeWatch(
            "range",
            RangeProcesses(
                supervisor=children[0],
                gateway=children[1],
                control=control,
                events=events,
                stderr=pipes[2][0],
                fork_server=Mock(),
            ),
            RangeState(),
            self.recorder,
            on_failure=self.died.append,
            handle_request=None,
            dialler=Mock(enforce=look),
            max_recorded_bytes=MAX_BYTES,
            timeout_s=60,
        )

    def end(self) -> None:
        """Both processes are gone."""
        for other in (self._control, self.gateway):
            other.close()
        while self._writes:
            os.close(self._writes.pop())

    def close(self) -> None:
        """Wait for the thread."""
        self.end()
        self.watch.join()
        for ours in self._sockets:
            ours.close()
        for read in self._reads:
            os.close(read)


@contextmanager
def watched(problem: Exception | None = None) -> Iterator[Watched]:
    """One that listens, until both processes are gone."""
    scene = Watched(problem)
    with patch("belljar.network.owner.watch.POLL_INTERVAL_S", 0.01):
        scene.watch.start()
        try:
            yield scene
        finally:
            scene.close()


@pytest.mark.promise("2.6")
def test_what_has_no_room_on_record_ends_the_range() -> None:
    """What came before is whole, and no more is taken than it may; the limit is on record, once."""
    with watched() as scene:
        scene.gateway.settimeout(30)
        for number in range(1, 100):
            item = Item(Kind.NETWORK_ATTEMPT, {"stand_in": "s", "what": "x" * 1000})
            (datagram,) = encode_event(number, item)
            scene.gateway.send(datagram)
            if scene.died:
                break
    counters = scene.watch.counters()
    attempts = [each for each in scene.recorder.events if each.kind == Kind.NETWORK_ATTEMPT]
    assert counters["recorded_bytes"] == sum(map(cost_bytes, attempts)) <= MAX_BYTES
    assert counters["recorded_bytes"] + cost_bytes(attempts[0]) > MAX_BYTES
    assert {event.data["what"] for event in attempts} == {"x" * 1000}
    assert [type(error) for error in scene.died] == [CellError]
    limits = [each.data for each in scene.recorder.events if each.kind == Kind.LIMIT_HIT]
    assert [(limit["limit"], limit["value"]) for limit in limits] == [("range_record", MAX_BYTES)]


def test_at_the_end_what_has_no_room_is_counted() -> None:
    """The range ends in order, the limit is on record, and the sample is void for what is in no
    event: nobody is told that it is recorded, so nobody is answered."""
    with watched() as scene, patch("belljar.network.owner.watch.SHUTDOWN_GRACE_S", 0.2):
        scene.watch.closing = True
        scene.watch.end_gateway()
        item = Item(Kind.NETWORK_ATTEMPT, {"stand_in": "s", "what": "x" * 9000})
        for number in range(1, 5):
            (datagram,) = encode_event(number, item)
            scene.gateway.send(datagram)
        (datagram,) = encode_event(5, Item(ALIVE, {}))
        scene.gateway.send(datagram)
        scene.gateway.settimeout(30)
        acknowledged = list[int]()
        while 5 not in acknowledged:
            said = json.loads(scene.gateway.recv(1 << 16))
            acknowledged += [said["ack"]] if "ack" in said else []
    assert acknowledged == [1, 2, 5]
    events: list[Event] = scene.recorder.events
    kinds = [Kind.NETWORK_ATTEMPT, Kind.NETWORK_ATTEMPT, Kind.LIMIT_HIT]
    assert ([event.kind for event in events], scene.died) == (kinds, [])
    # One more, as the gateway has not said that it has ended
    assert scene.watch.counters()["unreported_at_end"] == 3
