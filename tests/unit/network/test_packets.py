"""The packet record: bounded, in the order of time; what cells send is whole or counted."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.pcapng import IN, OUT, packets

from belljar.network.packets import MIN_BYTES, SNAP_BYTES, PacketFile, put_tag_back, tcp_part

HEADERS_BYTES = 136


def add(record: PacketFile, time_ns: int, frame: bytes) -> None:
    """One frame; the range sends those with an odd time."""
    record.room[: len(frame)] = frame
    record.keep(time_ns, len(frame), is_sent=bool(time_ns & 1))


@pytest.mark.promise("5.4")
@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(34, 65536), st.booleans()), max_size=60))
def test_what_cells_send_is_whole_or_counted(
    tmp_path_factory: pytest.TempPathFactory, frames: list[tuple[int, bool]]
) -> None:
    """However much comes: within the bound, in the order of time."""
    path = tmp_path_factory.mktemp("record") / "packets"
    record = PacketFile(os.open(path, os.O_RDWR | os.O_CREAT), MIN_BYTES)
    sent = {at * 2 + is_ours: bytes([at]) * size for at, (size, is_ours) in enumerate(frames, 1)}
    for time_ns, frame in sent.items():
        add(record, time_ns, frame)
    record.flush()
    assert path.stat().st_size <= MIN_BYTES
    kept = {time_ns: (frame, way) for time_ns, frame, way in packets(path.read_bytes())}
    assert list(kept) == sorted(kept)
    for time_ns, (frame, way) in kept.items():
        assert way == (OUT if time_ns & 1 else IN)
        whole = sent[time_ns]
        assert frame == whole or (way == OUT and frame == whole[:HEADERS_BYTES])
    cells = {time_ns for time_ns in sent if not time_ns & 1}
    assert record.dropped_packets == len(cells - kept.keys())
    ours = {time_ns: frame for time_ns, frame in sent.items() if time_ns & 1}
    whole_ones = [at for at, (frame, _) in kept.items() if ours.get(at) == frame]
    assert record.cut_packets == len(ours) - len(whole_ones)
    assert record.packets == len(frames)
    fits = sum(len(frame) + 64 for frame in sent.values()) < MIN_BYTES // 2
    assert not fits or {time_ns: frame for time_ns, (frame, _) in kept.items()} == sent


@pytest.mark.promise("5.4")
def test_a_frame_beyond_what_is_kept_is_counted(tmp_path: Path) -> None:
    """A cell that may set up its device sends frames of 500 KiB: what is cut off is missing."""
    record = PacketFile(os.open(tmp_path / "packets", os.O_RDWR | os.O_CREAT), MIN_BYTES)
    for length in (SNAP_BYTES, SNAP_BYTES + 1):
        record.keep(2, length, is_sent=False)
    assert (record.packets, record.dropped_packets, record.cut_packets) == (2, 1, 0)


def tcp(flags: int, source: int, size: int = 0, to: int = 0) -> bytes:
    ports = source.to_bytes(2, "big") + to.to_bytes(2, "big")
    ip = b"\x45".ljust(9) + b"\x06".ljust(11)
    return (
        bytes(12) + b"\x08\x00" + ip + ports + bytes(8) + b"\x50" + bytes([flags]) + bytes(size + 6)
    )


def segment(payload: bytes) -> bytes:
    return tcp(0, 0) + payload


ANSWER = segment(b"answer".ljust(60_000))
HELLO = segment(b"\x16\x03\x03".ljust(1400))
FLIGHT = b"\x16\x03\x03" + bytes(range(256)) * 5


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    ("flight", "answers"),
    [
        ([HELLO], [ANSWER]),
        # What a gateway sends behind it is an answer, however small its pieces are
        ([segment(b"\x16\x03\x03".ljust(3000)), segment(bytes(1096))], [segment(bytes(1000))] * 2),
        # A cell chooses how large the segments are
        *(
            ([segment(FLIGHT[:first]), segment(FLIGHT[first:])], [segment(bytes(6000))])
            for first in (1, 50, 76)
        ),
    ],
)
def test_the_gateways_part_in_a_handshake_is_evidence(
    tmp_path: Path, flight: list[bytes], answers: list[bytes]
) -> None:
    """Without the server's hello no secret decrypts what the cell sent."""
    path = tmp_path / "packets"
    record = PacketFile(os.open(path, os.O_RDWR | os.O_CREAT), MIN_BYTES)
    for at, frame in enumerate([*[ANSWER] * 7, *flight, *answers]):
        add(record, 1 + 2 * at, frame)
    record.flush()
    kept = [frame for _, frame, _ in packets(path.read_bytes())]
    assert kept[7:] == [*flight, *(answer[:HEADERS_BYTES] for answer in answers)]
    assert record.dropped_packets == 0
    while not record.dropped_packets:
        add(record, 99, HELLO)
    assert path.stat().st_size <= MIN_BYTES


