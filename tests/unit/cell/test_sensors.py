"""What a sensor's start, its touches and its failures leave on record."""

from __future__ import annotations

import pytest
from tests.fakes.vm import FakeFileWatch, staged

from belljar.cell.decoys import watch_files
from belljar.events import Event, Kind, Trust
from belljar.isolation.touches import Access
from belljar.ledger.schema import check_data

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]
FILES = {"/a": "aws", "/b": "ssh"}


@pytest.mark.promise("5.6")
async def test_a_sensor_that_fails_is_on_record_and_no_error() -> None:
    """When it can't start, when a file can't be watched, and when it ends before its time; that one
    began is on record first."""
    async with staged() as stage:
        async with watch_files(stage.cell, FILES, record=print) as problems:
            assert problems
        assert stage.last(Kind.SENSOR_FAILED).data["decoys"] == ["aws", "ssh"]
        assert Kind.SENSOR_STARTED not in stage.kinds()
        touches = list[Event]()
        stage.vm.watch = watch = FakeFileWatch({"/b": "No such file or directory"})
        async with watch_files(stage.cell, FILES, record=touches.append) as problems:
            assert len(problems) == 1
            assert stage.last(Kind.SENSOR_FAILED).data["decoys"] == ["ssh"]
            assert watch.on_access is not None
            assert watch.on_end is not None
            watch.on_access(Access(path="/a", operation="read", process="cat", pid=9, count=3))
            watch.on_end("the queue is gone")
        assert watch.is_closed
        assert stage.last(Kind.SENSOR_STARTED).data == {"sensor": "inotify", "decoys": ["aws"]}
        assert stage.last(Kind.SENSOR_FAILED).data["reason"] == "the queue is gone"
        stage.kinds()
    (event,) = touches
    check_data(event.kind, dict(event.data))
    seen = {"operation": "read", "process": "cat", "pid": 9, "count": 3}
    assert event.data == {"path": "/a", "decoy": "aws", **seen}
    assert (event.kind, event.trust) == (Kind.DECOY_TOUCHED, Trust.HOST_OBSERVED)
