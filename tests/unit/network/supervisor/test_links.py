"""A namespace's devices, judged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from belljar.network.supervisor.links import (
    MAX_BYTES_PER_S,
    LivePort,
    line_bytes_per_s,
    unexpected_devices,
)
from belljar.network.supervisor.netlink import Link

PORTS = {3: LivePort(cell="agent", device="p0", address="10.1.2.3", index=3, peer=(2, 0))}
LOOPBACK = Link(index=1, name="lo", is_up=True)


def test_loopback_ports_and_what_is_down_are_no_strangers() -> None:
    """The kernel makes some devices itself, which are down."""
    listed = [
        LOOPBACK,
        Link(index=2, name="sit0", is_up=False),
        Link(index=3, name="p0", is_up=True, peer=(2, 0)),
    ]
    assert list(unexpected_devices(listed, PORTS)) == []


def test_a_namespace_that_ends_is_no_elsewhere() -> None:
    """Its number goes before its devices do, and one of two devices before the other."""
    for peer in ((2, -1), None):
        assert (
            list(unexpected_devices([Link(index=3, name="p0", is_up=True, peer=peer)], PORTS)) == []
        )


def test_another_device_and_another_end_are_named() -> None:
    """One that is up and no port, whatever it is called; a port whose other end is another
    device's, in another namespace, or here."""
    assert list(unexpected_devices([LOOPBACK, Link(index=4, name="p0", is_up=True)], PORTS)) == [
        "a device is up that is no cell's port: p0"
    ]
    for peer in ((4, 0), (2, 1), (2, None)):
        assert list(
            unexpected_devices([Link(index=3, name="p0", is_up=False, peer=peer)], PORTS)
        ) == ["the port of the cell agent leads elsewhere"]


@given(st.integers(1, 1 << 30), st.integers(0, 250))
def test_all_ports_together_are_slower_than_the_record(buffer_bytes: int, ports: int) -> None:
    """None is faster than the others; all together fill the buffer in an eighth of a second at the
    least, each frame coming and going; a large one makes none faster."""
    together = line_bytes_per_s(buffer_bytes, ports) * max(1, ports)
    assert together <= MAX_BYTES_PER_S
    assert 2 * together / 8 <= buffer_bytes
    assert together > min(MAX_BYTES_PER_S, 4 * buffer_bytes) - max(1, ports)
