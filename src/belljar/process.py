"""Processes by identity: a pid with its start time, as pids are reused."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from belljar.dataclass import dataclass
from belljar.descriptors import CANNOT_LOOK, open_fd

PROC: Final = Path("/proc")
# Makes a range's supervisor put every port down and end at once.
PORTS_DOWN: Final = signal.SIGUSR1
# Parents change while they are looked up: a circle must end.
_MAX_GENERATIONS: Final = 32
_DEAD: Final = {"Z", "X"}  # proc_pid_stat(5)
# All that a cell's jail must have of its own.
NAMESPACES: Final = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    pid: int
    start_ticks: int


@cache
def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def raise_if_blind(error: Exception) -> None:
    if isinstance(error, OSError) and error.errno in CANNOT_LOOK:
        raise error


def identify(pid: int) -> ProcessId | None:
    """Return the process that has this number now; None when none has, or a zombie.

    A dead leader whose threads still run counts as alive. Raises `OSError` for want of
    descriptors or memory.
    """
    fields = _stat_fields(pid)
    # proc_pid_stat(5), counted from the state on: 17 is num_threads, 19 is starttime.
    if fields is None or (fields[0] in _DEAD and int(fields[17]) <= 1):
        return None
    return ProcessId(pid=pid, start_ticks=int(fields[19]))


def this_process() -> ProcessId:
    if (own := identify(os.getpid())) is None:
        raise RuntimeError("this process is not in /proc; is /proc mounted?")
    return own


def end_if_forked(owner_pid: int) -> None:
    """End this process at once, if it is a fork of what it would act for.

    A task's `os.fork()` copies the whole evaluation: its child must neither write the record nor
    destroy what its parent runs.
    """
    if os.getpid() != owner_pid:
        with contextlib.suppress(OSError):
            os.write(2, b"belljar: a forked process went on with its parent's run: it is ended\n")
        os._exit(1)


def identify_group(thread: int) -> ProcessId | None:
    try:
        status = (PROC / str(thread) / "status").read_text(errors="replace")
    except OSError as exc:
        raise_if_blind(exc)
        return None
    number = status.partition("\nTgid:")[2].partition("\n")[0].strip()
    return identify(int(number)) if number.isdecimal() else None


def other_pids() -> set[int]:
    """Return the numbers of all processes but this one."""
    return {int(each.name) for each in PROC.iterdir() if each.name.isdigit()} - {os.getpid()}


def is_alive(process: ProcessId) -> bool:
    return identify(process.pid) == process


def descends_from(pid: int, ancestor: int) -> bool:
    """Return True for a descendant through living processes only."""
    for _ in range(_MAX_GENERATIONS):
        if pid == ancestor:
            return True
        fields = _stat_fields(pid)
        if fields is None:
            return False
        pid = int(fields[1])  # ppid
    return False


def cpu_ticks(pid: int) -> int | None:
    fields = _stat_fields(pid)
    # utime and stime; children that were waited for have fields of their own.
    return None if fields is None else int(fields[11]) + int(fields[12])


def namespaces_of(pid: int, names: tuple[str, ...] = NAMESPACES) -> dict[str, int]:
    """Return a process's namespaces by inode number, without unreadable ones."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            # Hundreds of processes, each time a cell ends.
            link = os.readlink(f"/proc/{pid}/ns/{name}")  # noqa: PTH115
            found[name] = int(link.partition("[")[2].rstrip("]"))
    return found


def namespaces_of_threads(pid: int, names: tuple[str, ...]) -> dict[str, int]:
    fields = _stat_fields(pid)
    if fields is None or fields[0] not in _DEAD:
        return namespaces_of(pid, names)
    threads: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # waited for meanwhile: gone
        threads += [int(path.name) for path in (PROC / str(pid) / "task").iterdir()]
    return max((namespaces_of(thread, names) for thread in threads), key=len, default={})


def pin_namespaces(process: ProcessId) -> dict[str, int]:
    """Return descriptors of a living process's namespaces, to be closed; none when it is gone.

    While they are open, the kernel gives a namespace's number to no other.
    """
    pins: dict[str, int] = {}
    for name in NAMESPACES:
        try:
            pins[name] = os.open(f"/proc/{process.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            # Any other error says that it is gone, or another user's: the check below tells.
            if exc.errno in CANNOT_LOOK:
                close_all(pins.values())
                raise
    if not is_alive(process):  # another's, perhaps
        close_all(pins.values())
        return {}
    return pins


def close_all(fds: Iterable[int | None]) -> None:
    for fd in fds:
        if fd is not None:
            os.close(fd)


def kill(process: ProcessId, number: signal.Signals = signal.SIGKILL) -> None:
    """Kill that very process; harmless when it has ended.

    Raises `PermissionError` for another user's, `OSError` for a thread that leads no process.
    """
    with contextlib.suppress(ProcessLookupError), open_fd(os.pidfd_open(process.pid)) as pidfd:
        # The descriptor pins the process that has the number now.
        if is_alive(process):
            signal.pidfd_send_signal(pidfd, number)


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, which may hold anything."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError as exc:
        raise_if_blind(exc)
        return None
    return text.rpartition(")")[2].split()


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


@contextlib.contextmanager
def urgently() -> Iterator[None]:
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        # The lowest real-time priority is already above every ordinary process (sched(7)).
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameter)
