"""The thread that watches over a range."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from tests.fakes.recorder import MemoryRecorder

from belljar.errors import BelljarError, CellError, ProtocolViolation
from belljar.events import Body, Event, Kind, Recorder
from belljar.ledger.keys import load_or_make_key
from belljar.ledger.writer import LedgerWriter
from belljar.network import ipc
from belljar.network.ipc import ALIVE, ENDED, Item, encode_event
from belljar.network.owner.processes import Child, RangeProcesses, RangeSpec
from belljar.network.owner.watch import BLOCK_BYTES, RangeWatch, cost_bytes
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkBounds, NetworkPlan

MAX_BYTES, TIMEOUT_S = 20_000, 60.0
NETWORK = NetworkPlan(bounds=NetworkBounds(recorded_bytes=MAX_BYTES))
LAYOUT = lay_out(NETWORK, ["agent"], random_bytes=bytes(16), avoid=[])
# A connection at a port that there is none of.
BEYOND: dict[str, Any] = {"cell": "agent", "connection": 1, "address": LAYOUT.resolver}
BEYOND |= {"port": 70_000, "source_port": 4000, "phase": "open"}


class Watched:
    """A watch over sockets and pipes that stand for a range's processes."""

    def __init__(self, recorder: Recorder, timeout_s: float) -> None:
        self.died: list[BelljarError] = []
        self.told = threading.Event()
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        (control, self.supervisor), (events, self.gateway) = pairs
        pipes = [os.pipe() for _ in range(3)]
        self._sockets, self._reads = (control, events), [read for read, _ in pipes]
        self._writes = [write for _, write in pipes]
        self.children = [Mock(spec=Child, pidfd=read) for read, _ in pipes[:2]]
        supervisor, gateway = self.children
        self.processes = RangeProcesses(
            supervisor=supervisor,
            gateway=gateway,
            control=control,
            events=events,
            stderr=pipes[2][0],
            fork_server=Mock(how_ended=Mock(return_value="")),
        )
        spec = RangeSpec(
            network=NETWORK, layout=LAYOUT, directory=Path(), check_every_s=0, timeout_s=timeout_s
        )
        about: Any = {"on_failure": self.fail, "handle_request": None, "dialler": Mock()}
        self.watch = RangeWatch("range", spec, self.processes, recorder, **about)

    def fail(self, error: BelljarError) -> None:
        self.died.append(error)
        self.told.set()

    def send(self, *items: Item) -> None:
        for number, item in enumerate(items, 1):
            for datagram in encode_event(number, item):
                self.gateway.send(datagram)

    def close(self) -> None:
        for other in (self.supervisor, self.gateway):
            other.close()
        for write in self._writes:
            os.close(write)
        assert self.watch.join(TIMEOUT_S)
        for ours in self._sockets:
            ours.close()
        for read in self._reads:
            os.close(read)


def attempt(size: int) -> Item:
    return Item(Kind.NETWORK_ATTEMPT, {"stand_in": "s", "what": "x" * size})


@contextmanager
def watched(recorder: Recorder, timeout_s: float = 60.0) -> Iterator[Watched]:
    scene = Watched(recorder, timeout_s)
    with patch("belljar.network.owner.watch.POLL_INTERVAL_S", 0.01):
        scene.watch.start()
        try:
            yield scene
        finally:
            scene.close()


@pytest.mark.promise("2.6")
def test_what_has_no_room_on_record_ends_the_range() -> None:
    """What came before is whole, and no more is taken than it may; the limit is on record, once."""
    recorder = MemoryRecorder()
    with watched(recorder) as scene:
        scene.gateway.settimeout(TIMEOUT_S)
        for number in range(1, 100):
            scene.gateway.send(encode_event(number, attempt(1000))[0])
            if scene.died:
                break
    attempts = [each for each in recorder.events if each.kind == Kind.NETWORK_ATTEMPT]
    recorded_bytes = sum(map(cost_bytes, attempts))
    assert recorded_bytes <= MAX_BYTES < recorded_bytes + cost_bytes(attempts[0])
    assert {*map(type, scene.died), *(e.data["what"] for e in attempts)} == {CellError, "x" * 1000}
    limits = [each.data for each in recorder.events if each.kind == Kind.LIMIT_HIT]
    assert [(limit["limit"], limit["value"]) for limit in limits] == [("range_record", MAX_BYTES)]
    with watched(recorder) as scene:  # Nor without end by what is on no record
        scene.send(*[Item(ALIVE, {})] * (MAX_BYTES // 512 + 1))
        assert scene.told.wait(TIMEOUT_S)


def test_at_the_end_what_has_no_room_is_counted() -> None:
    """The range ends in order, the limit is on record."""
    recorder = MemoryRecorder()
    with watched(recorder) as scene, patch("belljar.network.owner.watch.SHUTDOWN_GRACE_S", 0.2):
        scene.watch.closing = True
        scene.watch.end_gateway()
        scene.send(*[attempt(9000)] * 4, Item(ALIVE, {}))
        scene.gateway.settimeout(TIMEOUT_S)
        acknowledged = list[int]()
        while 5 not in acknowledged:
            acknowledged.append(json.loads(scene.gateway.recv(1 << 16)).get("ack", 0))
    assert [each for each in acknowledged if each] == [1, 2, 5]
    kinds = [Kind.NETWORK_ATTEMPT, Kind.NETWORK_ATTEMPT, Kind.LIMIT_HIT]
    assert ([event.kind for event in recorder.events], scene.died) == (kinds, [])
    # One more, as the gateway has not said that it has ended
    assert scene.watch.counters()["unreported_at_end"] == 3


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (Item(Kind.NETWORK_DNS, {"name": 1}), "a part of the range sent what can't be recorded"),
        (Item(ENDED, {"unreported": 0}), "it has ended without a request"),
        (Item(Kind.NETWORK_CONNECTION, BEYOND), "a part of the range sent a malformed message"),
    ],
)
def test_data_that_no_kind_allows_is_the_gateways_fault(
    tmp_path: Path, said: Item, problem: str
) -> None:
    """It broke its protocol, as it does by a last word unasked: the ledger is whole, and says so."""
    (tmp_path / "run").mkdir()
    with LedgerWriter(tmp_path / "run", load_or_make_key(tmp_path)) as recorder:
        with watched(recorder) as scene:
            scene.send(said)
            assert scene.told.wait(TIMEOUT_S)
        assert [type(error) for error in scene.died] == [ProtocolViolation]
        assert problem in str(scene.died[0])
    assert b"ProtocolViolation" in (tmp_path / "run" / "ledger.jsonl").read_bytes()


