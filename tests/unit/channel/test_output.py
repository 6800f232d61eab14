"""What is kept of a stream is exactly its head or its tail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from belljar.channel.output import Keep, KeptOutput


@given(st.sampled_from(["head", "tail"]), st.integers(0, 30), st.lists(st.binary(max_size=20), max_size=20))
def test_head_and_tail(keep: Keep, max_bytes: int, chunks: list[bytes]) -> None:
    """However the stream was cut: at most `max_bytes`, the right end, and kept + dropped is all there was."""
    kept, whole = KeptOutput(keep, max_bytes), b"".join(chunks)
    for chunk in chunks:
        kept.feed(chunk)
    expected = whole[:max_bytes] if keep == "head" else whole[max(0, len(whole) - max_bytes) :]
    assert kept.finish() == (expected, len(whole) - len(expected))
