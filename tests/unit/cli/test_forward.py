"""`belljar forward`: what it may listen on and lead to."""

from __future__ import annotations

import pytest

from belljar.cli.sessions import parse_forward


@pytest.mark.parametrize(
    "text", ["0.0.0.0:80:80", "host:80:80", "80", "80:", "x:y", "80:0", "70000:80", "80:run/s.sock"]
)
def test_nothing_but_loopback_is_listened_on(text: str) -> None:
    """Another address, a name, and what is no port or path are refused."""
    with pytest.raises(ValueError):  # noqa: PT011 - the wording is for people
        parse_forward(text)
