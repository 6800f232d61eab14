"""`belljar exec`: what is ours and what is the guest's on one command line, and what comes back."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest
from tests.fakes import guest as g
from tests.fakes.guest import FakeGuest, GuestOp
from tests.fakes.vm import opening

from belljar.channel import Stream
from belljar.cli.exec import COMMAND_KEY, exec_command, passing_on
from belljar.cli.main import run


async def burst(guest: FakeGuest, op: GuestOp) -> None:
    await guest.started(op)
    await guest.finish(op, g.SIGNALED, 9, flags=4, dropped=(5, 0))


async def gone(guest: FakeGuest, op: GuestOp) -> None:
    await guest.finish(op, g.NOT_STARTED, errno.ENOENT, stage=1, detail="user")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the test's own, where cells are a fake guest's."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    monkeypatch.setattr("belljar.cell.open.open_cell", opening({b"burst": burst, b"gone": gone}))
    return tmp_path


def test_everything_after_the_dashes_is_the_guests() -> None:
    """Untouched: options of the same names, further dashes, empty words."""
    words = ["high", "--user", "me", "--", "ls", "--json", "--", "--user", ""]
    params = (context := exec_command.make_context("exec", words)).params
    assert (params["policy"], params["user"], params["as_json"]) == ("high", "me", False)
    assert context.meta[COMMAND_KEY] == ["ls", "--json", "--", "--user", ""]


@pytest.mark.parametrize(
    ("words", "code", "note"),
    [
        (["--timeout", "50ms", "--", "hang"], 124, "the command timed out"),
        (["--", "missing"], 127, "the command did not start: exec: no such program"),
        (["--", "gone"], 127, "the command did not start: the image has no user `user`\n  hint: "),
        (["--", "burst"], 137, "the command ran out of memory"),
        (["--", "burst"], 137, "5 bytes of standard output were dropped"),
    ],
)
def test_what_the_exit_code_alone_does_not_say(
    words: list[str], code: int, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A timeout, a failed start, memory and dropped output are told on standard error."""
    assert run(["exec", *words]) == code
    assert f"belljar: {note}" in capsys.readouterr().err


class Terminal(io.TextIOWrapper):
    """A standard stream in memory that is a terminal."""

    def isatty(self) -> bool:
        return True


HOSTILE = "é\n\x1b]0;mine\x07\tred\x1b[31m\r\u202ehidden\x9b1m".encode() + b"\xff\n"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_on_a_terminal_output_can_not_act(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Escapes, controls, bidi and broken bytes are shown, not sent, however they are cut."""
    screen = io.BytesIO()
    monkeypatch.setattr("sys.stdout", Terminal(screen, encoding="utf-8", newline=""))
    pass_on = passing_on()
    for at in range(0, len(HOSTILE), size):
        pass_on(Stream.STDOUT, HOSTILE[at : at + size])
    shown = screen.getvalue().decode()
    assert shown.startswith("é\n\\x1b]0;mine\\x07\tred\\x1b[31m\\r")
    assert shown.endswith("\\xff\n")
    assert [c for c in shown if not c.isprintable() and c not in "\n\t"] == []
