"""Commands for a guest and how they ended; a failed file operation is a builtin error."""

from __future__ import annotations

import errno
import math
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from belljar.capture import Capture, Keep
from belljar.channel import frames
from belljar.channel.frames import Outcome, Result, ResultFlag, Stage, Stream, counted, text_bytes
from belljar.dataclass import dataclass, field
from belljar.units import printable

# Of a failed command's standard error, in the message.
MAX_SHOWN_CHARS: Final = 500
# Switches, timeout in milliseconds, the caps of stdout and stderr, a terminal's rows and columns.
_EXEC_HEAD: Final = struct.Struct("<IQQQHH")


@dataclass(frozen=True, slots=True, kw_only=True)
class PtySize:
    """A terminal's size in characters, each 1 to 65,535."""

    rows: int
    cols: int

    def __post_init__(self) -> None:
        frames.check_size(self.rows, self.cols)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """One command, without a shell. With `env` and paths it has at most 4 MiB.

    Attributes:
        env: exactly these, besides the guest's HOME, USER, LOGNAME and SHELL from passwd.
        cwd: `""` is the user's home.
        user: a name, a uid or `uid:gid`; `""` is root.
        timeout_s: the guest then kills the command's whole tree.
        max_stdout_bytes: more is dropped in the guest and counted; a `pty` sends all as stdout.
        stdin: keep standard input open; else it is empty.
        probe: run the guest agent's own program, as confined as any; else ENOENT.
        alone: end the workload's processes before a `probe`, or fail with EBUSY.
        service: run as process 1 of a PID namespace, which later starts join. Its output
            goes to a file of the cell. It has no `pty`, `stdin` or `probe`.
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


def agent_request(
    argv: Sequence[str],
    user: str,
    **more: Any,  # noqa: ANN401 - as `ExecRequest` has them
) -> ExecRequest:
    """Return a run of the guest agent's own program."""
    return ExecRequest(argv=argv, user=user, cwd="/", stdin=True, probe=True, **more)


