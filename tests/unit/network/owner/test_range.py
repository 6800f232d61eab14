"""A range's lifetime, where it needs no network."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest
from tests.fakes.recorder import MemoryRecorder
from tests.unit.network.owner.test_watch import watched

from belljar.errors import CellError, HostError
from belljar.network.owner.processes import RangeSpec
from belljar.network.owner.range import NetworkRange
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan
from belljar.store.journal import own_entry


def test_a_process_that_does_not_end_is_no_proven_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may hold one (an uninterruptible sleep)."""
    monkeypatch.setattr("belljar.network.owner.range.END_DEADLINE_S", 0.05)
    recorder = MemoryRecorder()
    with watched(recorder) as scene:

        class Held(NetworkRange):
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
