"""What the supervisor reads of a connection's first segment, and sends again."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.supervisor.cell_dialler import checksum, parse_first

CLIENT, TARGET = "10.9.1.2", "10.9.1.3"


def packet(options: bytes = b"", payload: bytes = b"", *, summed: int = 0) -> bytes:
    """A SYN from the client; its checksum may be anything."""
    tcp = struct.pack("!HHIIBBHHH", 4000, 80, 7, 0, (5 + len(options) // 4) << 4, 2, 100, summed, 0)
    size = 20 + len(tcp) + len(options) + len(payload)
    head = struct.pack("!BBHHHBBH", 0x45, 0, size, 1, 0, 64, 6, 0)
    ends = socket.inet_aton(CLIENT) + socket.inet_aton(TARGET)
    return head + ends + tcp + options + payload


@pytest.mark.promise("5.4")
@given(
    st.sampled_from([b"", b"\x02\x04\x05\xb4", b"\x01" * 40]),
    st.binary(max_size=60),
    st.integers(0, 0xFFFF),
)
def test_a_first_segment_is_sent_again_without_data_and_with_its_checksum(
    options: bytes, payload: bytes, summed: int
) -> None:
    """Its ends, number and options are the cell's. Data is left out: the cell sends it again."""
    found = parse_first(packet(options, payload, summed=summed))
    assert found is not None
    assert (found.client, found.target, found.sequence) == ((CLIENT, 4000), (TARGET, 80), 7)
    ip, tcp = found.packet[:20], found.packet[20:]
    assert int.from_bytes(ip[2:4], "big") == len(found.packet) == 40 + len(options)
    assert tcp[20:] == options
    assert checksum(ip[12:] + struct.pack("!HH", 6, len(tcp)) + tcp) % 0xFFFF == 0


@given(st.binary(max_size=128), st.integers(0, 128))
def test_anything_can_be_read(garbage: bytes, cut: int) -> None:
    """A packet without a whole header is none; no other fails."""
    for data in (garbage, packet(b"\x01" * 8, b"x" * 20)[:cut], b"\x45" + garbage):
        found = parse_first(data)
        assert found is None or len(found.packet) <= len(data)
