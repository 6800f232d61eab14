"""The packet record: bounded, in the order of time, whole."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.gateway import layout
from tests.fakes.pcapng import IN, OUT, packets
from tests.unit.network.capture.test_accounting import ACK, SYN
from tests.unit.network.capture.test_accounting import frame as segment

from belljar.network.capture.accounting import Connection, Connections
from belljar.network.capture.packets import (
    HEADER,
    MIN_BYTES,
    PacketFiles,
    join,
    read_packets,
    sent_frames,
    with_frames,
)

GATEWAY, CELL = (
    bytes(map(int, end.split("."))) for end in (layout().resolver, layout().cells[0].address)
)


def files(
    directory: Path, max_bytes: int = MIN_BYTES, connections: Connections | None = None
) -> tuple[PacketFiles, list[Path]]:
    """A record in files of the directory."""
    paths = [directory / name for name in "abc"]
    fds = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for path in paths]
    return PacketFiles(fds, max_bytes, connections or Connections(layout())), paths


def add(record: PacketFiles, time_ns: int, frame: bytes) -> None:
    """One frame; the range sends those with an odd time."""
    record.room[: len(frame)] = frame
    record.keep(time_ns, len(frame), is_sent=bool(time_ns & 1))


def ours(size: int) -> bytes:
    """A frame of the gateway's."""
    return (bytes(12) + b"\x08\0\x45" + bytes(11) + GATEWAY + CELL).ljust(size, b"o")


@pytest.mark.promise("5.4")
@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(34, 65536), st.booleans()), max_size=60))
def test_what_only_it_has_is_kept_and_the_rest_is_counted(
    tmp_path_factory: pytest.TempPathFactory, frames: list[tuple[int, bool]]
) -> None:
    """However much comes: within the bound, none half, in the order of time, and kept and dropped
    are all. Evidence is dropped only when a quarter of the bound is full of it."""
    directory = tmp_path_factory.mktemp("record")
    record, paths = files(directory)
    sent = {}
    for at, (size, is_ours) in enumerate(frames, 1):
        time_ns = at * 2 + is_ours
        sent[time_ns] = ours(size) if is_ours else b"e" * size
        add(record, time_ns, sent[time_ns])
    record.flush()
    assert sum(path.stat().st_size for path in paths) <= MIN_BYTES
    join(*paths)
    written = list(packets(paths[0].read_bytes()))
    kept = {time_ns: frame for time_ns, frame, _ in written}
    assert all(way == (OUT if time_ns & 1 else IN) for time_ns, _, way in written)
    with paths[0].open("rb") as file:
        read = [(time_ns, rest[:size]) for time_ns, size, _, rest in read_packets(file)]
    assert read == list(kept.items())
    assert list(kept) == sorted(kept)
    assert kept.items() <= sent.items()
    assert record.packets == len(frames)
    assert record.dropped_packets == len(frames) - len(kept)
    lost = {time_ns for time_ns in sent.keys() - kept.keys() if not time_ns & 1}
    assert record.dropped_evidence == len(lost)
    assert not lost or sum(
        len(frame) + 47 for time_ns, frame in sent.items() if not time_ns & 1
    ) > MIN_BYTES // 4 - len(HEADER)
    assert not any(path.exists() for path in paths[1:])


def test_dropped_frames_are_their_connection_s(tmp_path: Path) -> None:
    """When a file is emptied its frames count against the connections that they belong to, once."""
    connections = Connections(layout())
    record, _ = files(tmp_path, connections=connections)
    add(record, 3, bytes(segment(flags=SYN | ACK, sent=True)))
    add(record, 4, bytes(segment(b"hello")))
    connection = connections.take(segment(b"hello"), sent=False)
    assert isinstance(connection, Connection)
    for at in range(3, 40):
        assert connection.dropped in {0, 1}
        add(record, 2 * at + 1, ours(60_000))
    assert connection.dropped == 1
    assert record.dropped_evidence == 0
    assert record.dropped_packets > 10


def test_a_half_record_is_left_out(tmp_path: Path) -> None:
    """A supervisor that was killed while it wrote leaves files that open."""
    record, paths = files(tmp_path)
    add(record, 1, ours(50))
    add(record, 2, b"whole")
    record.flush()
    for path in paths:
        with path.open("ab") as file:
            file.write(paths[0].read_bytes()[60:66])
    join(*paths)
    assert [time_ns for time_ns, *_ in packets(paths[0].read_bytes())] == [1, 2]
    assert paths[0].stat().st_size == len(HEADER) + 2 * 44 + 52 + 8


def test_a_record_is_read_wherever_it_was_cut_off(tmp_path: Path) -> None:
    """All packets before the cut, whatever their padding; without a whole header it is none."""
    record, paths = files(tmp_path)
    for size in (34, 35, 36, 37):
        add(record, 2 * size + 1, ours(size))
    record.flush()
    data = paths[0].read_bytes()
    ends = list(itertools.accumulate((80, 80, 80, 84), initial=len(HEADER)))[1:]
    assert ends[-1] == len(data)
    for cut in range(len(data) + 1):
        paths[0].write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        assert with_frames(paths[:1]) == tuple(paths[:1] * bool(whole))
        with paths[0].open("rb") as file:
            if cut < len(HEADER):
                with pytest.raises(ValueError, match="no packet record"):
                    list(sent_frames(file))
            else:
                assert [len(frame) for _, frame in sent_frames(file)] == [34, 35, 36, 37][:whole]


NO_ROOM = """
import resource, signal, sys
from pathlib import Path
from belljar.network.capture.packets import join
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
try:
    join(*map(Path, sys.argv[2:]))
except OSError:
    print("no room")
"""


def test_where_there_is_no_room_to_join_all_files_stay_whole(tmp_path: Path) -> None:
    """As they were, however much could be written, and with nothing beside them."""
    record, paths = files(tmp_path)
    for at in range(1, 6):  # the first is full after three, and emptied for none
        add(record, 2 * at + 1, ours(60_000))
    add(record, 2, b"evidence")
    record.flush()
    before = [path.read_bytes() for path in paths]
    assert with_frames(paths) == tuple(paths)
    words = [sys.executable, "-c", NO_ROOM, str(len(before[0]) + 1000), *map(str, paths)]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "no room\n"
    assert [path.read_bytes() for path in paths] == before
    assert sorted(tmp_path.iterdir()) == paths


def test_a_file_without_a_frame_is_none(tmp_path: Path) -> None:
    """Nor is one that is not there."""
    _, paths = files(tmp_path)
    assert with_frames([*paths, tmp_path / "none"]) == ()


def test_what_cannot_be_written_is_an_error() -> None:
    """No frame goes unrecorded without an error."""
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match=r"No space left|Invalid argument"):
        PacketFiles([full] * 3, MIN_BYTES, Connections(layout()))
    os.close(full)
