"""Differences between a task and the cells that stand in for it."""

from __future__ import annotations

import pytest

from belljar.differences import Difference, DifferenceKind, sentences


@pytest.mark.promise("1.5")
def test_the_same_of_several_is_one_sentence() -> None:
    """Keys of one part, and parts, of which one thing is true."""
    facts = [
        Difference(kind=DifferenceKind.DROPPED, where=where, key=key, detail="why")
        for where in ("service a", "service b")
        for key in ("labels", "tty")
    ]
    (sentence,) = sentences(facts)
    assert all(word in sentence for word in ("service a", "service b", "labels", "tty", "why"))
    assert (
        len(sentences([*facts, Difference(kind=DifferenceKind.CHANGED, key="tty", detail="why")]))
        == 2
    )


@pytest.mark.promise("1.5")
def test_sentences_are_safe_for_a_terminal() -> None:
    """Whatever an author wrote."""
    hostile = Difference(kind=DifferenceKind.REFUSED, where="\x1b[2J", key="\r", detail="\u202e")
    assert not set("\x1b\r\u202e") & set(sentences([hostile])[0])
