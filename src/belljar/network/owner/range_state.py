"""State of one range, shared by its threads."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from belljar.errors import BelljarError, CellError
from belljar.network import ipc
from belljar.network.owner.processes import Child, ForkServer
from belljar.units import printable

_REPLY_TIMEOUT_S: Final = 30.0

# Answers a gateway's request (kind, body); `ValueError` refuses.
RequestHandler = Callable[[str, bytes], bytes]


class RangeOverError(ValueError):
    """A range that has ended records nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeProcesses:
    """A range's processes and the owner's sockets to them."""

    supervisor: Child
    gateway: Child
    control: socket.socket
    events: socket.socket
    stderr: int
    fork_server: ForkServer


@dataclass(slots=True, kw_only=True)
class RangeState:
    """What processes have reported, and the range's `error`."""

    error: BelljarError | None = None
    counters: dict[str, int] = field(default_factory=dict)
    certificate: bytes = b""
    replies: queue.SimpleQueue[Mapping[str, Any] | None] = field(default_factory=queue.SimpleQueue)
    """The supervisor's answers, in order; None ends them."""
    milestones: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    """`unshared`, `started`, `ready`; None ends them."""


class HeartbeatTimeout:
    """Heartbeat timeout of one child process. Pure: the caller passes elapsed time.

    Counts only time spent waiting on the socket: a late parent reads queued messages first, so its
    own delay never expires a healthy child.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        # Nothing expires before the first message: the start has a deadline of its own.
        self._silent_s: float | None = None

    def message_received(self) -> None:
        """Reset the timer; the first message starts it."""
        self._silent_s = 0.0

    def waited(self, duration_s: float) -> None:
        """Add time spent waiting without a message."""
        if self._silent_s is not None:
            self._silent_s += duration_s

    @property
    def expired(self) -> bool:
        """Whether the child was silent beyond the timeout."""
        return self._silent_s is not None and self._silent_s > self.timeout_s


class SupervisorRequests:
    """Requests to a supervisor, one at a time. Thread-safe."""

    def __init__(self, control: socket.socket, state: RangeState, where: str) -> None:
        self._control, self._state, self._where = control, state, where
        self._one_at_a_time = threading.Lock()
        self._last = 0

    def ask(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send it, with copies of the descriptors, and wait until it is done.

        Raises what the range died of; `CellError`: refused, or no reply within 30 s.
        """
        with self._one_at_a_time:
            self._last += 1
            send(self._control, {**message, "id": self._last}, fds)
            reply = self._reply_to(self._last)
        if "refused" in reply:
            what = f"the range's supervisor could not: {printable(str(reply.get('reason')))}"
            raise CellError(what, where=self._where)
        if self._state.error is not None:
            raise self._state.error

    def _reply_to(self, number: int) -> Mapping[str, Any]:
        replies = self._state.replies
        give_up = time.monotonic() + _REPLY_TIMEOUT_S
        while (left_s := give_up - time.monotonic()) > 0:
            try:
                reply = replies.get(timeout=left_s)
            except queue.Empty:
                break
            if reply is None:
                replies.put(None)  # for the next caller
                raise self._state.error or CellError("the range has ended", where=self._where)
            if number in (reply.get("done"), reply.get("refused")):
                return reply
        raise CellError("the range's supervisor does not answer", where=self._where)


def send(end: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send; a dead process is the watch's to report."""
    with suppress(ipc.ClosedError, OSError):
        ipc.send(end, message, fds)
