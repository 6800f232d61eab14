"""The relay itself (`native/wire/`), fed by a hostile guest on one side and a hostile link on the
other: what may pass does so unchanged and in order, everything else is dropped and counted, and
whoever takes it over has two sockets and nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.integration.processes import capabilities, status_of
from tests.machine import PATIENCE_S

from belljar.package import program_path

pytestmark = [pytest.mark.root]
T = TypeVar("T")
CLONE_NEWNET = 0x40000000
SO_RCVBUFFORCE = 33
ALL_FRAMES = 0x0003
MTU, LEAST, MOST = 1500, 14, 1518
LARGE_MTU = 9000
TIMEOUT_S = float(PATIENCE_S)


def in_network_of(pid: int, work: Callable[[], T]) -> T:
    """Done by a thread that goes there; a socket that it makes stays there."""
    done: list[T] = []

    def go() -> None:
        with Path(f"/proc/{pid}/ns/net").open() as namespace:
            if ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError("setns")
        done.append(work())

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    return done[0]


def ip(at: int, *commands: str) -> None:
    argv = ["/usr/bin/nsenter", "--net", "--target", str(at), "/sbin/ip", "-batch", "-"]
    subprocess.run(argv, input="\n".join(commands).encode(), check=True, capture_output=True)


def open_tap() -> socket.socket:
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_FRAMES))
    tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
    tap.bind(("outer", ALL_FRAMES))
    tap.settimeout(TIMEOUT_S)
    return tap


class WayCounters(NamedTuple):
    """One direction. Dropped: `runts` (< 14 bytes), `oversized` (> MTU), `refused` (kernel)."""

    frames: int
    bytes: int
    runts: int
    oversized: int
    refused: int

    @property
    def judged(self) -> int:
        return self.frames + self.runts + self.oversized

    def since(self, before: WayCounters) -> WayCounters:
        return WayCounters(*(now - then for now, then in zip(self, before, strict=True)))


class WireCounters(NamedTuple):
    sent: WayCounters
    received: WayCounters


class Relay:
    """A wire that relays: `guest` is the VMM's end, `tap` the link's."""

    def __init__(self, process: subprocess.Popen[bytes], *ends: socket.socket, held: int) -> None:
        self.process, self.held = process, held
        self.guest, self.control = ends
        self.tap = self.guest
        for end in ends:
            end.settimeout(TIMEOUT_S)

    def heard(self) -> bytes:
        return self.control.recv(1)

    def counters(self) -> WireCounters:
        self.control.sendall(b"c")
        numbers = struct.unpack("<10Q", self.control.recv(200))
        return WireCounters(WayCounters(*numbers[:5]), WayCounters(*numbers[5:]))

    def until(self, seen: Callable[[WireCounters], bool]) -> WireCounters:
        deadline = time.monotonic() + TIMEOUT_S
        while not seen(counters := self.counters()):
            assert time.monotonic() < deadline, counters
        return counters

    def from_link(self) -> bytes:
        while True:
            frame, address = self.tap.recvfrom(1 << 17)
            if address[2] != socket.PACKET_OUTGOING:
                return frame

    def ended(self) -> int:
        return self.process.wait(timeout=TIMEOUT_S)


def start() -> Relay:
    guest, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    control, controls = socket.socketpair()
    read, write = os.pipe()
    net = os.open("/proc/sys/net", os.O_PATH | os.O_DIRECTORY)
    kept = (theirs.fileno(), controls.fileno(), write, net)
    process = subprocess.Popen(
        [str(program_path("wire")), *map(str, kept), str(MTU)],
        pass_fds=kept,
        stderr=subprocess.PIPE,
    )
    for fd in (write, net):
        os.close(fd)
    theirs.close()
    controls.close()
    return Relay(process, guest, control, held=read)


@contextlib.contextmanager
def relaying() -> Iterator[Relay]:
    """Between a datagram socket and a link that takes more than the wire lets pass."""
    holder = subprocess.Popen(
        ["/usr/bin/unshare", "--net", "/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    relay = start()
    try:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(b"x")
        holder.stdin.flush()
        holder.stdout.read(1)  # it is there
        assert relay.heard() == b"n"
        ip(
            holder.pid,
            f"link add outer mtu {LARGE_MTU} type veth peer name inner mtu {LARGE_MTU} netns"
            f" {relay.process.pid}",
        )
        no_ip6 = "echo 1 > /proc/sys/net/ipv6/conf/outer/disable_ipv6"
        subprocess.run(
            ["/usr/bin/nsenter", "--net", "--target", str(holder.pid), "/bin/sh", "-c", no_ip6],
            check=True,
        )
        ip(relay.process.pid, "link set inner up", "address add 10.0.0.2/24 dev inner")
        ip(holder.pid, "link set outer arp off up")
        relay.control.sendall(b"g")
        assert relay.heard() == b"r"
        relay.tap = in_network_of(holder.pid, open_tap)
        yield relay
        relay.tap.close()
    finally:
        relay.process.kill()
        relay.process.communicate()
        for end in (relay.guest, relay.control):
            end.close()
        os.close(relay.held)
        holder.kill()
        holder.communicate()


@pytest.fixture(scope="module")
def relay() -> Iterator[Relay]:
    with relaying() as made:
        yield made


def frame_of(size: int, seed: int) -> bytes:
    head = struct.pack("!6s6sH", b"\x02\0\0\0\0\x01", b"\x02\0\0\0\0\x02", 0x88B5)
    return (head + random.Random(seed).randbytes(size))[:size]  # noqa: S311 - a test's dice


SIZES = st.one_of(
    st.integers(1, 20),
    st.integers(LEAST, MOST),
    st.integers(MOST - 4, MOST + 6),
    st.integers(MOST, LARGE_MTU + LEAST),
)
EDGES = (1, LEAST - 1, LEAST, LEAST + 1, MOST - 1, MOST, MOST + 1, LARGE_MTU + LEAST)
HEAPS = st.lists(st.tuples(SIZES, st.integers(0, 1 << 30)), max_size=40)


def passes(size: int) -> bool:
    """What a link of that MTU may carry, with a tag."""
    return LEAST <= size <= MOST


def drain(tap: socket.socket) -> None:
    while select.select([tap], [], [], 0)[0]:
        tap.recv(1 << 17)


@settings(deadline=None, max_examples=60)
@given(heap=HEAPS)
@example(heap=[(size, size) for size in EDGES])
def test_what_a_guest_sends(relay: Relay, heap: list[tuple[int, int]]) -> None:
    """Good frames reach the link byte for byte, in order; the rest is counted by its fault."""
    before, frames = relay.counters().sent, [frame_of(*one) for one in heap]
    for frame in frames:
        relay.guest.send(frame)
    good = [frame for frame in frames if passes(len(frame))]
    assert [relay.from_link() for _ in good] == good
    after = relay.until(lambda seen: seen.sent.judged >= before.judged + len(frames)).sent
    runts, over = (sum(map(wrong, map(len, frames))) for wrong in (LEAST.__gt__, MOST.__lt__))
    assert after.since(before) == (len(good), sum(map(len, good)), runts, over, 0)
    drain(relay.tap)


@settings(deadline=None, max_examples=60)
@given(heap=HEAPS.map(lambda heap: [(max(size, LEAST), seed) for size, seed in heap]))
@example(heap=[(size, size) for size in EDGES if size >= LEAST])
def test_what_a_link_brings(relay: Relay, heap: list[tuple[int, int]]) -> None:
    """The same towards the guest: its device gets nothing longer than its link's frames."""
    before, frames = relay.counters().received, [frame_of(*one) for one in heap]
    for frame in frames:
        relay.tap.send(frame)
    good = [frame for frame in frames if passes(len(frame))]
    assert [relay.guest.recv(1 << 17) for _ in good] == good
    after = relay.until(lambda seen: seen.received.judged >= before.judged + len(frames)).received
    assert after.since(before)[::3] == (len(good), len(frames) - len(good))
    assert not select.select([relay.guest], [], [], 0)[0]
    drain(relay.tap)


