"""Sizes, durations, times, the escape, captured streams, and sentences of differences."""

from __future__ import annotations

import hashlib
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.capture import Capture, Keep, body_of
from belljar.differences import Difference, DifferenceKind, sentences
from belljar.units import parse_duration, parse_size, printable

SIZES = {"512MiB": 512 << 20, "1.5 GiB": 3 << 29, "2kb": 2000, "1GB": 10**9}
DURATIONS = {"30m": 1800, "1h30m": 5400, "850ms": 0.85, "1d": 86400, "1h 5 s": 3605}
NO_SIZES = ["", "512", "-1MiB", "1e3MiB", "1MiB2", "1,5GiB", "٣MiB"]
NO_DURATIONS = ["", "30", "30 minutes", "1h-5m", "22:22"]


def test_what_people_write_is_read() -> None:
    """Binary and decimal units, any case, blanks between; one or more numbers with units."""
    for parse, table in ((parse_size, SIZES), (parse_duration, DURATIONS)):
        for text, value in table.items():
            assert parse(text) == pytest.approx(value), text


def test_what_is_no_size_or_duration_is_refused() -> None:
    """Never guessed; a bare number least of all: 512 of what?"""
    for parse, wrong, hint in (
        (parse_size, [*NO_SIZES, "1" * 40 + "B"], "512MiB"),
        (parse_duration, NO_DURATIONS, "30m"),
    ):
        for text in wrong:
            with pytest.raises(ValueError, match=hint):
                parse(text)


@given(st.text())
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    """Nothing else is ever raised, and a size is never negative."""
    for parse in (parse_size, parse_duration):
        told, amount = "", 0.0
        try:
            amount = parse(text)
        except ValueError as exc:
            told = str(exc)
        assert amount >= 0
        assert printable(told) == told


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("one\ntwo\ttabs\rback", "one\\ntwo\\ttabs\\rback"),
        ("\x9b31m", "\\x9b31m"),
        ("\ud800lone", "\\ud800lone"),
        ("tag\U000e0041", "tag\\U000e0041"),
        (b"bytes \xff\x00", "bytes \\xff\\x00"),
        ("plain – ünï ✓", "plain – ünï ✓"),
    ],
)
def test_what_could_act_or_hide_is_made_visible(text: str | bytes, shown: str) -> None:
    """Escapes, C1 controls, bidi marks, invisible characters, undecodable bytes."""
    assert printable(text) == shown


@pytest.mark.promise("4.4")
@given(st.one_of(st.text(st.characters(), max_size=200), st.binary(max_size=200)))
def test_nothing_that_is_shown_can_act(text: str | bytes) -> None:
    """No control, format, surrogate, private or line-separating character is left."""
    shown = printable(text)
    assert all(
        unicodedata.category(char)[0] != "C" and unicodedata.category(char) not in {"Zl", "Zp"}
        for char in shown
    )
    shown.encode()


CHUNKS = st.lists(st.binary(max_size=50), max_size=20)


@given(st.sampled_from(["head", "tail"]), CHUNKS, st.integers(0, 100))
def test_all_is_counted_and_hashed_and_one_end_is_kept(
    keep: Keep, chunks: list[bytes], most: int
) -> None:
    """However the bytes are cut: at most so many of the right end."""
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


@pytest.mark.promise("1.5")
def test_sentences_are_safe_for_a_terminal() -> None:
    """Whatever an author wrote."""
    hostile = Difference(kind=DifferenceKind.REFUSED, where="\x1b[2J", key="\r", detail="\u202e")
    assert not set("\x1b\r\u202e") & set(sentences([hostile])[0])
