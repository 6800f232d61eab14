"""What a cell's answer is in Inspect's words: results, errors and limits. Pure."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from inspect_ai.util import ExecResult, OutputLimitExceededError

from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.cell import ExecOutput

NOT_FOUND: Final = 127
NOT_RUN: Final = 126
_SIGNAL_BASE: Final = 128


def decode_tail(data: bytes, limit_bytes: int) -> str:
    """UTF-8 with U+FFFD for what isn't, cut at its front so that the text *encodes* to no more than
    `limit_bytes`.

    A broken byte becomes three in the replacement: the cut must come after decoding, or Inspect
    would count too much.
    """
    text = data[-limit_bytes:].decode("utf-8", "replace") if limit_bytes else ""
    encoded = text.encode()
    return text if len(encoded) <= limit_bytes else encoded[-limit_bytes:].decode("utf-8", "ignore")


def exit_status(returncode: int) -> int:
    """A status as a shell gives it: 128 + n for a process that died of signal n."""
    return returncode if returncode >= 0 else _SIGNAL_BASE - returncode


def to_result(
    output: ExecOutput, cmd: list[str], *, limit_bytes: int, timeout_s: float | None
) -> ExecResult[str]:
    """An `ExecOutput` in Inspect's words.

    Raises:
        TimeoutError: it ran out of time; `truncated_output` holds what it had said.
        PermissionError: the file may not be executed, or the directory not entered.
        OutputLimitExceededError: a stream went over the *policy's* output bound. Over Inspect's
            bound alone, the tail
        is kept, as its Docker provider does.
    """
    stdout, stderr = (
        decode_tail(output.stdout, limit_bytes),
        decode_tail(output.stderr, limit_bytes),
    )
    if output.timed_out:
        raise timed_out(timeout_s, stdout + stderr)
    if output.not_started_errno is not None:
        return not_started(output, output.not_started_errno, cmd)
    if output.output_cap_reached:
        raise OutputLimitExceededError(
            limit_str=format_size(limit_bytes), truncated_output=stdout + stderr
        )
    status = exit_status(output.returncode)
    return ExecResult(success=status == 0, returncode=status, stdout=stdout, stderr=stderr)


def timed_out(timeout_s: float | None, partial: str) -> TimeoutError:
    """The error for a command that was killed at its deadline, with what it had said until then."""
    after = f" after {timeout_s:g} seconds" if timeout_s is not None else ""
    error = TimeoutError(f"Command timed out{after}")
    if partial:
        # Inspect's proxy reads this attribute.
        error.truncated_output = partial  # type: ignore[attr-defined]
    return error


def not_started(output: ExecOutput, code: int, cmd: list[str]) -> ExecResult[str]:
    """What Inspect's Docker provider makes of a command that could not be started: a result with
    `docker exec`'s status.

    Raises `PermissionError` where a program may not be executed, or a directory not entered.
    """
    stage, why = output.stage, os.strerror(code)
    if stage in {"user", "cwd"} and code in {errno.ENOENT, errno.ENOTDIR}:
        is_directory_missing = stage == "cwd" and code == errno.ENOENT
        return _failed(
            NOT_FOUND if is_directory_missing else NOT_RUN, printable(output.why_not_started)
        )
    if code in {errno.EACCES, errno.EPERM}:
        if stage == "cwd":
            raise PermissionError(code, f"{why}: {printable(output.why_not_started)}")
        raise PermissionError(code, why, cmd[0] if stage == "exec" and cmd else stage)
    if stage == "exec" and code in {errno.ENOENT, errno.ENOTDIR}:
        return _failed(NOT_FOUND, f"{cmd[0]}: not found")
    return _failed(NOT_RUN, f"{cmd[0] if cmd else ''}: {why}")


def _failed(status: int, text: str) -> ExecResult[str]:
    return ExecResult(success=False, returncode=status, stdout="", stderr=f"{text}\n")


def named(error: OSError, path: str) -> OSError:
    """The same error with the file in it, as the caller named it: an exception of ours may not
    know.
    """
    code = error.errno or errno.EIO
    return type(error)(code, os.strerror(code), path)
