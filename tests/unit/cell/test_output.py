"""A command's result as the caller sees it."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from belljar.channel import CommandError, ExecOutput
from belljar.channel.frames import Outcome, ResultFlag, Stage
from belljar.channel.messages import Result
from belljar.channel.outcomes import output_of


@pytest.mark.parametrize(
    ("status", "code", "returncode", "signalled"),
    [
        (Outcome.EXITED, 0, 0, False),
        (Outcome.EXITED, 255, 255, False),
        (Outcome.EXITED, 143, 143, False),
        (Outcome.SIGNALED, 15, 143, True),
        (Outcome.NOT_STARTED, errno.ENOENT, 127, False),
        (Outcome.NOT_STARTED, errno.ENOTDIR, 127, False),
        (Outcome.NOT_STARTED, errno.EACCES, 126, False),
        (Outcome.NOT_STARTED, errno.ENOEXEC, 126, False),
        (Outcome.NOT_STARTED, errno.EISDIR, 126, False),
        (Outcome.NOT_STARTED, errno.EMFILE, 126, False),
    ],
)
def test_returncode_is_the_shells(
    status: Outcome, code: int, returncode: int, signalled: bool
) -> None:
    """Status, 128 + signal, or 127 and 126 for what could not start; the bare number stays in
    `code`."""
    result = Result(
        op=1,
        outcome=status,
        flags=ResultFlag(0),
        stage=Stage.NONE,
        code=code,
        stdout_dropped_bytes=0,
        stderr_dropped_bytes=0,
        duration_ns=0,
        detail="",
    )
    output = output_of(result, kept=(b"", b""), dropped=(0, 0), is_overdue=False)
    assert (output.returncode, output.code, output.signalled) == (returncode, code, signalled)
    assert output.not_started_errno == (code if status is Outcome.NOT_STARTED else None)


def test_success_is_a_zero_in_time() -> None:
    """Status 0 of a command that was stopped by its timeout is no success."""
    assert ExecOutput(returncode=0, code=0).success
    assert not ExecOutput(returncode=0, code=0, timed_out=True).success
    assert not ExecOutput(returncode=1, code=1).success


def test_why_it_did_not_start() -> None:
    """One line with the stage and the guest's detail, or the errno's words; nothing for a command
    that ran."""
    missing = ExecOutput(returncode=127, code=errno.ENOENT, not_started_errno=errno.ENOENT)
    assert ExecOutput(returncode=1, code=1, stage="exec", detail="x").why_not_started == ""
    assert replace(missing, stage="fork").why_not_started == "fork: No such file or directory"
    assert missing.why_not_started == "No such file or directory"


@pytest.mark.parametrize(
    ("stage", "code", "detail", "named"),
    [
        ("user", errno.ENOENT, "ann:staff", "user `ann`"),
        ("user", errno.ENOENT, ":staff", "group `staff`"),
        ("user", errno.ENOENT, "what a guest says", "user `ann`"),
        ("cwd", errno.ENOENT, "/x", "directory `/x`"),
        ("cwd", errno.ENOTDIR, "/x", "`/x` is not a directory"),
        ("cwd", errno.EACCES, "/x", "user `ann` can't enter `/x`"),
    ],
)
def test_what_is_missing_is_named(stage: str, code: int, detail: str, named: str) -> None:
    """A user, a group and a directory by name; users and groups by the host's own words."""
    output = ExecOutput(
        returncode=126,
        code=code,
        not_started_errno=code,
        stage=stage,
        detail=detail,
        user="ann:staff",
    )
    assert named in output.why_not_started


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (ExecOutput(returncode=3, code=3, stderr=b"why\x1b[2J\n"), r"status 3: why\\x1b"),
        (ExecOutput(returncode=137, code=9, timed_out=True), "timed out"),
        (
            ExecOutput(returncode=127, code=2, not_started_errno=errno.ENOENT, stage="exec"),
            "did not start",
        ),
    ],
)
def test_check_raises_what_failed(output: ExecOutput, shown: str) -> None:
    """Only a success passes; the error holds the output, and shows the guest's words escaped."""
    with pytest.raises(CommandError, match=shown) as raised:
        output.check()
    assert raised.value.output is output


def test_a_success_is_checked_and_read_as_text() -> None:
    """`check` gives the output itself; text that isn't UTF-8 never raises."""
    output = ExecOutput(returncode=0, code=0, stdout=b"\xffa", stderr="é".encode())
    assert output.check() is output
    assert (output.stdout_text, output.stderr_text) == ("\ufffda", "é")
