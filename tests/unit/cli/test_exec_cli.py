"""`belljar exec`: what is refused before any cell is made."""

from __future__ import annotations

import pytest

from belljar.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--timeout", "0s", "--", "true"], "a command needs time"),
        (["--timeout", "", "--", "true"], "an empty duration"),
        (["--timeout", "5", "--", "true"], "is not a duration"),
        (["--env", "NAME", "--", "true"], "write NAME=VALUE"),
        (["high"], "put it after two dashes"),
        (["high", "--"], "put it after two dashes"),
    ],
)
def test_a_wrong_option_is_a_usage_error(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, and what would be right. A timeout of zero is no way to have none."""
    assert run(["exec", *arguments]) == 2
    assert said in capsys.readouterr().err
