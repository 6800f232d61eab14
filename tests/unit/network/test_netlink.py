"""The kernel's messages: what is sent is what the headers say, and an answer of any bytes is read."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network import netlink


def test_a_neighbour_for_ever() -> None:
    """RTM_NEWNEIGH of linux/neighbour.h: permanent, exclusive, address and MAC."""
    sent = netlink.neighbour(7, "10.1.2.3", "02:00:00:00:00:01")
    length, kind, flags = struct.unpack_from("=IHH", sent)
    assert (length, kind, flags) == (len(sent), 28, 0x1 | 0x4 | 0x200 | 0x400)
    family, index, state = struct.unpack_from("=BxxxiH", sent, 16)
    assert (family, index, state) == (2, 7, 0x80)
    assert dict(netlink.attributes(sent[28:])) == {1: bytes((10, 1, 2, 3)), 2: bytes((2, 0, 0, 0, 0, 1))}


def test_a_bad_mac_is_refused() -> None:
    """Not sent and hoped for."""
    with pytest.raises(ValueError, match="is no MAC"):
        netlink.neighbour(1, "10.0.0.1", "02:00")


def test_the_kernels_refusal_is_an_error() -> None:
    """Minus an errno is that error; zero is an acknowledgement."""
    netlink.raise_error(struct.pack("=i", 0))
    with pytest.raises(FileExistsError):
        netlink.raise_error(struct.pack("=i", -17))


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_answer_is_read(reply: bytes) -> None:
    """Lengths that lie end the reading; nothing is raised, and nothing is read twice."""
    assert sum(len(payload) for _, payload in netlink.messages(reply)) <= len(reply)
    assert sum(len(value) for _, value in netlink.attributes(reply)) <= len(reply)
