"""Heartbeat timeout of one child process. Pure: the caller passes elapsed time."""

from __future__ import annotations


class HeartbeatTimeout:
    """Counts only time the parent spent waiting on the socket.

    A parent that was late (busy host, slow disk, SIGSTOP) reads queued messages first, so its own
    delay never expires a healthy child.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._silent_s: float | None = None

    def message_received(self) -> None:
        """Reset the timer; the first message starts it."""
        self._silent_s = 0.0

    def waited(self, duration_s: float) -> None:
        """Add time spent waiting.

        Call `message_received` afterwards if something came.
        """
        if self._silent_s is not None:
            self._silent_s += duration_s

    @property
    def expired(self) -> bool:
        """Whether the child sent nothing for longer than the timeout."""
        return self._silent_s is not None and self._silent_s > self.timeout_s
