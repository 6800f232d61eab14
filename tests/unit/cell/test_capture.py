"""What is kept of a stream: digest and count of all of it, and its beginning."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from belljar.cell.capture import KEEP_BODY_BYTES, Capture, body_of


@given(chunks=st.lists(st.binary(max_size=50)), keep=st.integers(0, 100))
def test_digest_and_count_are_of_everything_and_the_head_is_kept(chunks: list[bytes], keep: int) -> None:
    """However the bytes are cut: all are hashed and counted, the first `keep_bytes` are kept."""
    capture, whole = Capture("stdout", keep_bytes=keep), b"".join(chunks)
    for chunk in chunks:
        capture.feed(chunk)
    body = capture.body()
    assert (body.name, body.content, body.total_bytes) == ("stdout", whole[:keep], len(whole))
    assert body.sha256 == hashlib.sha256(whole).hexdigest()
    assert body == body_of("stdout", whole, keep_bytes=keep)


def test_a_body_is_as_of_now() -> None:
    """A body that was taken does not change when the stream goes on."""
    capture = Capture("stdout")
    capture.feed(b"one")
    early = capture.body()
    capture.feed(b"two")
    assert (early.content, capture.body().content) == (b"one", b"onetwo")


def test_the_bound_holds_by_default() -> None:
    """A flood keeps 4 MiB and no more."""
    body = body_of("content", bytes(KEEP_BODY_BYTES + 1))
    assert (len(body.content), body.total_bytes) == (KEEP_BODY_BYTES, KEEP_BODY_BYTES + 1)