def exec_body(request: ExecRequest) -> bytes:
    """Return the request of an exec. Raise `ValueError`."""
    if not request.argv:
        raise ValueError("argv is empty; name the program to run")
    if request.alone and not request.probe:
        raise ValueError("only the probe program is run alone")
    limit_s, pty = request.timeout_s, request.pty
    # Not `<= 0`, which NaN would pass.
    if limit_s is not None and not limit_s > 0:
        raise ValueError(f"a timeout of {limit_s} s; it must be more than 0, or None for none")
    switches = (request.stdin, pty is not None, request.probe, request.alone, request.service)
    head = frames.pack(
        _EXEC_HEAD,
        sum(1 << bit for bit, is_set in enumerate(switches) if is_set),
        # 0 means no timeout: one below a millisecond must not become it.
        0 if limit_s is None else max(1, math.ceil(limit_s * 1000)),
        request.max_stdout_bytes,
        request.max_stderr_bytes,
        *((0, 0) if pty is None else (pty.rows, pty.cols)),
    )
    words = (text_bytes(word, f"argv[{index}]") for index, word in enumerate(request.argv))
    user, cwd = text_bytes(request.user, "user"), text_bytes(request.cwd, "cwd")
    for name in request.env:  # the first `=` ends the name (environ(7))
        if not name or "=" in name:
            raise ValueError(f"{name!r} is not a name for an environment variable")
    variables = (text_bytes(f"{name}={value}", name) for name, value in request.env.items())
    return (
        head
        + counted(user)
        + counted(cwd)
        + frames.counted_list(words)
        + frames.counted_list(variables)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTexts:
    """A command's output so far, and the size of the rest."""

    stdout: bytes = b""
    stderr: bytes = b""
    stdout_dropped_bytes: int = 0
    stderr_dropped_bytes: int = 0

    @property
    def stdout_text(self) -> str:
        """Return `stdout` as UTF-8 with U+FFFD for errors."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """Return `stderr` as UTF-8 with U+FFFD for errors."""
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecOutput(OutputTexts):
    """The end of a command. A failed command is a result, not an error.

    All but `host_limits` is the guest's word.

    Attributes:
        returncode: a shell's: the exit status, or 128 + the signal; 127: command not found,
            126: not executable.
        code: the bare status or signal.
        stdout, stderr: at most what was requested; `*_dropped_bytes` counts the rest.
        timed_out, killed: its tree was killed on timeout, or by the host.
        runs_on, program_ended: a service's program was let go, or ended with this command.
        host_limits: limits that the host saw hit.
        processes_full, disk_full: limits that the guest agent saw hit.
        not_started_errno, stage, detail: why it did not start; `detail` is guest-controlled.
    """

    returncode: int
    code: int
    signalled: bool = False
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

    @property
    def success(self) -> bool:
        """Return True if it ran and ended with status 0."""
        return self.returncode == 0 and not self.timed_out

    def check(self) -> ExecOutput:
        """Return this output. Raise `CommandError` if the command failed."""
        if not self.success:
            raise CommandError(self)
        return self

    @property
    def limits_hit(self) -> tuple[str, ...]:
        """Return what fired of `exec_timeout`, `memory`, `output`, `processes`, `disk`."""
        flags = {
            "exec_timeout": self.timed_out,
            "memory": self.out_of_memory,
            "output": self.output_cap_reached,
            "processes": self.processes_full,
            "disk": self.disk_full,
        }
        fired = (name for name, hit in flags.items() if hit)
        return tuple(dict.fromkeys((*fired, *self.host_limits)))

    @property
    def why_not_started(self) -> str:
        """Return one line. Escape it: the guest controls `detail`."""
        if self.not_started_errno is None:
            return ""
        if (self.stage, self.not_started_errno) == ("user", errno.ENOENT):
            what = "user or group" if ":" in self.detail else "user"
            return f"the image has no {what} `{self.detail}`"
        why = (self.stage, self.detail, os.strerror(self.not_started_errno))
        return ": ".join(part for part in why if part)


class CommandError(Exception):
    """A command did not succeed, raised by `ExecOutput.check` alone."""

    def __init__(self, output: ExecOutput) -> None:
        super().__init__(output)
        self.output = output

    def __str__(self) -> str:
        output = self.output
        ended = "timed out" if output.timed_out else f"ended with status {output.returncode}"
        last = output.why_not_started or output.stderr_text[-MAX_SHOWN_CHARS:].strip()
        return f"the command {ended}: {printable(last, max_chars=MAX_SHOWN_CHARS)}"


class FileTooLargeError(OSError):
    """A guest's file exceeds the read limit (EFBIG)."""

    def __init__(self, path: str, *, max_bytes: int, size_bytes: int) -> None:
        what = f"the file has {size_bytes} bytes or more; {max_bytes} may be read"
        super().__init__(errno.EFBIG, what, path)
        self.max_bytes, self.size_bytes = max_bytes, size_bytes


# A helper that failed in these stages has not looked at the file.
_BEFORE_THE_FILE: Final = frozenset({Stage.USER, Stage.FORK, Stage.REQUEST, Stage.CREDENTIALS})


def captures(keep_bytes: int, keep: Keep = "head") -> Mapping[Stream, Capture]:
    of = (Stream.STDOUT, Stream.STDERR)
    return {each: Capture(max_kept_bytes=keep_bytes, keep=keep, hashed=False) for each in of}


def output_of(result: Result, kept: OutputTexts, *, is_overdue: bool = False) -> ExecOutput:
    code = result.code
    stdout_bytes, stderr_bytes = result.stdout_dropped_bytes, result.stderr_dropped_bytes
    failed = code if result.outcome not in (Outcome.EXITED, Outcome.SIGNALED) else None
    returncode = code + (128 if result.outcome is Outcome.SIGNALED else 0)
    if failed is not None:
        returncode = 127 if code in (errno.ENOENT, errno.ENOTDIR) else 126
    words: dict[str, Any] = {str(flag.name).lower(): flag in result.flags for flag in ResultFlag}
    words["timed_out"] |= is_overdue and words["killed"]
    return ExecOutput(
        returncode=returncode,
        code=code,
        signalled=result.outcome is Outcome.SIGNALED,
        stdout=kept.stdout,
        stderr=kept.stderr,
        stdout_dropped_bytes=kept.stdout_dropped_bytes + stdout_bytes,
        stderr_dropped_bytes=kept.stderr_dropped_bytes + stderr_bytes,
        **words,
        not_started_errno=failed,
        stage=result.stage.name.lower() if result.stage else "",
        detail=result.detail,
        duration_s=result.duration_ns / 1e9,
    )


def file_error(result: Result, path: str) -> OSError:
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
