"""What the host sees of a cell's limits while one operation runs in it.

Two operations at once share what was seen: the host can't tell whose it was.
"""

from __future__ import annotations

from belljar.isolation.sandbox import Sandbox


class LimitWatch:
    """Begins with the operation.

    `look` in between catches what is over again before the end: a disk that was full and was
    emptied.
    """

    def __init__(self, live: Sandbox) -> None:
        self._live = live
        self._oom_kills = live.oom_kills()
        self._refused_forks = live.refused_forks()
        self._disk_was_full = live.disk_full()
        self._disk = False
        self._processes_were_full = live.processes_full()
        self._processes = False

    def look(self) -> None:
        """See whether the disk or the process table is full now, if it was not when the operation
        began. Cheap.
        """
        self._disk = self._disk or (not self._disk_was_full and self._live.disk_full())
        self._processes = self._processes or (
            not self._processes_were_full and self._live.processes_full()
        )

    def hit(self) -> tuple[str, ...]:
        """The limits that fired since the beginning."""
        self.look()
        fired = {
            "memory": self._live.oom_kills() > self._oom_kills,
            "processes": self._processes or self._live.refused_forks() > self._refused_forks,
            "disk": self._disk,
        }
        return tuple(name for name, did in fired.items() if did)
