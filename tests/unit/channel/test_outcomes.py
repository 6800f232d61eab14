"""Outcomes as a shell and as the builtins say them, and as their caller reads them."""

from __future__ import annotations

import errno

from belljar.channel import CommandError, ExecOutput
from belljar.channel.frames import Outcome, ResultFlag, Stage
from belljar.channel.messages import Result
from belljar.channel.outcomes import file_error, output_of


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


def test_output_of() -> None:
    """The guest's counts and the host's are added; flags become words; late alone is not timed
    out."""
    ended = result(Outcome.SIGNALED, 9, flags=255)
    output = output_of(ended, kept=(b"a", b"b"), dropped=(10, 20), is_overdue=False)
    assert (output.stdout_dropped_bytes, output.stderr_dropped_bytes) == (11, 22)
    assert (output.stdout, output.stderr, output.duration_s) == (b"a", b"b", 1.5)
    words = "timed_out killed out_of_memory output_cap_reached processes_full disk_full runs_on"
    assert all(getattr(output, word) for word in [*words.split(), "program_ended"])
    late = output_of(result(Outcome.EXITED, 0), kept=(b"", b""), dropped=(0, 0), is_overdue=True)
    assert not any((late.timed_out, late.killed, late.program_ended))


def test_file_errors() -> None:
    """The builtin that the errno means, with the path; the guest's text is made safe to show. A
    helper that was killed is ENOMEM when memory had run out, else EIO."""
    for code, kind in (
        (errno.ENOENT, FileNotFoundError),
        (errno.EPERM, PermissionError),
        (errno.ELOOP, OSError),
    ):
        error = file_error(result(Outcome.IO_FAILED, code, detail="\x1b[31m"), "/the/path")
        assert type(error) is kind
        assert (error.errno, error.filename) == (code, "/the/path")
        assert "\x1b" not in str(error)
    assert file_error(result(Outcome.SIGNALED, 9, flags=4), "p").errno == errno.ENOMEM
    assert file_error(result(Outcome.SIGNALED, 9), "p").errno == errno.EIO
    failed = CommandError(ExecOutput(returncode=3, code=3, stderr=b"why\x1b[2J\n"))
    assert str(failed) == r"the command ended with status 3: why\x1b[2J"


def test_a_file_nobody_looked_at_is_not_missing() -> None:
    """An unknown user, or a helper that could not start, says nothing of the file: never
    `FileNotFoundError`."""
    for stage in (Stage.USER, Stage.FORK, Stage.REQUEST, Stage.CREDENTIALS):
        ended = result(Outcome.NOT_STARTED, errno.ENOENT, stage=stage, detail="\x1b[2J")
        error = file_error(ended, "p")
        assert (type(error), error.errno) == (OSError, errno.EIO), stage
        assert "\x1b" not in str(error)


def test_returncode_is_the_shells() -> None:
    """Status, 128 + signal, or 127 and 126 for what could not start; the bare number stays in
    `code`."""
    for status, code, returncode in (
        (Outcome.EXITED, 0, 0),
        (Outcome.EXITED, 143, 143),
        (Outcome.SIGNALED, 15, 143),
        (Outcome.NOT_STARTED, errno.ENOENT, 127),
        (Outcome.NOT_STARTED, errno.ENOTDIR, 127),
        (Outcome.NOT_STARTED, errno.EACCES, 126),
    ):
        output = output_of(result(status, code), kept=(b"", b""), dropped=(0, 0), is_overdue=False)
        assert (output.returncode, output.code) == (returncode, code), status
        assert output.signalled == (status is Outcome.SIGNALED)
        assert output.not_started_errno == (code if status is Outcome.NOT_STARTED else None)
