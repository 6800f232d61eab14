"""What a command in a cell gave back.

Frozen data, made from the channel's outcome by one pure function.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from belljar.channel import ExecOutcome, ExecStatus
from belljar.dataclass import dataclass
from belljar.units import printable

MAX_SHOWN_CHARS: Final = 500
"""Of a failed command's standard error, in the message."""
_CLOSED: Final = frozenset({errno.EACCES, errno.EPERM})


class OutputTexts:
    """The two streams of a command as text."""

    __slots__ = ()
    stdout: bytes
    stderr: bytes

    @property
    def stdout_text(self) -> str:
        """`stdout` as UTF-8; what isn't is replaced by U+FFFD. The guest's word."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """`stderr`, likewise."""
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecOutput(OutputTexts):
    """The result of one command. A command that fails is a result, not an error.

    Attributes:
        returncode: as a shell's: the exit status, or 128 + the signal; 127 when the command was
            not found, 126 when it could not be executed.
        code: the bare status or signal.
        stdout, stderr: at most what was asked for; `*_dropped_bytes` counts the rest.
        runs_on: a service's program that was let go. program_ended: it ended with this command.
        host_limits: limits that the host saw fire meanwhile.
        processes_full, disk_full: the same by the guest agent's report.
        not_started_errno, stage, detail: why it did not start; `detail` is guest-controlled.
        user: to run as.
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
    processes_full: bool = False
    disk_full: bool = False
    runs_on: bool = False
    program_ended: bool = False
    host_limits: tuple[str, ...] = ()
    not_started_errno: int | None = None
    stage: str = ""
    detail: str = ""
    duration_s: float = 0.0
    user: str = ""

    @property
    def success(self) -> bool:
        """Ran, and ended with status 0."""
        return self.returncode == 0 and not self.timed_out

    def check(self) -> ExecOutput:
        """This output, if the command succeeded. Raises `CommandError` otherwise."""
        if not self.success:
            raise CommandError(self)
        return self

    @property
    def limits_hit(self) -> tuple[str, ...]:
        """The names of the limits that fired: `exec_timeout`, `memory`, `output`, `processes`,
        `disk`.

        A process's own limits (open files, EMFILE) are known to it and the kernel alone.
        """
        flags = {
            "exec_timeout": self.timed_out,
            "memory": self.out_of_memory,
            "output": self.output_cap_reached,
            "processes": self.processes_full,
            "disk": self.disk_full,
        }
        return tuple(
            dict.fromkeys((*(name for name, hit in flags.items() if hit), *self.host_limits))
        )

    @property
    def why_not_started(self) -> str:
        """One line for a person, or `""` when the command ran."""
        if self.not_started_errno is None:
            return ""
        return reason_not_started(self.not_started_errno, self.stage, self.detail, user=self.user)


class CommandError(Exception):
    """A command did not succeed, raised by `ExecOutput.check` alone.

    `output` has what it gave back.
    """

    def __init__(self, output: ExecOutput) -> None:
        super().__init__(output)
        self.output = output

    def __str__(self) -> str:
        output = self.output
        ended = f"the command ended with status {output.returncode}"
        if output.timed_out:
            ended = "the command timed out"
        elif output.not_started_errno is not None:
            ended = "the command did not start"
        last = output.why_not_started or output.stderr_text[-MAX_SHOWN_CHARS:].strip()
        return f"{ended}: {printable(last, max_chars=MAX_SHOWN_CHARS)}" if last else ended


def reason_not_started(code: int, stage: str, detail: str, *, user: str) -> str:
    """One line for a person. Escape it where it is shown: `detail` is guest-controlled."""
    name, _, group = user.partition(":")
    if stage == "user" and code == errno.ENOENT:
        return (
            f"the image has no group `{group}`"
            if detail.startswith(":")
            else f"the image has no user `{name}`"
        )
    if stage == "cwd" and code == errno.ENOENT:
        return f"there is no directory `{detail}` in the cell"
    if stage == "cwd" and code == errno.ENOTDIR:
        return f"`{detail}` is not a directory in the cell"
    if stage == "cwd" and code in _CLOSED:
        return f"user `{name or 'root'}` can't enter `{detail}`"
    return ": ".join(part for part in (stage, detail, os.strerror(code)) if part)


def output_of(
    outcome: ExecOutcome, *, user: str = "", host_limits: tuple[str, ...] = ()
) -> ExecOutput:
    """The channel's outcome as the caller sees it, with the limits that the host saw fire.

    `user`: to run as.
    """
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
        out_of_memory=outcome.out_of_memory or "memory" in host_limits,
        output_cap_reached=outcome.output_cap_reached,
        processes_full=outcome.processes_full,
        disk_full=outcome.disk_full,
        runs_on=outcome.runs_on,
        program_ended=outcome.program_ended,
        host_limits=host_limits,
        not_started_errno=None if started else outcome.code,
        stage=outcome.stage_name,
        detail=outcome.detail,
        duration_s=outcome.duration_s,
        user=user,
    )
