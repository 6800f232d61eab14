"""A range's lifetime, where it needs no network."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import anyio
import pytest
from tests.fakes.recorder import MemoryRecorder
from tests.unit.network.owner.test_watch import watched

from belljar.errors import CellError, HostError
from belljar.network.owner.dial import Reach
from belljar.network.owner.processes import Child, RangeSpec, fork_pair
from belljar.network.owner.range import NetworkRange
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan, UpstreamPlan
from belljar.store.journal import own_entry


@pytest.mark.anyio
async def test_one_that_was_not_begun_is_not_ended(tmp_path: Path) -> None:
    """Whoever is cancelled before has no range on record: neither its opening nor its end."""
    network, recorder = NetworkPlan(), MemoryRecorder()
    layout = lay_out(network, ["agent"], random_bytes=bytes(16), avoid=[])
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with NetworkRange(
            RangeSpec(network=network, layout=layout, directory=tmp_path),
            recorder=recorder,
            home=tmp_path,
        ):
            raise AssertionError("it was opened")
    assert scope.cancelled_caught
    assert recorder.events == []


def test_no_process_outlives_documents_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No journal entry names them by then, so that no search would find them."""

    def none() -> str:
        raise HostError("no authorities")

    upstream = UpstreamPlan(
        host="a.example",
        ports=(443,),
        methods=("GET",),
        budget_bytes=1,
        reason="",
        run_budget_bytes=1,
    )
    network = NetworkPlan(upstreams=(upstream,))
    layout = lay_out(network, ["agent"], random_bytes=bytes(16), avoid=[])
    reach = Reach(read_authorities=none)
    spec = RangeSpec(network=network, layout=layout, directory=tmp_path, reach=reach)
    children = [Mock(spec=Child, pidfd=os.open(os.devnull, os.O_RDONLY)) for _ in range(2)]
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/nft")
    with pytest.raises(HostError, match="no authorities"):
        fork_pair(
            Mock(fork=Mock(return_value=children)), spec, [], supervisor_uid=None, gateway_uid=None
        )
    for child in children:
        assert [name for name, *_ in child.method_calls] == ["kill", "wait_ended"]


def test_a_process_that_does_not_end_is_no_proven_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may hold one (an uninterruptible sleep): the range is over in time, has failed,
    and its end is not proven; what its thread still reads from stays open."""
    monkeypatch.setattr("belljar.network.owner.range.END_DEADLINE_S", 0.05)
    recorder = MemoryRecorder()
    with watched(recorder) as scene:

        class Held(NetworkRange):
            """One whose processes are a scene's."""

            def _make(self) -> None:
                self._processes, self._watch = scene.processes, scene.watch
                self._entry = own_entry(self.id, "range")

        network = NetworkPlan()
        layout = lay_out(network, ["agent"], random_bytes=bytes(16), avoid=[])
        spec = RangeSpec(network=network, layout=layout, directory=tmp_path)
        made = Held(spec, recorder=recorder, home=tmp_path)
        made.make()
        destruction = anyio.run(made.destroy)
        for fd in (scene.processes.stderr, scene.children[0].pidfd, scene.children[1].pidfd):
            os.fstat(fd)
    assert (destruction.clean, destruction.survivors) == (False, ())
    with pytest.raises(HostError, match="could not be proven"):
        destruction.raise_if_unclean("its end", where="range")
    assert [str(event.kind) for event in recorder.events][-2:] == [
        "range.failed",
        "range.destroyed",
    ]
    assert [type(error) for error in scene.died] == [CellError]
