"""Processes whose first thread has ended: the kernel calls them zombies, and they run on."""

from __future__ import annotations

import pytest
from tests.fakes.guest import EXITED, SIGNALED, STARTED
from tests.fakes.raw_host import EXEC, exec_body
from tests.integration.test_agent_contained import TIMED_OUT, Box, box

pytestmark = pytest.mark.root
__all__ = ["box"]
HEADLESS = """
import ctypes, os, threading, time
if os.fork() == 0:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
time.sleep(1000)
"""


def test_a_zombie_with_living_threads_is_ended_with_its_tree_alone(box: Box) -> None:
    """A time-out ends it at once; before, only the last resort did, which ends every other command
    of the cell too."""
    neighbour = box.wire.start(EXEC, exec_body(["sleep", "2"], timeout_ms=20_000))
    box.wire.expect(STARTED)
    ended = box.exec("python3", "-c", HEADLESS, timeout_ms=1000)
    assert (ended.outcome, ended.flags) == (SIGNALED, TIMED_OUT)
    assert box.wire.finish(neighbour).outcome == EXITED
    assert box.others() == []