@pytest.mark.promise("2.6")
def test_a_gateway_that_reads_a_little_now_and_then_holds_nobody_up() -> None:
    """Each message to it goes out in time, and all of them together keep the thread that listens to
    the supervisor: its range ends, as that of one that reads nothing."""
    with watched(MemoryRecorder(), timeout_s=0.5) as scene:
        scene.processes.events.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        scene.gateway.settimeout(0.01)
        give_up, number = time.monotonic() + 10, 0
        while not scene.told.is_set() and time.monotonic() < give_up:
            with suppress(TimeoutError, BrokenPipeError):
                for _ in range(20):
                    number += 1
                    scene.gateway.send(encode_event(number, Item(ALIVE, {}))[0])
            time.sleep(0.2)
            with suppress(TimeoutError):
                scene.gateway.recv(1 << 16)
        assert ["does not read" in str(error) for error in scene.died] == [True]


@pytest.mark.promise("2.6")
def test_a_breach_waits_behind_no_message_of_the_gateway() -> None:
    """All that the supervisor has said is read first."""
    recorder = MemoryRecorder()
    scene = Watched(recorder, TIMEOUT_S)
    scene.send(*[attempt(10)] * 20)
    for number in range(20):
        ipc.send(scene.supervisor, {"counters": {"spoofed": number}})
    ipc.send(scene.supervisor, {"breach": ["a route"]})
    scene.watch.start()
    assert scene.told.wait(TIMEOUT_S)
    scene.close()
    assert [event.kind for event in recorder.events] == [Kind.RANGE_FAILED]


@pytest.mark.promise("2.6", "8.3")
@pytest.mark.parametrize("said", [{"done": 7}, {"refused": 7}, {"started": True}])
def test_answers_that_nobody_asked_for_do_not_pile_up(said: dict[str, Any]) -> None:
    """A supervisor that lies ends its range, and takes none of the owner's memory."""
    with watched(MemoryRecorder()) as scene:
        for _ in range(100):
            with suppress(ipc.ClosedError):
                ipc.send(scene.supervisor, said)
        assert scene.told.wait(5)
    assert [type(error) for error in scene.died] == [ProtocolViolation]


def test_what_was_counted_is_what_a_ledger_takes_at_most(tmp_path: Path) -> None:
    """Lines and files of the real one, in blocks."""
    run = tmp_path / "run"
    run.mkdir()
    data: dict[str, Any] = {"stand_in": "shop", "what": "publish", "range": "r-0"}
    texts: list[Any] = ["", "x" * 40_000, "\x00" * 9000, "\u20ac" * 9000]
    texts += [9e15, [1e-6] * 1000, 2**53 - 1]
    events = [Event(kind=Kind.NETWORK_ATTEMPT, data={**data, "more": text}) for text in texts]
    for size in (*range(1, 40), 1 << 18):
        content = (size.to_bytes(4, "big") * size)[:-1]
        digest, total_bytes = f"{size:064x}", 2**53 - 1
        kept = Body(name="b" * 64, content=content, total_bytes=total_bytes, sha256=digest)
        events.append(Event(kind=Kind.NETWORK_ATTEMPT, data=data, bodies=(kept,)))
    with LedgerWriter(run, load_or_make_key(tmp_path)) as writer:
        for event in events:
            writer.record(event)
        sizes = [file.stat().st_size for file in run.glob("bodies/*/*")]
        blocks = sum(-(-size // BLOCK_BYTES) for size in sizes)
        taken = (run / "ledger.jsonl").stat().st_size + blocks * BLOCK_BYTES
    assert len(sizes) == 40
    assert taken <= sum(map(cost_bytes, events)) < 2 * taken
