"""A line on the terminal for what takes long."""

import io
import threading

import pytest

from belljar import waiting


class Terminal(io.StringIO):
    """Standard error that is a terminal, or not, and tells when it is written to."""

    def __init__(self, *, is_one: bool) -> None:
        super().__init__()
        self.is_one, self.written = is_one, threading.Event()

    def isatty(self) -> bool:
        """Whether it is one."""
        return self.is_one

    def flush(self) -> None:
        """As `print` does at the end of a line."""
        self.written.set()


def test_a_line_appears_once_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before, not afterwards, and only on a terminal."""
    terminal, pipe = Terminal(is_one=True), Terminal(is_one=False)
    monkeypatch.setattr("sys.stderr", terminal)
    with waiting.reported_if_slow("quick"):
        pass
    monkeypatch.setattr(waiting, "SLOW_S", 0.01)
    with waiting.reported_if_slow("slow"):
        assert terminal.written.wait(60)
    assert terminal.getvalue() == "belljar: slow\n"
    monkeypatch.setattr("sys.stderr", pipe)
    with waiting.reported_if_slow("slow"):
        assert not pipe.written.wait(0.1)
