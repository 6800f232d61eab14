"""Where a cell's user is at home, how old a decoy is, and what its sensor leaves on record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.vm import FakeFileWatch, staged

from belljar.cell.decoys import file_time, home_of, watch_files
from belljar.events import Event, Kind, Trust
from belljar.isolation.touches import Access
from belljar.ledger.schema import check_data

FILES = {"/a": "aws", "/b": "ssh"}
PASSWD = b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app/:/bin/sh\nbad:x:7:7::/home/../etc:/bin/sh\n"


@pytest.mark.parametrize(
    ("user", "home"),
    [
        ("0", "/root"),
        ("root", "/root"),
        ("app", "/home/app"),
        ("1000:1000", "/home/app"),
        ("bad", "/"),
        ("9", "/"),
    ],
)
def test_a_home_is_that_of_the_user(user: str, home: str) -> None:
    """By name or number; one that leads elsewhere counts as none."""
    assert home_of(PASSWD, user) == home


@given(st.binary(max_size=400), st.sampled_from(["0", "root", "app", "1"]))
def test_whatever_a_passwd_says_a_home_is_an_absolute_path(passwd: bytes, user: str) -> None:
    """Without steps upwards, and printable."""
    home = home_of(passwd, user)
    assert home.startswith("/")
    assert ".." not in home.split("/")
    assert home.isprintable()


@pytest.mark.promise("5.6")
@pytest.mark.parametrize("constant_s", [0, 1, 315_532_800])
def test_an_image_of_one_constant_time_has_decoys_of_that_time(constant_s: float) -> None:
    """Reproducible builds; an ordinary image is older than now, and a decoy older than it."""
    assert file_time(constant_s, 86_400) == constant_s
    assert file_time(1.7e9, 86_400) == 1.7e9 - 86_400


@pytest.mark.anyio
@pytest.mark.thorough_in("trio")
@pytest.mark.promise("5.6")
async def test_a_sensor_that_fails_is_on_record_and_no_error() -> None:
    """When it can't start, when a file can't be watched, and when it ends before its time."""
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
