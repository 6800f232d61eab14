"""A terminal session as an asciicast: the times of its output, and keystrokes only where allowed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.report.stories import line

from belljar.events import Kind
from belljar.export.cast import cast
from belljar.ledger.schema import BodyRef, Line

STARTED: dict[str, Any] = {"cwd": "/", "user": "", "env_names": [], "stdin": True}
ENDED: dict[str, Any] = {
    **dict.fromkeys(("stdout_bytes", "stderr_bytes"), 0),
    **dict.fromkeys(("stdout_dropped_bytes", "stderr_dropped_bytes"), 0),
    "duration_ms": 3000.0,
}
CONTENTS = {"stdout": "$ ü\r\nü\r\n".encode(), "stdin": b"printf \xc3\xbc\r"}


def session(**times: Any) -> list[Line]:  # noqa: ANN401 - JSON values
    """Three seconds in a terminal."""
    argv = {"argv": ["bash"], "timeout_s": None, "pty": True}
    ended = line(Kind.EXEC_COMPLETED, "c", op=1, status="exited", code=7, **ENDED, **times)
    bodies = tuple(
        BodyRef(name=name, sha256="0" * 64, kept_bytes=len(content), total_bytes=len(content))
        for name, content in CONTENTS.items()
    )
    return [
        replace(line(Kind.EXEC_STARTED, "c", op=1, **STARTED, **argv), mono_ns="1000000000"),
        replace(ended, mono_ns="4000000000", bodies=bodies),
    ]


def played(lines: list[Line]) -> list[tuple[float, str, str]]:
    """Seconds since the start, code and text of each event."""
    _, *events = cast(lines, "c", lambda body: CONTENTS[body.name])
    found, at_s = [], 0.0
    for after_s, code, text in events:
        at_s += after_s
        found.append((round(at_s, 3), code, text))
    return found


def test_keystrokes_are_there_only_with_times() -> None:
    """Those are on record only where a policy of earlier versions asked for it."""
    assert not [each for each in played(session(stdout_times=[[500, 10]])) if each[1] == "i"]
    found = played(session(stdin_times=[[200, 6], [2000, 10]], stdout_times=[[500, 10]]))
    assert "".join(text for _, code, text in found if code == "i") == "printf ü\r"
    assert {at_s for at_s, code, _ in found if code == "i"} == {0.2, 2.0}


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        (Kind.EXEC_COMPLETED, {"status": "exited", "code": 7}, "7"),
        (Kind.EXEC_COMPLETED, {"status": "signalled", "code": 15}, "143"),
        (Kind.EXEC_TIMED_OUT, {"timeout_s": 3}, "124"),
        (Kind.EXEC_FAILED, {"reason": "no such file\x1b[2J", "errno": 2}, "127"),
        (Kind.EXEC_FAILED, {"reason": "left"}, "137"),
    ],
)
def test_each_end_has_a_code(kind: Kind, data: dict[str, Any], code: str) -> None:
    """A shell's, since players read a number; an end without one says why, escaped."""
    begun, _ = session()
    ended = replace(line(kind, "c", op=1, **{**ENDED, **data}), mono_ns="4000000000")
    *_, said, end = played([begun, ended])
    assert end == (3.0, "x", code)
    assert "\x1b" not in said[2]
