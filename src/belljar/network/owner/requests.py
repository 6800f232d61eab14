"""Requests of a range's owner to its supervisor: one at a time, each with its reply."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from belljar.errors import CellError
from belljar.network import ipc
from belljar.network.owner.watch import Watch
from belljar.units import printable

_REPLY_TIMEOUT_S: Final = 30.0


class Requests:
    """From any thread; `watch` hears the replies."""

    def __init__(self, control: socket.socket, watch: Watch, *, where: str) -> None:
        self._control, self._watch, self._where = control, watch, where
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
            what = f"the range's supervisor could not: {printable(str(reply['reason']))}"
            raise CellError(what, where=self._where)
        if self._watch.error is not None:
            raise self._watch.error

    def _reply_to(self, number: int) -> Mapping[str, Any]:
        replies = self._watch.heard.answers
        give_up = time.monotonic() + _REPLY_TIMEOUT_S
        while (left_s := give_up - time.monotonic()) > 0:
            try:
                reply = replies.get(timeout=left_s)
            except queue.Empty:
                break
            if reply is None:
                replies.put(None)  # for whoever asks next
                raise self._watch.error or CellError("the range has ended", where=self._where)
            if number in (reply.get("done"), reply.get("refused")):
                return reply
        raise CellError("the range's supervisor does not answer", where=self._where)


def send(end: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send it; a process that is gone is noticed, and reported, by the watch."""
    with suppress(ipc.Closed, OSError):
        ipc.send(end, message, fds)
