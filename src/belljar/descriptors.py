"""This process's open-file limit: raised at start; its exhaustion is a `HostError`."""

from __future__ import annotations

import errno
import os
import resource
import stat
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Final, TypeVar

from belljar.errors import HostError, chained

EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})
# They say nothing about the file that was to be opened: after one of them nothing counts as absent.
CANNOT_LOOK: Final = EXHAUSTED | {errno.ENOMEM}
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# Descriptors come free within milliseconds, when a neighbour's call ends.
_PAUSE_S: Final = 0.005
_Found = TypeVar("_Found")
_HINT: Final = (
    "run fewer cells at once, or raise the limit of open files (`ulimit -n`; LimitNOFILE= in a "
    "systemd unit; --ulimit nofile= of a container; the sysctl fs.file-max)"
)


def patiently(look: Callable[[], _Found], within_s: float) -> _Found:
    give_up = time.monotonic() + within_s
    while True:
        try:
            return look()
        except OSError as exc:
            if exc.errno not in CANNOT_LOOK or time.monotonic() >= give_up:
                raise
        time.sleep(_PAUSE_S)


def raise_soft_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A host may forbid it: then fewer ranges fit, which `require_free` reports.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def require_free(count: int) -> None:
    """Raise `HostError` unless this process may open `count` more files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with exhaustion_as_host_error():
        # Counted, not tried: descriptors opened for a trial would be missing elsewhere meanwhile.
        if sum(1 for _ in Path("/proc/self/fd").iterdir()) + count > soft:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def exhaustion(error: BaseException) -> HostError | None:
    if (cause := os_error_below(error, EXHAUSTED)) is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    whose = "the system" if cause.errno == errno.ENFILE else "this process"
    what = f"{whose} has no open files left (of a process: {soft}, at most {hard})"
    return HostError(what, hint=_HINT)


def os_error_below(error: BaseException, numbers: Set[int]) -> OSError | None:
    found = (each for each in chained(error) if isinstance(each, OSError))
    return next((each for each in found if each.errno in numbers), None)


@contextmanager
def exhaustion_as_host_error() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if (found := exhaustion(error)) is not None:
            raise found from error
        raise


@contextmanager
def open_fd(fd: int) -> Iterator[int]:
    """Close it after the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def open_plain_file(path: Path) -> BufferedReader:
    """Open a regular file, no link or blocking pipe. Raises `OSError`."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(0, "it is not a regular file", str(path))
    return file
