"""The prepared parent of ranges' processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.fakes.recorder import MemoryRecorder
from tests.integration.processes import wait_for
from tests.integration.range_programs.scene import PLAIN
from tests.integration.remains import below

from belljar.errors import CellError, HostError, LedgerError
from belljar.events import Event, Kind
from belljar.network import ipc
from belljar.network.owner.processes import ForkServer, RangeSpec, started_fork_server
from belljar.network.owner.range import NetworkRange
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan


@contextmanager
def ready(home: Path) -> Iterator[ForkServer]:
    with started_fork_server(home, PLAIN) as started:
        started.wait_ready()
        yield started


@pytest.fixture
def fork_server(tmp_path: Path) -> Iterator[ForkServer]:
    with ready(tmp_path) as made:
        yield made


@pytest.fixture
def given() -> Iterator[list[int]]:
    """What a child is handed, by somebody who never says go."""
    ours, theirs = ipc.pair()
    with ours, theirs, closing(os.fdopen(os.memfd_create("rules", os.MFD_CLOEXEC))) as document:
        yield [theirs.fileno(), theirs.fileno(), document.fileno(), document.fileno()]


def children(fork_server: ForkServer) -> set[int]:
    pid = pid_of(fork_server)
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def pid_of(fork_server: ForkServer) -> int:
    assert fork_server.process is not None
    return fork_server.process.pid


def test_what_was_answered_to_nobody_is_taken_for_no_other_answer(
    fork_server: ForkServer, given: list[int]
) -> None:
    """A fork that nobody waited for leaves an answer behind."""
    message = {"number": 0, "fork": {"gateway": len(given)}, "imports": []}
    ipc.send(fork_server._socket, message, given)
    made = fork_server.fork({"gateway": given, "supervisor": given})
    for child in made:
        child.kill()
        assert child.wait_ended(30)
        os.close(child.pidfd)

    def have_ended() -> bool:
        fork_server.how_ended(made[0])  # which takes in who has ended
        return not children(fork_server)

    wait_for(have_ended, "no child of another's", within_s=20)


def test_what_can_not_be_imported_ends_no_other_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[int]
) -> None:
    """A broken library fails the range that wants it."""
    (tmp_path / "broken.py").write_text("raise ImportError('too old a library')")
    monkeypatch.syspath_prepend(tmp_path)
    with ready(tmp_path) as fork_server:
        with pytest.raises(CellError, match="too old a library"):
            fork_server.fork({"gateway": given}, ["broken"])
        (child,) = fork_server.fork({"gateway": given})
        child.kill()
        assert child.wait_ended(30)
        os.close(child.pidfd)


class Full(MemoryRecorder):
    """A ledger that has no room for a range's end."""

    def record(self, event: Event) -> int:
        if event.kind is Kind.RANGE_DESTROYING:
            raise LedgerError("no room")
        return super().record(event)


@pytest.mark.anyio
async def test_a_range_whose_end_can_not_be_recorded_leaves_none(tmp_path: Path) -> None:
    """It is ended all the same with the last range."""
    before = set(below(os.getpid()))
    network = NetworkPlan()
    layout = lay_out(network, ["agent"], random_bytes=bytes(16), avoid=[])
    spec = RangeSpec(network=network, layout=layout, directory=tmp_path / "none")
    with pytest.raises(LedgerError):
        async with NetworkRange(spec, recorder=Full(), home=tmp_path):
            pass
    recorder = MemoryRecorder()
    with pytest.raises(HostError, match="the packet record can't be made"):
        async with NetworkRange(spec, recorder=recorder, home=tmp_path):
            pytest.fail("it opened")
    assert Kind.RANGE_OPENED not in recorder.kinds()
    assert set(below(os.getpid())) == before
