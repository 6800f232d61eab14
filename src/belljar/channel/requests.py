"""Requests to a guest, as frozen data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from belljar.dataclass import dataclass, field


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
