"""A cell's answer in Inspect's words."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from belljar.channel import ExecOutput
from belljar.harness.provider import to_result


def _answered(code: int, stage: str, detail: str) -> Any:  # noqa: ANN401 - Inspect's result of text
    output = ExecOutput(
        returncode=127,
        code=code,
        not_started_errno=code,
        stage=stage,
        detail=detail,
        user="ann:staff",
    )
    return to_result(output, ["prog"], limit_bytes=1000, timeout_s=None)


@pytest.mark.promise("1.6")
@pytest.mark.parametrize(
    ("stage", "code", "detail", "status", "named"),
    [
        ("user", errno.ENOENT, "ann:staff", 126, "ann"),
        ("user", errno.ENOENT, ":staff", 126, "staff"),
        ("cwd", errno.ENOENT, "/x", 127, "/x"),
        ("cwd", errno.ENOTDIR, "/x", 126, "/x"),
        ("exec", errno.ENOENT, "prog", 127, "prog"),
    ],
)
def test_what_is_missing_is_a_result(
    stage: str, code: int, detail: str, status: int, named: str
) -> None:
    """With the status of `docker exec`, and the name of what is missing on standard error."""
    result = _answered(code, stage, detail)
    assert (result.success, result.returncode, result.stdout) == (False, status, "")
    assert named in result.stderr


@pytest.mark.promise("1.6")
@pytest.mark.parametrize(("stage", "named"), [("exec", "prog"), ("cwd", "/x")])
def test_what_is_closed_is_an_error(stage: str, named: str) -> None:
    """A program that may not be run, a directory that may not be entered: `PermissionError` that
    names it."""
    with pytest.raises(PermissionError, match=named):
        _answered(errno.EACCES, stage, "/x")


def test_what_the_guest_says_is_escaped() -> None:
    """A directory's name comes back from the guest."""
    assert "\x1b" not in _answered(errno.ENOENT, "cwd", "/\x1b[2J").stderr
