"""The thread that reads a sensor's queue."""

from __future__ import annotations

import os

import pytest

from belljar.isolation.touches import FULL_READ, QueueThread


def test_drain_returns_when_the_queue_is_empty_and_stop_ends_the_thread() -> None:
    """Everything that was there is read by then."""
    source, sink = os.pipe2(os.O_NONBLOCK)
    taken = bytearray()

    def read() -> int:
        try:
            taken.extend(os.read(source, 1))
        except BlockingIOError:
            return 0
        return 1

    thread = QueueThread(lambda: source, read, print)
    thread.start()
    os.write(sink, b"x" * 1000)
    thread.drain()
    assert len(taken) == 1000
    thread.stop()
    os.write(sink, b"x")
    assert len(taken) == 1000
    os.close(source)
    os.close(sink)


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


@pytest.mark.promise("5.6")
def test_a_flood_holds_nobody_up_for_long() -> None:
    """A queue that never empties: `drain` returns after its time, and the thread pauses again."""
    source, sink = os.pipe2(os.O_NONBLOCK)
    floods = True

    def read() -> int:
        return FULL_READ if floods else 0

    thread = QueueThread(lambda: source, read, print, pause_s=0.001)
    thread.start()
    thread.drain(0.05)
    assert not thread.is_draining
    floods = False
    thread.drain()
    thread.stop()
    os.close(source)
    os.close(sink)
