"""Ends a container whose netlink and raw sockets hold too much: no control group counts that.

The kernel charges a group for what waits in TCP, UDP and local sockets, in no others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from belljar.dataclass import dataclass
from belljar.process import PROC

# Long beside a look (some 0.1 ms), short beside what a processor fills in it.
_PERIOD_S: Final = 0.1
# The files of proc_pid_net(5), and the base of their numbers; all have it in the fifth column.
_FILES: Final = {"netlink": 10, "raw": 16, "raw6": 16}
_COLUMN: Final = 4
# Of each, some 2,500 sockets: more would take this process's time, and counts as too much.
_MAX_READ_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """`end` is called from any thread."""

    agent: int
    max_bytes: int
    end: Callable[[], None]


_watched: Final = dict[str, Buffers]()
_lock: Final = threading.Lock()


def watch(cell_id: str, buffers: Buffers) -> None:
    """One thread looks at all cells, until `forget`."""
    with _lock:
        is_first = not _watched
        _watched[cell_id] = buffers
        if is_first:
            threading.Thread(target=_look, name="socket-buffers", daemon=True).start()


def forget(cell_id: str) -> None:
    with _lock:
        _watched.pop(cell_id, None)


def held_bytes(agent: int, max_bytes: int) -> int:
    """Return the bytes that wait, or more than `max_bytes`."""
    total = 0
    for name, base in _FILES.items():
        with (
            suppress(OSError, ValueError, IndexError),
            (PROC / f"{agent}/net/{name}").open("rb") as file,
        ):
            listed = file.read(_MAX_READ_BYTES)
            if len(listed) == _MAX_READ_BYTES:
                return max_bytes + 1
            words = (line.split(None, _COLUMN + 1)[_COLUMN] for line in listed.splitlines()[1:])
            total += sum(int(word.rpartition(b":")[2], base) for word in words)
    return total


def _look() -> None:
    while True:
        with _lock:
            if not _watched:  # the next one starts another thread
                return
            cells = tuple(_watched.values())
        for each in cells:
            if held_bytes(each.agent, each.max_bytes) > each.max_bytes:
                each.end()
        time.sleep(_PERIOD_S)
