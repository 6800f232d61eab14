"""How pytest-xdist hands out tests: a file's stay together, and one that ended its process is not given to the next."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """As `--dist loadfile`, which would run a test that hangs again in every process that takes its file over."""

    def remove_node(self, node: WorkerController) -> str | None:
        """A process ended: what it was running, if anything, is done for; the rest is for others."""
        files = self.assigned_work.pop(node)
        ended = next((str(test) for tests in files.values() for test, done in tests.items() if not done), None)
        if ended is None:
            return None
        for file, tests in files.items():
            if ended in tests:
                tests[ended] = True
            if not all(tests.values()):
                self.workqueue[file] = tests
        for other in self.assigned_work:
            self._reschedule(other)
        return ended
