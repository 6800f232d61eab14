"""Counting frames."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.gateway.config import Bounds
from belljar.network.gateway.http2 import PREFACE, FloodGuard

BOUNDS = Bounds(head_bytes=1000, h2_control_frames=20, h2_control_frames_per_request=2)
DATA, HEADERS, PRIORITY, RST, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9


def frame(kind: int, length: int = 0, flags: int = 0, stream: int = 1) -> bytes:
    """A frame of zeros."""
    return (
        length.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + bytes(length)
    )


def fed(*frames: bytes, guard: FloodGuard | None = None) -> str:
    """What the guard says to a connection of these frames."""
    return (guard or FloodGuard(BOUNDS)).feed(PREFACE + b"".join(frames))


def test_each_flood_is_ended() -> None:
    """Frames that cost their sender nothing are bounded, whichever they are."""
    for flood in (
        frame(RST, 4),
        frame(PING, 8),
        frame(SETTINGS),
        frame(PRIORITY, 5),
        frame(WINDOW, 4),
        frame(DATA),
        frame(77, 3),
        frame(CONTINUATION),
    ):
        assert fed(*[flood] * 20) == ""
        assert fed(*[flood] * 21) == "too many control frames"


def test_rapid_reset_is_ended() -> None:
    """CVE-2023-44487: requests that are taken back are not answered, so they earn nothing."""
    assert fed(*[frame(HEADERS, 10, 5), frame(RST, 4)] * 21) == "too many control frames"


def test_answers_earn_control_frames() -> None:
    """A long connection that is used is no flood."""
    guard = FloodGuard(BOUNDS)
    guard.requests = 100
    guard.sent_bytes = 50_000
    assert fed(*[frame(WINDOW, 4)] * 200, guard=guard) == ""


def test_header_blocks_are_bounded() -> None:
    """CONTINUATION without end (CVE-2024-27316 and its like): the block is bounded before the
    library has collected it."""
    assert fed(frame(HEADERS, 400), *[frame(CONTINUATION, 100)] * 6) == ""
    assert (
        fed(frame(HEADERS, 400), *[frame(CONTINUATION, 100)] * 7) == "a header block over the bound"
    )
    assert fed(*[frame(HEADERS, 400, 4)] * 10) == ""


def test_bodies_are_no_flood() -> None:
    """DATA with something in it is bounded by flow control, not here."""
    assert fed(*[frame(DATA, 1)] * 500) == ""


@given(data=st.binary(max_size=500), cuts=st.lists(st.integers(0, 500), max_size=8))
@settings(deadline=None)
def test_how_the_bytes_are_cut_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    """Whatever the bytes, and however they arrive: one verdict, no exception, nothing kept but a
    frame's header."""
    whole, pieces = FloodGuard(BOUNDS), FloodGuard(BOUNDS)
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    verdicts = [pieces.feed(data[a:b]) for a, b in itertools.pairwise(borders)]
    whole_verdict = whole.feed(data)
    assert next((verdict for verdict in verdicts if verdict), "") == whole_verdict
    assert len(pieces._head) < 9
