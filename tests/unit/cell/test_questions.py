"""Who answers a range's questions."""

from __future__ import annotations

import pytest

from belljar.cell.questions import Questions


def test_nobody_answers_until_there_is_somebody() -> None:
    """Before, a question is refused with what to do; then it is theirs, and so is what they refuse."""
    questions = Questions()
    with pytest.raises(ValueError, match="belljar run"):
        questions("chat", b"?")
    questions.answerer = lambda kind, body: kind.encode() + body
    assert questions("chat", b"?") == b"chat?"


def test_nobody_answers_when_the_range_has_ended() -> None:
    """Whoever answers is told once, and asked no more."""
    questions, told = Questions(), []
    questions.close()
    questions = Questions()
    questions.answerer, questions.on_close = (lambda _, body: body), lambda: told.append(True)
    questions.close()
    with pytest.raises(ValueError, match="the range has ended"):
        questions("chat", b"?")
    assert told == [True]
