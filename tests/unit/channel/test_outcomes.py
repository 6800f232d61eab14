"""Outcomes as a shell and as the builtins say them, and as their caller reads them."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from belljar.channel.frames import Outcome, Result, ResultFlag, Stage
from belljar.channel.outcomes import ExecRequest, exec_body, file_error


def test_a_file_nobody_looked_at_is_not_missing() -> None:
    """An unknown user, or a helper that could not start, says nothing of the file."""
    for stage in (Stage.USER, Stage.FORK, Stage.REQUEST, Stage.CREDENTIALS):
        words: dict[str, Any] = {"flags": ResultFlag(0), "stage": stage, "detail": "\x1b[2J"}
        words |= dict.fromkeys(("stdout_dropped_bytes", "stderr_dropped_bytes", "duration_ns"), 0)
        ended = Result(op=1, outcome=Outcome.NOT_STARTED, code=errno.ENOENT, **words)
        error = file_error(ended, "p")
        assert (type(error), error.errno) == (OSError, errno.EIO), stage
        assert "\x1b" not in str(error)


def test_a_nul_ends_no_word() -> None:
    """The guest would run another command than the one on record."""
    for request in (ExecRequest(argv=["a\0b"]), ExecRequest(argv=["a"], env={"A": "b\0"})):
        with pytest.raises(ValueError, match="NUL"):
            exec_body(request)
