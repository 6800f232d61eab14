"""Encoded text: how it is put together again, and where it was."""

from __future__ import annotations

import base64

import pytest

from belljar.signals.runs import decode_run, runs

TEXT = b"meet me at the old mill, 9 pm; bring #42"


def decoded(data: bytes) -> dict[bytes, tuple[str, ...]]:
    """All that comes out of data, with the names of what was undone."""
    return {found.data: found.names for run in runs(data) for found in decode_run(run)}


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 19, 76])
@pytest.mark.parametrize("gap", [b" ", b", ", b"\r\n", b":"])
def test_cut_text_is_put_together(width: int, gap: bytes) -> None:
    """Groups of any usual length, by any short separator."""
    text = base64.b64encode(TEXT)
    cut = b"see: " + gap.join(text[at : at + width] for at in range(0, len(text), width)) + b" ."
    assert any(TEXT[:30] in out for out in decoded(cut))


def test_prose_is_no_groups() -> None:
    """Words of prose are not put together."""
    prose = (
        b"The quick brown fox jumps over the lazy dog, and then it goes home to eat and to sleep"
        b" well. " * 3
    )
    assert not [run for run in runs(prose) if run.split]
