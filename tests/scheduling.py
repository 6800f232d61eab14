"""How pytest-xdist hands out tests: a file's stay together, and one that ended its process is not
given to the next."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """As `--dist loadfile`, which would run a test that hangs again in every process that takes its
    file over."""

    def schedule(self) -> None:
        """A process begins a test when it knows the next one: one that replaces another gets so
        many files that it does, or would wait for ever."""
        super().schedule()
        for node in self.nodes:
            while (
                self.workqueue
                and not node.shutting_down
                and self._pending_of(self.assigned_work[node]) < 2
            ):
                self._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """A process ended: what it was running, if anything, is done for; the rest is for
        others."""
        files = self.assigned_work.pop(node)
        ended = next(
            (str(test) for tests in files.values() for test, done in tests.items() if not done),
            None,
        )
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
