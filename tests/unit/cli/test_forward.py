"""`belljar forward`: what it may listen on and lead to."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.cli.sessions import parse_forward


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8080:80", ("127.0.0.1", 8080, 80)),
        ("0:/run/s.sock", ("127.0.0.1", 0, "/run/s.sock")),
        ("[::1]:8080:80", ("::1", 8080, 80)),
        ("localhost:1:2", ("127.0.0.1", 1, 2)),
    ],
)
def test_what_is_led_where(text: str, meant: tuple[str, int, int | str]) -> None:
    """As ssh's `-L` has it; 127.0.0.1 unless another loopback address is named."""
    assert parse_forward(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0:80:80",
        "[::]:80:80",
        "192.0.2.1:80:80",
        "[fe80::1%lo]:80:80",
        "host:80:80",
        "80",
        "80:",
        "x:y",
        "80:0",
        "70000:80",
        "80:run/s.sock",
    ],
)
def test_nothing_but_loopback_is_listened_on(text: str) -> None:
    """Another address, a name, and what is no port or path are refused."""
    with pytest.raises(ValueError):  # noqa: PT011 - the wording is for people
        parse_forward(text)


@given(st.text())
def test_any_text_is_loopback_or_an_error(text: str) -> None:
    """Nothing that is typed opens another address of this host."""
    try:
        host, port, _ = parse_forward(text)
    except ValueError:
        return
    assert ipaddress.ip_address(host).is_loopback
    assert 0 <= port <= 65535
