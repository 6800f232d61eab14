"""Heartbeat timeouts, by a clock that the test turns."""

from __future__ import annotations

from belljar.network.owner.range_state import HeartbeatTimeout


def test_only_time_spent_waiting_counts() -> None:
    """Waits add up, a message resets them, and beyond the timeout it has expired."""
    heartbeat = HeartbeatTimeout(10.0)
    heartbeat.message_received()
    heartbeat.waited(6.0)
    heartbeat.waited(4.0)
    assert not heartbeat.expired
    heartbeat.message_received()
    heartbeat.waited(9.9)
    assert not heartbeat.expired
    heartbeat.waited(0.2)
    assert heartbeat.expired


def test_the_first_message_starts_the_timer() -> None:
    """A process that is still starting has a deadline of its own."""
    heartbeat = HeartbeatTimeout(10.0)
    heartbeat.waited(1000.0)
    assert not heartbeat.expired
