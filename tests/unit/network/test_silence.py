"""How long a part has been silent, by a clock that the test turns."""

from __future__ import annotations

from belljar.network.silence import Silence


def test_only_what_was_listened_to_counts() -> None:
    """Silence adds up over turns of listening, a word ends it, and it is over when patience is."""
    silence = Silence(10.0)
    silence.heard()
    silence.listened(6.0)
    silence.listened(4.0)
    assert not silence.is_over
    silence.heard()
    silence.listened(9.9)
    assert not silence.is_over
    silence.listened(0.2)
    assert silence.is_over


def test_nobody_is_silent_who_has_not_begun() -> None:
    """A part that is still starting has a deadline of its own."""
    silence = Silence(10.0)
    silence.listened(1000.0)
    assert not silence.is_over
