"""What a sensor's start, its touches and its failures leave on record."""

from __future__ import annotations

import pytest
from tests.fakes.vm import FakeFileWatch, staged

from belljar.cell.decoys import watch_files
from belljar.events import Event, Kind, Trust
from belljar.isolation.touches import Access

pytestmark = pytest.mark.anyio
FILES = {"/a": "aws", "/b": "ssh"}


@pytest.mark.promise("5.6")
async def test_a_touch_names_its_decoy() -> None:
    """By the path that was given; the start is on record first, and what isn't watched."""
    touches = list[Event]()
    async with staged() as stage:
        stage.vm.watch = watch = FakeFileWatch({"/b": "No such file or directory"})
        async with watch_files(stage.cell, FILES, record=touches.append) as problems:
            assert watch.on_access is not None
            watch.on_access(Access(path="/a", operation="read", process="cat", pid=9, count=3))
        assert watch.is_closed
        assert len(problems) == 1
        assert stage.last(Kind.SENSOR_FAILED).data["decoys"] == ["ssh"]
        assert stage.last(Kind.SENSOR_STARTED).data == {"sensor": "fanotify", "decoys": ["aws"]}
        stage.kinds()
    (event,) = touches
    assert (event.kind, event.trust) == (Kind.DECOY_TOUCHED, Trust.HOST_OBSERVED)
    assert event.data == {
        "path": "/a",
        "decoy": "aws",
        "operation": "read",
        "process": "cat",
        "pid": 9,
        "count": 3,
    }


@pytest.mark.promise("5.6")
async def test_a_sensor_that_fails_is_on_record_and_no_error() -> None:
    """When it can't start, and when it ends before its time."""
    async with staged() as stage:
        async with watch_files(stage.cell, FILES, record=print) as problems:
            assert problems
        assert stage.last(Kind.SENSOR_FAILED).data["decoys"] == ["aws", "ssh"]
        assert Kind.SENSOR_STARTED not in stage.kinds()
        stage.vm.watch = watch = FakeFileWatch({})
        async with watch_files(stage.cell, FILES, record=print):
            assert watch.on_end is not None
            watch.on_end("the queue is gone")
        assert stage.last(Kind.SENSOR_FAILED).data["reason"] == "the queue is gone"
        stage.kinds()
