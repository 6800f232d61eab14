"""`belljar exec`: what is refused before any cell is made, and what of a guest's output reaches a
terminal."""

from __future__ import annotations

import io

import pytest

from belljar.channel import Stream
from belljar.cli.exec import passing_on
from belljar.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--timeout", "0s", "--", "true"], "a command needs time"),
        (["--timeout", "", "--", "true"], "an empty duration"),
        (["--timeout", "5", "--", "true"], "is not a duration"),
        (["--env", "NAME", "--", "true"], "write NAME=VALUE"),
        (["high", "--"], "no command to run"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, and what would be right. A timeout of zero is no way to have none."""
    assert run(["exec", *arguments]) == 2
    assert said in capsys.readouterr().err


class Out(io.TextIOWrapper):
    """A standard stream in memory, that is a terminal or not."""

    def __init__(self, *, terminal: bool) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding="utf-8", newline="")
        self._terminal = terminal

    def isatty(self) -> bool:
        """As told."""
        return self._terminal

    def written(self) -> bytes:
        """All that arrived."""
        self.flush()
        return self._bytes.getvalue()


HOSTILE = "é\n\x1b]0;mine\x07\tred\x1b[31m\r\u202ehidden\x9b1m".encode() + b"\xff\n"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_on_a_terminal_output_can_not_act(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Escapes, controls, bidi and broken bytes are shown, not sent, however they are cut into
    pieces; newlines, tabs and letters stay."""
    out = Out(terminal=True)
    monkeypatch.setattr("sys.stdout", out)
    pass_on = passing_on()
    for at in range(0, len(HOSTILE), size):
        pass_on(Stream.STDOUT, HOSTILE[at : at + size])
    shown = out.written().decode()
    assert shown.startswith("é\n\\x1b]0;mine\\x07\tred\\x1b[31m\\r")
    assert shown.endswith("\\xff\n")
    assert [c for c in shown if not c.isprintable() and c not in "\n\t"] == []


def test_elsewhere_output_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or a pipe gets every byte as it was."""
    out = Out(terminal=False)
    monkeypatch.setattr("sys.stderr", out)
    passing_on()(Stream.STDERR, HOSTILE)
    assert out.written() == HOSTILE
