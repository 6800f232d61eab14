"""The packet record: bounded, in the order of time, whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.packets import HEADER, MIN_BYTES, PacketFiles, in_order, join, records


def files(directory: Path, max_bytes: int = MIN_BYTES) -> tuple[PacketFiles, Path, Path]:
    """A record in two files of the directory."""
    first, second = directory / "a", directory / "b"
    fds = tuple(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for path in (first, second))
    return PacketFiles((fds[0], fds[1]), max_bytes), first, second


def add(record: PacketFiles, time_ns: int, frame: bytes) -> None:
    """One frame."""
    record.room()[: len(frame)] = frame
    record.keep(time_ns, len(frame))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 65536), max_size=40))
def test_the_newest_are_kept_and_the_rest_is_counted(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    """However much comes: within the bound, none half, the newest last, and kept and dropped are all."""
    directory = tmp_path_factory.mktemp("record")
    record, first, second = files(directory)
    for time_ns, size in enumerate(sizes, 1):
        add(record, time_ns, time_ns.to_bytes(1, "big") * size)
    record.flush()
    assert first.stat().st_size + second.stat().st_size <= MIN_BYTES
    join(first, second)
    data = first.read_bytes()
    times = [time_ns for time_ns, end in records(first) if data[:end].endswith(bytes([time_ns]) * sizes[time_ns - 1])]
    assert times == list(range(len(sizes) - len(times) + 1, len(sizes) + 1))
    assert record.packets == len(sizes)
    assert record.dropped_packets == len(sizes) - len(times)
    assert first.read_bytes().startswith(HEADER)
    assert not second.exists()


def test_a_half_record_is_left_out(tmp_path: Path) -> None:
    """A keeper that was killed while it wrote leaves a file that opens."""
    record, first, second = files(tmp_path)
    add(record, 1, b"whole")
    record.flush()
    whole = first.read_bytes()
    with first.open("ab") as file:
        file.write(whole[24:30])
    join(first, second)
    assert first.read_bytes() == whole


NO_ROOM = """
import resource, signal, sys
from pathlib import Path
from belljar.network.packets import join
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
try:
    join(Path(sys.argv[2]), Path(sys.argv[3]))
except OSError:
    print("no room")
"""


def test_where_there_is_no_room_to_join_both_files_stay_whole(tmp_path: Path) -> None:
    """As they were, however much could be written; and they are known by their order of time."""
    record, first, second = files(tmp_path)
    for time_ns in range(1, 5):  # the first is full after two, and emptied for none
        add(record, time_ns, bytes(60_000))
    record.flush()
    before = first.read_bytes(), second.read_bytes()
    words = [sys.executable, "-c", NO_ROOM, str(len(before[0]) + 1000), str(first), str(second)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, env={"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.stdout == "no room\n"
    assert (first.read_bytes(), second.read_bytes()) == before
    assert in_order(second, first) == in_order(first, second) == (first, second)
    assert [time for path in (first, second) for time, _ in records(path)] == [1, 2, 3, 4]


def test_a_file_without_a_frame_is_none(tmp_path: Path) -> None:
    """Nor is one that is not there."""
    _, first, second = files(tmp_path)
    assert in_order(first, second) == in_order(first, tmp_path / "none") == ()


def test_what_cannot_be_written_is_an_error() -> None:
    """Nothing goes unrecorded in silence."""
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match=r"No space left|Invalid argument"):
        PacketFiles((full, full), MIN_BYTES)
    os.close(full)
