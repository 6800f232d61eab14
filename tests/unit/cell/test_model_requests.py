"""The handler of a range's requests to the model."""

from __future__ import annotations

import pytest

from belljar.cell.range import ModelRequests


def test_nobody_answers_until_there_is_somebody() -> None:
    """Before, a question is refused with what to do; then it is theirs, and so is what they
    refuse."""
    model_requests = ModelRequests()
    with pytest.raises(ValueError, match="belljar run"):
        model_requests("chat", b"?")
    model_requests.handler = lambda kind, body: kind.encode() + body
    assert model_requests("chat", b"?") == b"chat?"


def test_nobody_answers_when_the_range_has_ended() -> None:
    """Whoever answers is told once, and asked no more."""
    unused, told = ModelRequests(), list[bool]()
    unused.close()
    model_requests = ModelRequests()
    model_requests.handler, model_requests.on_close = (
        (lambda _, body: body),
        lambda: told.append(True),
    )
    model_requests.close()
    with pytest.raises(ValueError, match="the range has ended"):
        model_requests("chat", b"?")
    assert told == [True]
