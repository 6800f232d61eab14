"""Requests to a guest and their outcomes, as frozen data.

A failed file operation is the builtin error that it means.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Final

from belljar.channel.frames import Outcome, ResultFlag, Stage
from belljar.channel.messages import Result
from belljar.dataclass import dataclass, field
from belljar.units import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class PtySize:
    """A terminal's size in characters, each 1 to 65,535."""

    rows: int
    cols: int

    def __post_init__(self) -> None:
        if not (1 <= self.rows <= 0xFFFF and 1 <= self.cols <= 0xFFFF):
            raise ValueError(
                f"a terminal of {self.rows} rows and {self.cols} columns; 1 to 65535 are allowed"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """One command.

    Attributes:
        argv: the program and its arguments, as they are: no shell. With `env` and paths at most 4
            MiB.
        env: exactly these, besides HOME, USER, LOGNAME and SHELL, which the guest sets from passwd
            unless given.
        cwd: `""` is the user's home. user: name, uid or `uid:gid`; `""` is root.
        timeout_s: then the command's whole tree is killed in the guest; None is never. At least a
            millisecond.
        max_stdout_bytes: bytes beyond it are dropped in the guest and counted; with a `pty`
            everything is stdout.
        pty: run on a terminal of that size.
        stdin: keep standard input open for what is sent; else it is empty.
        probe: run the guest agent's own probe program instead of one of the image, as this user and
            as confined as any; `argv` is handed to it as it is, and `argv[0]` is not looked for. A
            guest that has none says so: not started, ENOENT.
        alone: with `probe` only. First everything of the workload is ended, every command's
            processes and what they left running; the program starts when none is left, else it is
            not started, EBUSY. While it runs the guest starts nothing else (EAGAIN).
        service: as process 1 of a PID namespace of its own, which what starts meanwhile joins; its
            output goes to a file of the cell. Not with `pty`, `stdin` or `probe`.
    """

    argv: Sequence[str | bytes]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    user: str = ""
    timeout_s: float | None = None
    max_stdout_bytes: int = 10 << 20
    max_stderr_bytes: int = 10 << 20
    pty: PtySize | None = None
    stdin: bool = False
    probe: bool = False
    alone: bool = False
    service: bool = False


class ExecStatus(StrEnum):
    """How a command ended; the meaning of `ExecOutcome.code`."""

    EXITED = "exited"
    SIGNALED = "signaled"
    NOT_STARTED = "not_started"
    IO_FAILED = "io_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecOutcome:
    """How a command ended, as the guest reports.

    A command that fails is a result, not an error.

    Attributes:
        code: the exit status, the signal's number, or the errno, as `status` says.
        stdout: what was kept; empty when the output was streamed to the caller.
        stdout_dropped_bytes: bytes of the stream that are not in `stdout` (nor were streamed).
        timed_out: its time was up and its tree was killed. killed: the host had its tree killed.
        runs_on: `RunningExec.leave` let it go. program_ended: the service's program ended with it.
        processes_full, disk_full: while it ran there were as many processes as there may be, or no
            more room for files.
        stage, detail: where and why it could not start. `detail` is the guest's text: escape it
            where it is shown.
    """

    status: ExecStatus
    code: int
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
    duration_s: float = 0.0
    stage: Stage = Stage.NONE
    detail: str = ""

    @property
    def returncode(self) -> int:
        """As a shell has it: the status, or 128 + the signal.

        127 for a program that isn't there, 126 for one that can't be run.
        """
        match self.status:
            case ExecStatus.EXITED:
                return self.code
            case ExecStatus.SIGNALED:
                return 128 + self.code
            case _:
                return 127 if self.code in (errno.ENOENT, errno.ENOTDIR) else 126

    @property
    def stage_name(self) -> str:
        """`stage` as a word: `user`, `cwd`, `exec`, …; empty when nothing failed."""
        return self.stage.name.lower() if self.stage else ""


class FileTooLarge(OSError):  # noqa: N818 - named as its builtin siblings are
    """A guest's file is larger than what may be read (errno EFBIG).

    Attributes:
        size_bytes: its size as the guest says; for a file that grows or has no size, more than was
            allowed.
        head: the bytes that came, at most what was allowed; may be empty.
    """

    CODE: ClassVar[int] = errno.EFBIG

    def __init__(self, path: str, *, max_bytes: int, size_bytes: int, head: bytes) -> None:
        super().__init__(
            self.CODE, f"the file has {size_bytes} bytes or more; {max_bytes} may be read", path
        )
        self.size_bytes = size_bytes
        self.head = head


_BEFORE_THE_FILE: Final = frozenset({Stage.USER, Stage.FORK, Stage.REQUEST, Stage.CREDENTIALS})


def outcome_of(
    result: Result, *, kept: tuple[bytes, bytes], dropped: tuple[int, int], overdue: bool
) -> ExecOutcome:
    """The guest's RESULT with what the host kept and dropped.

    `overdue`: the host's own deadline had passed.
    """
    return ExecOutcome(
        status=ExecStatus[result.outcome.name],
        code=result.code,
        stdout=kept[0],
        stderr=kept[1],
        stdout_dropped_bytes=result.stdout_dropped_bytes + dropped[0],
        stderr_dropped_bytes=result.stderr_dropped_bytes + dropped[1],
        timed_out=ResultFlag.TIMED_OUT in result.flags
        or (overdue and ResultFlag.KILLED in result.flags),
        killed=ResultFlag.KILLED in result.flags,
        out_of_memory=ResultFlag.OUT_OF_MEMORY in result.flags,
        output_cap_reached=ResultFlag.CAP_REACHED in result.flags,
        processes_full=ResultFlag.PROCESSES_FULL in result.flags,
        disk_full=ResultFlag.DISK_FULL in result.flags,
        runs_on=ResultFlag.RUNS_ON in result.flags,
        program_ended=ResultFlag.PROGRAM_ENDED in result.flags,
        duration_s=result.duration_ns / 1e9,
        stage=result.stage,
        detail=result.detail,
    )


def file_error(result: Result, path: str) -> OSError:
    """The builtin error that the errno means, with the path in it."""
    if result.outcome is Outcome.SIGNALED:
        if ResultFlag.OUT_OF_MEMORY in result.flags:
            return OSError(errno.ENOMEM, "the guest ran out of memory", path)
        return OSError(errno.EIO, "the guest's helper was killed", path)
    detail = f" ({printable(result.detail, max_chars=200)})" if result.detail else ""
    if result.stage in _BEFORE_THE_FILE:
        # The file was not looked at: an unknown user must not read as a missing file.
        why = f"the guest could not begin: {result.stage.name.lower()}: {os.strerror(result.code)}"
        return OSError(errno.EIO, why + detail, path)
    return OSError(result.code, os.strerror(result.code) + detail, path)
