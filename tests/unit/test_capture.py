"""What is kept of a stream: digest and count of all of it, and its beginning or its end."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from belljar.capture import Capture, Keep, body_of

CHUNKS = st.lists(st.binary(max_size=50), max_size=20)


@given(st.sampled_from(["head", "tail"]), CHUNKS, st.integers(0, 100))
def test_all_is_counted_and_hashed_and_one_end_is_kept(
    keep: Keep, chunks: list[bytes], most: int
) -> None:
    """However the bytes are cut: at most so many of the right end; kept and dropped are all there
    was."""
    capture, whole = Capture("stdout", max_kept_bytes=most, keep=keep), b"".join(chunks)
    for chunk in chunks:
        capture.feed(chunk)
    expected = whole[:most] if keep == "head" else whole[max(0, len(whole) - most) :]
    assert (capture.kept, capture.dropped_bytes) == (expected, len(whole) - len(expected))
    body = capture.body()
    assert (body.name, body.content, body.total_bytes) == ("stdout", expected, len(whole))
    assert body.sha256 == hashlib.sha256(whole).hexdigest()
    assert capture.bodies() == ((body,) if whole else ())
    capture.feed(b"more")
    assert (body.content, body.total_bytes) == (expected, len(whole))  # as of then
    assert keep == "tail" or body == body_of("stdout", whole, max_kept_bytes=most)
