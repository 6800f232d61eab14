"""What a range's owner holds of its processes, and what they have reported."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from belljar.network.owner.processes import Child, ForkServer

Answer = Callable[[str, bytes], bytes]
"""Answers a gateway's question (its kind, its body).

Raises `ValueError` to refuse it. Called in threads of the range's own.
"""


class RangeOverError(ValueError):
    """Nothing is put on record of a range that is being destroyed or has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The owner's ends of a range's sockets and its processes.

    `words` is what both wrote on standard error.
    """

    supervisor: Child
    gateway: Child
    control: socket.socket
    events: socket.socket
    words: int
    fork_server: ForkServer


@dataclass(slots=True, kw_only=True)
class Heard:
    """What has been heard of a range."""

    counters: dict[str, int] = field(default_factory=dict)
    certificate: bytes = b""
    answers: queue.SimpleQueue[Mapping[str, Any] | None] = field(default_factory=queue.SimpleQueue)
    """The supervisor's, in the order of the requests; None: there will be no more."""
    milestones: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    """`unshared`, `started`, `ready`; None: there will be no more."""
