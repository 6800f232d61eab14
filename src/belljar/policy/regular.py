"""Reading a file that an author names: a regular one, and no more of it than is asked for. Every such file is opened here."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """A descriptor for reading. A pipe or a device is refused without waiting for it. Links are followed: where they may lead is the caller's to check.

    Raises:
        OSError: it can't be opened.
        ValueError: it is no regular file, or its name has a null byte.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is no regular file")
        yield fd
    finally:
        os.close(fd)


def read_regular(path: Path, max_bytes: int) -> bytes:
    """The first `max_bytes` of a regular file: ask for one more than are allowed to see that there are too many. Raises as `open_regular`."""
    with open_regular(path) as fd, open(fd, "rb", closefd=False) as stream:
        return stream.read(max_bytes)
