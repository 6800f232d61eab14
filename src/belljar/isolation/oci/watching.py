"""A container's file sensor: marks, and their reader thread."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

import anyio
import anyio.to_thread

from belljar.channel.operations import OwnReads
from belljar.dataclass import dataclass
from belljar.errors import CellError, HostError
from belljar.isolation.oci.marks import (
    Marked,
    Mechanism,
    Seen,
    mark_files,
    mark_from_within,
    read_queue,
)
from belljar.isolation.touches import (
    FULL_READ,
    Access,
    FileWatch,
    OnAccess,
    OnEnd,
    QueueThread,
    ThreadWatch,
)
from belljar.units import printable

_LOST: Final = (
    "more happened than the kernel kept, or this process had no descriptor left: accesses were lost"
)
# TASK_COMM_LEN is 16; what is longer was made up.
_MAX_NAME: Final = 64
# A process that ended meanwhile is taken for the one of the last look: no pid is used again so
# soon.
_SAME_PID_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Process:
    """A process as seen; `is_agent` None: gone too early."""

    name: str = ""
    inner_pid: int | None = None
    is_agent: bool | None = None


_GONE: Final = Process()


class Processes:
    """Processes by host pid; `agent`: the guest agent's."""

    def __init__(self, agent: int) -> None:
        self._agent = _program(agent)
        self._last: tuple[int, float, Process] = (0, 0.0, _GONE)

    def look(self, pid: int, now_s: float) -> Process:
        """What it is, or was a moment ago."""
        found = self._look(pid)
        last_pid, seen_s, last = self._last
        if found.is_agent is None and pid == last_pid and now_s - seen_s < _SAME_PID_S:
            found = last
        self._last = (pid, now_s, found)
        return found

    def _look(self, pid: int) -> Process:
        """Its name first: it may end at any moment."""
        try:
            fd = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return _GONE
        try:
            status = os.read(fd, 4096)
        except OSError:
            return _GONE
        finally:
            os.close(fd)
        name = status.partition(b"\n")[0].removeprefix(b"Name:\t")
        numbers = status.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
        program = _program(pid)
        return Process(
            name=printable(name, max_chars=_MAX_NAME),
            inner_pid=int(numbers[-1]) if numbers else None,
            # Which no workload can run
            is_agent=None if program is None else program == self._agent,
        )


def _program(pid: int) -> tuple[int, int] | None:
    try:
        found = os.stat(f"/proc/{pid}/exe")  # noqa: PTH116 - hundreds a second
    except OSError:
        return None
    return found.st_dev, found.st_ino


class MarkWatch(ThreadWatch):
    """Reads in a thread: processes' names vanish soon."""

    def __init__(self, marked: Marked, processes: Processes, own_reads: OwnReads) -> None:
        self.sensor: str = marked.mechanism
        self.missing: Mapping[str, str] = marked.missing
        self._marked = marked
        self._processes = processes
        thread = QueueThread(lambda: marked.fd, self._read, self.end)
        super().__init__(own_reads, thread)

    def begin(self, on_access: OnAccess, on_end: OnEnd) -> None:
        """As `FileWatch.begin`."""
        super().begin(on_access, on_end)
        self._thread.start()

    def _close(self) -> None:
        super()._close()
        os.close(self._marked.fd)

    def _stop_reading(self) -> None:
        self._thread.stop()

    def _read(self) -> int:
        ended = self.ended_host_reads
        seen = read_queue(self._marked.mechanism, self._marked.fd)
        for one in seen:
            self._take(one)
        self.settle(ended, read=len(seen), is_empty=len(seen) < FULL_READ)
        return len(seen)

    def _take(self, seen: Seen) -> None:
        if seen.file is None:
            self.lost(_LOST)
        path = None if seen.file is None else self._marked.files.get(seen.file)
        process = self._processes.look(seen.pid, time.monotonic()) if seen.pid else _GONE
        if path is None or process.is_agent:
            return
        for operation in seen.operations:
            access = Access(
                path=path, operation=operation, process=process.name, pid=process.inner_pid
            )
            self.offer(access, may_be_hosts=process.is_agent is None)


async def watch_container(
    jail_pid: int | None, paths: Sequence[str], own_reads: OwnReads
) -> FileWatch:
    """Watch a container's files. Raises `HostError`, `CellError`."""
    return await anyio.to_thread.run_sync(_mark_container, jail_pid, paths, own_reads)


def _mark_container(jail_pid: int | None, paths: Sequence[str], own_reads: OwnReads) -> MarkWatch:
    agent = None if jail_pid is None else find_agent(jail_pid)
    if agent is None:
        raise CellError("its files can't be watched: the container has ended")
    try:
        marked = _fanotify(agent, paths)
    except PermissionError:
        marked = _inotify(agent, paths)
    except OSError as error:
        raise _refused("fanotify", error) from error
    try:
        return MarkWatch(marked, Processes(agent), own_reads)
    except BaseException:
        os.close(marked.fd)
        raise


def _fanotify(agent: int, paths: Sequence[str]) -> Marked:
    root = os.open(f"/proc/{agent}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return mark_files("fanotify", root, paths)
    finally:
        os.close(root)


def _inotify(agent: int, paths: Sequence[str]) -> Marked:
    try:
        return mark_from_within(agent, paths)
    except OSError as error:
        raise _refused("inotify", error) from error


def _refused(mechanism: Mechanism, error: OSError) -> HostError:
    counted = "groups" if mechanism == "fanotify" else "instances"
    limits = f"raise the sysctl fs.{mechanism}.max_user_{counted}"
    is_full = error.errno in (errno.EMFILE, errno.ENOSPC)
    what = f"its files can't be watched: {error.strerror}"
    return HostError(what, where=mechanism, hint=limits if is_full else "")


def find_agent(jail_pid: int) -> int | None:
    """The first below the jail with its own mount namespace."""
    try:
        jail = _mounts(jail_pid)
        pid = jail_pid
        for _ in range(8):
            with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:  # noqa: PTH123
                pid = int(file.read(64).split()[0])
            if _mounts(pid) != jail:
                return pid
    except (OSError, ValueError, IndexError):
        pass
    return None


def _mounts(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")  # noqa: PTH115
