"""Outcomes as a shell and as the builtins say them, and as their caller reads them."""

from __future__ import annotations

import errno

from belljar.channel.frames import Outcome, ResultFlag, Stage
from belljar.channel.messages import Result
from belljar.channel.outcomes import file_error


def result(
    outcome: Outcome, code: int, *, flags: int = 0, detail: str = "", stage: Stage = Stage.OPEN
) -> Result:
    """A RESULT."""
    return Result(
        op=1,
        outcome=outcome,
        flags=ResultFlag(flags),
        stage=stage,
        code=code,
        stdout_dropped_bytes=1,
        stderr_dropped_bytes=2,
        duration_ns=1_500_000_000,
        detail=detail,
    )


def test_a_file_nobody_looked_at_is_not_missing() -> None:
    """An unknown user, or a helper that could not start, says nothing of the file: never
    `FileNotFoundError`."""
    for stage in (Stage.USER, Stage.FORK, Stage.REQUEST, Stage.CREDENTIALS):
        ended = result(Outcome.NOT_STARTED, errno.ENOENT, stage=stage, detail="\x1b[2J")
        error = file_error(ended, "p")
        assert (type(error), error.errno) == (OSError, errno.EIO), stage
        assert "\x1b" not in str(error)
