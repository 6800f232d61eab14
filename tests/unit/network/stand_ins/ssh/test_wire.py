"""Packets and fields."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.ssh.wire import (
    MAX_PACKET_BYTES,
    Ctr,
    Fields,
    Gcm,
    Malformed,
    PacketCipher,
    PacketReader,
    PacketWriter,
    mpint,
    number,
    text,
)

Make = Callable[[], PacketCipher]
CIPHERS: list[Make] = [
    PacketCipher,
    lambda: Gcm(bytes(16), bytes(12)),
    lambda: Ctr(bytes(32), bytes(16), bytes(32), "sha256"),
]
PAYLOADS = st.lists(st.binary(min_size=1, max_size=300), max_size=5)


@pytest.mark.parametrize("make", CIPHERS)
@given(payloads=PAYLOADS, pieces=st.integers(1, 50))
def test_what_is_written_is_read(make: Make, payloads: list[bytes], pieces: int) -> None:
    """However it is cut."""
    writer, reader, found = PacketWriter(os.urandom), PacketReader(), list[bytes]()
    writer.cipher, reader.cipher = make(), make()
    data = b"".join(map(writer.packet, payloads))
    for at in range(0, len(data), pieces):
        reader.feed(data[at : at + pieces])
        while (payload := reader.next()) is not None:
            found.append(payload)
    assert found == payloads
    assert reader.rest == b""


@pytest.mark.parametrize("make", CIPHERS)
@given(data=st.binary(max_size=400))
def test_any_bytes_end_in_payloads_or_a_refusal(make: Make, data: bytes) -> None:
    """Nothing else is raised, and no more is waited for than a packet may have."""
    reader = PacketReader()
    reader.cipher = make()
    reader.feed(data)
    try:
        while reader.next() is not None:
            pass
    except Malformed:
        return
    assert len(reader.rest) <= MAX_PACKET_BYTES + 68


@pytest.mark.parametrize("make", CIPHERS[1:])
@given(at=st.integers(0, 51), change=st.integers(1, 255))
def test_a_changed_packet_is_refused(make: Make, at: int, change: int) -> None:
    """Whatever is changed of it."""
    writer, reader = PacketWriter(os.urandom), PacketReader()
    writer.cipher, reader.cipher = make(), make()
    packet = bytearray(writer.packet(b"x" * 16))
    packet[at % len(packet)] ^= change
    reader.feed(bytes(packet))
    try:
        found = reader.next()
    except Malformed:
        return
    assert found is None, "with a longer length it waits for more"


def test_a_length_out_of_bounds_is_refused_at_once() -> None:
    """Before its bytes come."""
    reader = PacketReader()
    reader.feed(number(MAX_PACKET_BYTES + 1))
    with pytest.raises(Malformed):
        reader.next()


@given(st.binary(max_size=60), st.binary(max_size=20))
def test_fields_are_read_or_refused(value: bytes, noise: bytes) -> None:
    """What was written comes back; noise is never read beyond its end."""
    assert Fields(text(value) + noise).text() == value
    fields = Fields(noise)
    try:
        while True:
            fields.flag()
            fields.text()
            fields.names()
    except Malformed:
        pass


@given(st.integers(0, 1 << 256))
def test_a_number_has_no_sign(value: int) -> None:
    """RFC 4251, 5: two's complement, and no byte too many."""
    body = Fields(mpint(value)).text()
    assert int.from_bytes(body, "big", signed=True) == value
    assert body[:2] != b"\0\0"
    assert value == 0 or len(body) == value.bit_length() // 8 + 1
