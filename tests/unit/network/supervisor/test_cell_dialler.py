"""What the supervisor reads of a connection's first segment, and sends again."""

from __future__ import annotations

import errno
import select
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network import ipc
from belljar.network.supervisor.cell_dialler import (
    MAX_WAITING_OF_CLIENT,
    CellDialler,
    checksum,
    parse_first,
)

CLIENT, TARGET = "10.9.1.2", "10.9.1.3"


def packet(
    options: bytes = b"",
    payload: bytes = b"",
    *,
    summed: int = 0,
    client: tuple[str, int] = (CLIENT, 4000),
    target: tuple[str, int] = (TARGET, 80),
) -> bytes:
    """A SYN from the client; its checksum may be anything."""
    ports = client[1], target[1]
    tcp = struct.pack("!HHIIBBHHH", *ports, 7, 0, (5 + len(options) // 4) << 4, 2, 100, summed, 0)
    size = 20 + len(tcp) + len(options) + len(payload)
    head = struct.pack("!BBHHHBBH", 0x45, 0, size, 1, 0, 64, 6, 0)
    ends = socket.inet_aton(client[0]) + socket.inet_aton(target[0])
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


@pytest.mark.root
# A supervisor's sockets end with its process
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.promise("5.4")
def test_each_client_has_its_own_room_and_halves_are_connected_for_good() -> None:
    """Beyond its room a client's segment is not dialled; it comes again."""
    ours, theirs = ipc.pair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as server:
        target: tuple[str, int] = server.getsockname()
        dialler = CellDialler(ours)
        with pytest.raises(BrokenPipeError):  # a gateway leaves nothing with a supervisor
            socket.send_fds(theirs, [b"x"], [server.fileno()])
        for port in range(1000, 1000 + MAX_WAITING_OF_CLIENT + 6):
            dialler.begin(packet(client=("127.0.0.2", port), target=target))
        assert len(dialler.waiting) == MAX_WAITING_OF_CLIENT
        dialler.begin(packet(client=("127.0.0.3", 1000), target=target))
        *_, end = dialler.waiting
        select.select([], [end], [], 10)
        dialler.finish(end)
        message, (half,) = ipc.receive(theirs)
        assert message["client"] == ["127.0.0.3", 1000]
        with socket.socket(fileno=half) as handed_over:
            assert handed_over.connect_ex(target) == errno.EISCONN
        for waiting in dialler.waiting:
            waiting.close()