@given(st.binary(max_size=200))
def test_any_frame_is_looked_at(frame: bytes) -> None:
    """No length of a frame or of its headers is an error."""
    for head in (b"".ljust(12) + b"\x08\x00" + frame, frame):
        assert tcp_part(memoryview(head), len(head))[1] in (True, False)


@pytest.mark.promise("5.4")
def test_each_answered_connection_is_told_once(tmp_path: Path) -> None:
    """By its first byte and by more than a handshake; a repetition behind its end is none. A
    reset hides nothing."""
    record = PacketFile(os.open(tmp_path / "packets", os.O_RDWR | os.O_CREAT), MIN_BYTES)
    syn_ack, ack, fin = 0x12, 0x10, 0x11

    def told(flags: int, size: int) -> list[bool]:
        add(record, 1, tcp(flags, 0, size))
        add(record, 2, tcp(flags, 0, size))  # a cell's own
        found = [is_long for _, is_long in record.answered]
        record.answered.clear()
        return found

    assert [told(syn_ack, 0), told(ack, 0), told(ack, 5), told(ack, 5)] == [[], [], [False], []]
    assert [told(ack, 60_000), told(ack, 60_000), told(ack, 60_000)] == [[], [True], []]
    assert [told(fin, 0), told(ack, 5)] == [[], []]
    assert [told(syn_ack, 0), told(ack, 5)] == [[], [False]]
    # The rules refuse a second SYN of an open connection by a reset, and it goes on
    seen = [told(flags, size) for flags, size in ((0x14, 0), (ack, 60_000), (ack, 60_000))]
    assert seen == [[], [], [True]]
    datagram = bytes(12) + b"\x08\x00\x45".ljust(11) + b"\x11"
    for time_ns, frame in enumerate((datagram, datagram, datagram[:23])):
        add(record, time_ns, frame)
    assert record.datagrams == 1


def test_what_cannot_be_written_is_an_error() -> None:
    """No frame goes unrecorded without an error."""
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match=r"No space left|Invalid argument"):
        PacketFile(full, MIN_BYTES)
    os.close(full)


def test_connections_that_cells_reset_crowd_out_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle one between cells goes on behind a scan, and is not told of again."""
    monkeypatch.setattr("belljar.network.packets._MAX_ANSWERED", 8)
    record = PacketFile(os.open(tmp_path / "packets", os.O_RDWR | os.O_CREAT), MIN_BYTES)
    add(record, 1, tcp(0x10, 22, 5))
    for port in range(1000, 1020):
        add(record, 1, tcp(0x10, port, 5))
        add(record, 2, tcp(0x04, 0, to=port))
    record.answered.clear()
    add(record, 1, tcp(0x10, 22, 5))
    assert record.answered == []


@pytest.mark.promise("5.4")
def test_a_vlan_tag_is_part_of_the_frame() -> None:
    """The kernel tells it beside the frame."""
    frame, tag = bytes(range(12)) + b"\x88\xb5payload", b"\x81\x00\xa0\x05"
    room = memoryview(bytearray(64))
    room[: len(frame)] = frame
    auxdata = struct.pack("=IIIHHHH", 1 << 4 | 1 << 6, 0, 0, 0, 0, 0xA005, 0x8100)
    assert put_tag_back(room, len(frame), bytes(20)) == 0
    assert put_tag_back(room, len(frame), auxdata) == 4
    assert bytes(room[: len(frame) + 4]) == frame[:12] + tag + frame[12:]
