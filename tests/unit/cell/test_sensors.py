"""What a sensor's start, its touches and its failures leave on record."""

from __future__ import annotations

import pytest
from tests.fakes.vm import FakeFileWatch, staged

from belljar.cell.decoys import Touch, watch_files
from belljar.events import Kind, Trust
from belljar.isolation.touches import Access

pytestmark = pytest.mark.anyio
FILES = {"/a": "aws", "/b": "ssh"}


@pytest.mark.promise("5.6")
async def test_a_touch_names_its_decoy() -> None:
    """By the path that was given; the start is on record first, and what isn't watched."""
    touches = list[Touch]()
    async with staged() as stage:
        stage.vm.watch = watch = FakeFileWatch({"/b": "No such file or directory"})
        async with watch_files(stage.cell, FILES, on_touch=touches.append) as sensor:
            assert watch.on_access is not None
            watch.on_access(Access(path="/a", operation="read", process="cat", pid=9, count=3))
        assert watch.is_closed
        assert len(sensor.problems) == 1
        assert stage.last(Kind.SENSOR_FAILED).data["decoys"] == ["ssh"]
        assert stage.last(Kind.SENSOR_STARTED).data == {"sensor": "fanotify", "decoys": ["aws"]}
        stage.kinds()
    trust = Trust.HOST_OBSERVED
    assert touches == [
        Touch(path="/a", decoy="aws", operation="read", process="cat", pid=9, trust=trust, count=3)
    ]


@pytest.mark.promise("5.6")
async def test_a_sensor_that_fails_is_on_record_and_no_error() -> None:
    """When it can't start, and when it ends before its time."""
    async with staged() as stage:
        async with watch_files(stage.cell, FILES, on_touch=print) as sensor:
            assert sensor.problems
        assert stage.last(Kind.SENSOR_FAILED).data["decoys"] == ["aws", "ssh"]
        assert Kind.SENSOR_STARTED not in stage.kinds()
        stage.vm.watch = watch = FakeFileWatch({})
        async with watch_files(stage.cell, FILES, on_touch=print):
            assert watch.on_end is not None
            watch.on_end("the queue is gone")
        assert stage.last(Kind.SENSOR_FAILED).data["reason"] == "the queue is gone"
        stage.kinds()


async def test_nothing_to_watch_starts_nothing() -> None:
    """Without files there is no sensor and no event."""
    async with staged() as stage:
        async with watch_files(stage.cell, {}, on_touch=print) as sensor:
            assert not sensor.problems
        assert stage.kinds() == []