def test_datagrams_that_are_no_frames(relay: Relay) -> None:
    """Empty ones, and the longest that a socket takes, are counted and go nowhere."""
    before = relay.counters().sent
    for size in (0, 1, LEAST - 1, MOST + 1, 1 << 16, 150_000):
        relay.guest.send(bytes(size))
    after = relay.until(lambda seen: seen.sent.judged == before.judged + 6).sent
    assert after.since(before) == (0, 0, 3, 3, 0)


def test_a_guest_that_is_slow(relay: Relay) -> None:
    """Of a burst that fits into the guest's queue and the link's, nothing is lost or out of order."""
    burst = [frame_of(MOST, number) for number in range(400)]
    for frame in burst:
        relay.tap.send(frame)
    assert [relay.guest.recv(1 << 17) for _ in burst] == burst
    drain(relay.tap)


def flood(end: socket.socket, size: int) -> None:
    frame = frame_of(size, 1)
    for _ in range(30_000):
        with contextlib.suppress(OSError):
            end.send(frame, socket.MSG_DONTWAIT)


def test_a_flood_from_both_sides_at_once() -> None:
    """Its memory stays what it was, and it carries on."""
    with relaying() as relay:
        before = status_of(relay.process.pid)["VmSize"]
        ends = ((relay.guest, MOST), (relay.tap, MOST), (relay.guest, 1), (relay.tap, LARGE_MTU))
        threads = [threading.Thread(target=flood, args=one) for one in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert relay.counters().sent.frames > 0
        assert status_of(relay.process.pid)["VmSize"] == before
        while select.select([relay.guest], [], [], 0.5)[0]:
            relay.guest.recv(1 << 17)
        relay.tap.send(frame_of(100, 8))
        assert frame_of(100, 8) in iter(lambda: relay.guest.recv(1 << 17), b"")


def test_no_link_or_two() -> None:
    """With anything but one link it does not begin, and says so."""
    relay = start()
    assert relay.heard() == b"n"
    relay.control.sendall(b"g")
    _, said = relay.process.communicate(timeout=TIMEOUT_S)
    assert (relay.process.returncode, said) == (3, b"wire: one link was expected: No such device\n")
    for end in (relay.guest, relay.control):
        end.close()
    os.close(relay.held)


@pytest.mark.parametrize("words", [(), ("3",), ("-1", "2", "3", "4", "1500")])
def test_called_wrongly(words: tuple[str, ...]) -> None:
    """Nothing is begun with arguments that can't be."""
    done = subprocess.run([str(program_path("wire")), *words], check=False, capture_output=True)
    assert done.returncode in {2, 3}


def test_what_it_holds(relay: Relay) -> None:
    """No capability, none to be had; a filter; sockets and a pipe."""
    directory = Path(f"/proc/{relay.process.pid}")
    status = status_of(relay.process.pid)
    assert capabilities(status) == {0}
    assert [status[name] for name in ("NoNewPrivs", "Seccomp", "Threads")] == ["1", "2", "1"]
    held = [str(fd.readlink()) for fd in (directory / "fd").iterdir() if int(fd.name) > 2]
    assert sorted(name.partition(":")[0] for name in held) == ["pipe", "socket", "socket", "socket"]
    argv = ["/usr/bin/nsenter", "--net", "--target", str(relay.process.pid), "/sbin/ip", "-o"]
    shown = subprocess.run([*argv, "address", "show", "dev", "inner"], check=True, stdout=-1)
    assert shown.stdout == b""


def _owner_leaves(relay: Relay) -> None:
    relay.control.close()


def _vmm_leaves(relay: Relay) -> None:
    relay.guest.close()
    relay.tap.send(frame_of(60, 1))


def _link_goes(relay: Relay) -> None:
    ip(relay.process.pid, "link delete inner")


@pytest.mark.parametrize(
    ("leave", "status"), [(_owner_leaves, 0), (_vmm_leaves, 4), (_link_goes, 5)]
)
def test_it_ends_with_any_of_its_ends(leave: Callable[[Relay], None], status: int) -> None:
    """And what it holds for the VMM's supervisor is let go with it, as when it is killed."""
    with relaying() as relay:
        assert not select.select([relay.held], [], [], 0)[0]
        leave(relay)
        assert relay.ended() == status
        assert select.select([relay.held], [], [], TIMEOUT_S)[0]
        assert os.read(relay.held, 1) == b""
