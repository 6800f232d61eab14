"""What a command in a cell gave back. Frozen data, made from the channel's outcome by one pure function."""

from __future__ import annotations

import os
from dataclasses import dataclass

from belljar.channel import ExecOutcome, ExecStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecOutput:
    """The result of one command. A command that fails is a result, not an error.

    `returncode` follows the shell: the exit status, 128 + the signal's number, or 127 / 126 when the command was not found / could not be executed
    (then `not_started_errno`, `stage` and `detail` say why: an unknown user, a missing directory, …). `stdout` and `stderr` hold at most what was asked for;
    what was dropped is in `*_dropped_bytes`. `code` is the bare status or signal. `detail` is the guest's word.
    """

    returncode: int
    code: int
    signalled: bool = False
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_dropped_bytes: int = 0
    stderr_dropped_bytes: int = 0
    timed_out: bool = False
    killed: bool = False
    out_of_memory: bool = False
    output_cap_reached: bool = False
    not_started_errno: int | None = None
    stage: str = ""
    detail: str = ""
    duration_s: float = 0.0

    @property
    def success(self) -> bool:
        """Ran, and ended with status 0."""
        return self.returncode == 0 and not self.timed_out

    @property
    def why_not_started(self) -> str:
        """One line for a person, or `""` when the command ran."""
        if self.not_started_errno is None:
            return ""
        # "no such user" says it all; an argument list that is too long does not say so by the program's name.
        reason = "" if self.stage == "user" and self.detail else os.strerror(self.not_started_errno)
        return ": ".join(part for part in (self.stage, self.detail, reason) if part)


def output_of(outcome: ExecOutcome) -> ExecOutput:
    """The channel's outcome as the caller sees it."""
    started = outcome.status is not ExecStatus.NOT_STARTED
    return ExecOutput(
        returncode=outcome.returncode,
        code=outcome.code,
        signalled=outcome.status is ExecStatus.SIGNALED,
        stdout=outcome.stdout,
        stderr=outcome.stderr,
        stdout_dropped_bytes=outcome.stdout_dropped_bytes,
        stderr_dropped_bytes=outcome.stderr_dropped_bytes,
        timed_out=outcome.timed_out,
        killed=outcome.killed,
        out_of_memory=outcome.out_of_memory,
        output_cap_reached=outcome.output_cap_reached,
        not_started_errno=None if started else outcome.code,
        stage=outcome.stage_name,
        detail=outcome.detail,
        duration_s=outcome.duration_s,
    )
