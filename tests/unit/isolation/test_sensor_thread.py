"""The thread that reads a sensor's queue."""

from __future__ import annotations

import os

from belljar.isolation.touches import QueueThread


def test_an_error_ends_the_thread_and_is_said_once() -> None:
    """Nobody waits for it afterwards."""
    source, sink = os.pipe2(os.O_NONBLOCK)
    errors = list[str]()

    def read() -> int:
        raise OSError(5, "it broke")

    thread = QueueThread(lambda: source, read, errors.append)
    thread.start()
    thread.drain()
    thread.drain()
    thread.stop()
    assert len(errors) == 1
    os.close(source)
    os.close(sink)
