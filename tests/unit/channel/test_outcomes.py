"""Outcomes as a shell and as the builtins say them."""

from __future__ import annotations

import errno

import pytest

from belljar.channel.frames import Outcome, ResultFlag, Stage
from belljar.channel.messages import Result
from belljar.channel.outcomes import ExecOutcome, ExecStatus, FileTooLarge, file_error, outcome_of


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


@pytest.mark.parametrize(
    ("status", "code", "returncode"),
    [
        (ExecStatus.EXITED, 70, 70),
        (ExecStatus.SIGNALED, 9, 137),
        (ExecStatus.NOT_STARTED, errno.ENOENT, 127),
        (ExecStatus.NOT_STARTED, errno.ENOTDIR, 127),
        (ExecStatus.NOT_STARTED, errno.EACCES, 126),
        (ExecStatus.IO_FAILED, errno.EIO, 126),
    ],
)
def test_returncode(status: ExecStatus, code: int, returncode: int) -> None:
    """The number that a shell would give."""
    assert ExecOutcome(status=status, code=code).returncode == returncode


def test_outcome_of() -> None:
    """The guest's counts and the host's are added; flags become words; late alone is not timed
    out."""
    outcome = outcome_of(
        result(Outcome.SIGNALED, 9, flags=63), kept=(b"a", b"b"), dropped=(10, 20), overdue=False
    )
    assert (outcome.stdout_dropped_bytes, outcome.stderr_dropped_bytes, outcome.duration_s) == (
        11,
        22,
        1.5,
    )
    assert (
        outcome.timed_out,
        outcome.killed,
        outcome.out_of_memory,
        outcome.output_cap_reached,
    ) == (True,) * 4
    assert (outcome.processes_full, outcome.disk_full) == (True, True)
    assert outcome.stage_name == "open"
    late = outcome_of(result(Outcome.EXITED, 0), kept=(b"", b""), dropped=(0, 0), overdue=True)
    assert not late.timed_out


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOENT, FileNotFoundError),
        (errno.EACCES, PermissionError),
        (errno.EPERM, PermissionError),
        (errno.EISDIR, IsADirectoryError),
        (errno.ENOTDIR, NotADirectoryError),
        (errno.ETIMEDOUT, TimeoutError),
        (errno.ELOOP, OSError),
    ],
)
def test_file_errors(code: int, kind: type[OSError]) -> None:
    """The builtin that the errno means, with the path; the guest's text is made safe to show."""
    error = file_error(result(Outcome.IO_FAILED, code, detail="\x1b[31m"), "/the/path")
    assert type(error) is kind
    assert (error.errno, error.filename) == (code, "/the/path")
    assert "/the/path" in str(error)
    assert "\x1b" not in str(error)


def test_killed_helpers() -> None:
    """A file helper that was killed is ENOMEM when memory had run out, else EIO."""
    assert file_error(result(Outcome.SIGNALED, 9, flags=4), "p").errno == errno.ENOMEM
    assert file_error(result(Outcome.SIGNALED, 9), "p").errno == errno.EIO


def test_too_large() -> None:
    """An `OSError` with EFBIG, the path and the sizes."""
    error = FileTooLarge("/big", max_bytes=10, size_bytes=20, head=b"x")
    assert (error.errno, error.filename, error.size_bytes, error.head) == (
        errno.EFBIG,
        "/big",
        20,
        b"x",
    )


@pytest.mark.parametrize("stage", [Stage.USER, Stage.FORK, Stage.REQUEST, Stage.CREDENTIALS])
def test_a_file_nobody_looked_at_is_not_missing(stage: Stage) -> None:
    """An unknown user, or a helper that could not start, says nothing of the file: never
    `FileNotFoundError`."""
    error = file_error(
        result(Outcome.NOT_STARTED, errno.ENOENT, stage=stage, detail="\x1b[2J"), "p"
    )
    assert (type(error), error.errno) == (OSError, errno.EIO)
    assert stage.name.lower() in str(error)
    assert "\x1b" not in str(error)
