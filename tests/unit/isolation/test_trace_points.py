"""Messages of runsc's trace, as recorded from runsc 20240729, and hostile ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.isolation.oci.trace import Point, dropped, read_point, trace_config

HEADER = bytes.fromhex("0800070000000000")
READ_HEADER = bytes.fromhex("0800090005000000")
CONTEXT = b"\n\x0f \x03B\x06/tmp/xJ\x03cat"
HERE = b" \x9c\xff\xff\xff\xff\xff\xff\xff\xff\x01"
OPENED = HEADER + CONTEXT + b"\x12\x02\x08\x03\x18\x81\x02" + HERE + b"2\x04cred8\xc1\x04@\xb6\x03"
READ = READ_HEADER + b"\n\x07 \x03J\x03cat\x12\x02\x08\x05 \x03*\x0b/tmp/x/cred0\x80\x80\x08"
FAILED = OPENED.replace(b"\x12\x02\x08\x03", b"\x12\x0d\x08" + b"\xff" * 9 + b"\x01\x10\x02")


@pytest.mark.promise("5.6")
def test_an_open_and_a_read_are_read() -> None:
    """A relative name is below the working directory; process and number come with it."""
    point = Point(operation="open", path=b"/tmp/x/cred", pid=3)
    assert read_point(OPENED) == point
    assert read_point(READ) == Point(operation="read", path=b"/tmp/x/cred", pid=3)
    assert dropped(OPENED) == 0
    assert dropped(READ) == 5


@pytest.mark.parametrize(
    "message",
    [
        b"",
        HEADER,
        HEADER[:7],
        FAILED,
        OPENED.replace(HEADER, bytes.fromhex("0800080000000000")),
        READ.replace(b"\x12\x02\x08\x05", b"\x12\x02\x08\x00"),
        OPENED.replace(b"8\xc1\x04", b"8\x80\x80\x80\x01"),
        OPENED[:-5],
        READ.replace(b"*\x0b", b"*\x7f"),
        HEADER + b"\x08\x01" * 65,
    ],
    ids=[
        "none",
        "empty",
        "cut header",
        "failed",
        "other",
        "end of file",
        "O_PATH",
        "cut",
        "long",
        "many",
    ],
)
def test_what_is_no_access_is_none(message: bytes) -> None:
    """A call that failed, the end of a file, a descriptor that can't be read, and no message."""
    assert read_point(message) is None


@pytest.mark.promise("5.6")
@settings(max_examples=300)
@given(st.sampled_from([HEADER, READ_HEADER, OPENED, READ]), st.binary(max_size=300))
def test_hostile_messages(start: bytes, rest: bytes) -> None:
    """Whatever is in it: a point or none, and nothing raised."""
    for message in (start + rest, start[: len(rest)] + rest):
        point = read_point(message)
        dropped(message)
        assert point is None or point.path


def test_only_calls_that_open_or_read_are_asked_for() -> None:
    """Each costs the cell time; none of them waits for a reader for long."""
    session = trace_config("/run/t")["trace_session"]
    names = [point["name"] for point in session["points"]]
    assert all(name.endswith("/exit") for name in names)
    assert len(names) == len(set(names)) == 8
    assert session["sinks"][0]["config"]["endpoint"] == "/run/t"
