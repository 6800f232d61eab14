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
def test_what_is_missing_is_a_result_and_what_is_closed_an_error() -> None:
    """With the status of `docker exec`, and the name of what is missing on standard error, escaped,
    for it comes back from the guest; what may not be run or entered is named, too."""
    for stage, code, detail, status, named in (
        ("user", errno.ENOENT, "ann:staff", 126, "ann"),
        ("user", errno.ENOENT, ":staff", 126, "staff"),
        ("cwd", errno.ENOENT, "/x\x1b[2J", 127, "/x"),
        ("cwd", errno.ENOTDIR, "/x", 126, "/x"),
        ("exec", errno.ENOENT, "prog", 127, "prog"),
    ):
        result = _answered(code, stage, detail)
        assert (result.success, result.returncode, result.stdout) == (False, status, "")
        assert named in result.stderr
        assert "\x1b" not in result.stderr
    for stage, named in (("exec", "prog"), ("cwd", "/x")):
        with pytest.raises(PermissionError, match=named):
            _answered(errno.EACCES, stage, "/x")
