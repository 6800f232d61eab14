"""Encoded text: how it is put together again, and where it was."""

from __future__ import annotations

import base64
import binascii

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


@pytest.mark.parametrize("skip", range(4))
def test_text_may_begin_anywhere(skip: int) -> None:
    """With other letters right before it, whatever its alignment."""
    assert any(TEXT in out for out in decoded(b"QxYz"[:skip] + base64.b64encode(TEXT)))


def test_an_offset_leads_back_to_the_characters() -> None:
    """Of hex, each byte is where its two digits are, across a line break, too."""
    text = binascii.hexlify(TEXT)
    data = b"x: " + text[:30] + b"\n" + text[30:]
    for run in runs(data):
        for found in decode_run(run):
            if found.data == TEXT:
                assert found.locate is not None
                assert found.locate(0, 1) == (3, 5)
                assert found.locate(15, 16) == (34, 36)
                return
    raise AssertionError("not decoded")


def test_prose_is_no_groups() -> None:
    """Words of prose are not put together."""
    prose = (
        b"The quick brown fox jumps over the lazy dog, and then it goes home to eat and to sleep"
        b" well. " * 3
    )
    assert not [run for run in runs(prose) if run.split]
