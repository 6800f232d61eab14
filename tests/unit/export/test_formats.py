"""A run as security events and as casts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.report.stories import ENDED, PROBED, line

from belljar.events import Kind
from belljar.export.cast import cast
from belljar.export.ocsf import ocsf
from belljar.ledger.schema import BodyRef, Line

UPSTREAM: dict[str, Any] = {"host": "h", "port": 443, "address": "", "reason": "", "problem": ""}


@pytest.mark.parametrize(
    ("verdict", "disposition"),
    [("dialled", 1), ("looked_up", 1), ("cut", 1), ("refused", 2), ("failed", 2)],
)
def test_what_left_is_not_called_blocked(verdict: str, disposition: int) -> None:
    """A look-up and a connection that was cut later have left this host."""
    (event,) = ocsf([line(Kind.NETWORK_UPSTREAM, "c", **UPSTREAM, verdict=verdict)], "R")
    assert event["disposition_id"] == disposition


def test_a_breach_is_a_critical_finding_and_a_good_end_is_none() -> None:
    """A survivor, a probe that found a way out and traces after a revert are findings."""
    probe = {**PROBED, "phase": "end"}
    traces = {"from": "c0", "planted": [], "not_checked": []}
    good = [
        line(Kind.PROBE_COMPLETED, "c", **probe),
        line(Kind.CELL_DESTROYED, "c", **ENDED),
        line(Kind.CELL_REVERT_VERIFIED, "c", **traces, found=[]),
    ]
    bad = [
        line(Kind.PROBE_COMPLETED, "c", **{**probe, "verdict": "breached"}),
        line(Kind.CELL_DESTROYED, "c", **{**ENDED, "clean": False, "survivors": ["process 7"]}),
        line(Kind.CELL_REVERT_VERIFIED, "c", **traces, found=["memory"]),
    ]
    assert list(ocsf(good, "R")) == []
    assert [(each["class_uid"], each["severity_id"]) for each in ocsf(bad, "R")] == [(2004, 5)] * 3


STARTED: dict[str, Any] = {"cwd": "/", "user": "", "env_names": [], "stdin": True}
EXEC_ENDED: dict[str, Any] = {
    **dict.fromkeys(("stdout_bytes", "stderr_bytes"), 0),
    **dict.fromkeys(("stdout_dropped_bytes", "stderr_dropped_bytes"), 0),
    "duration_ms": 3000.0,
}
CONTENTS = {"stdout": "$ ü\r\nü\r\n".encode(), "stdin": b"printf \xc3\xbc\r"}


def session(**times: Any) -> list[Line]:  # noqa: ANN401 - JSON values
    argv = {"argv": ["bash"], "timeout_s": None, "pty": True}
    ended = line(Kind.EXEC_COMPLETED, "c", op=1, status="exited", code=7, **EXEC_ENDED, **times)
    bodies = tuple(
        BodyRef(name=name, sha256="0" * 64, kept_bytes=len(content), total_bytes=len(content))
        for name, content in CONTENTS.items()
    )
    return [
        replace(line(Kind.EXEC_STARTED, "c", op=1, **STARTED, **argv), mono_ns="1000000000"),
        replace(ended, mono_ns="4000000000", bodies=bodies),
    ]


def played(lines: list[Line]) -> list[tuple[float, str, str]]:
    _, *events = cast(lines, "c", lambda body: CONTENTS[body.name])
    found, at_s = [], 0.0
    for after_s, code, text in events:
        at_s += after_s
        found.append((round(at_s, 3), code, text))
    return found


def test_keystrokes_are_not_played() -> None:
    """Though an earlier version put their times on record."""
    found = played(session(stdin_times=[[200, 6], [2000, 10]], stdout_times=[[500, 10]]))
    assert {code for _, code, _ in found} == {"o", "x"}


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        (Kind.EXEC_COMPLETED, {"status": "exited", "code": 7}, "7"),
        (Kind.EXEC_COMPLETED, {"status": "signalled", "code": 15}, "143"),
        (Kind.EXEC_TIMED_OUT, {"timeout_s": 3}, "124"),
        (Kind.EXEC_FAILED, {"reason": "left\x1b[2J"}, "1"),
    ],
)
def test_each_end_has_a_code(kind: Kind, data: dict[str, Any], code: str) -> None:
    """A shell's, since players read a number; an end without one says why, escaped."""
    begun, _ = session()
    ended = replace(line(kind, "c", op=1, **{**EXEC_ENDED, **data}), mono_ns="4000000000")
    *_, said, end = played([begun, ended])
    assert end == (3.0, "x", code)
    assert "\x1b" not in said[2]
