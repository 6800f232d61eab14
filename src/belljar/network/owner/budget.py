"""A range's budgets: recorded bytes, and bytes per upstream."""

from __future__ import annotations

import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from belljar.events import Event, JsonValue, Kind
from belljar.network.ipc import SECRETS
from belljar.plan.network import DIAL_BYTES, UpstreamPlan

# An event's line beside its data, counted generously.
LINE_BYTES: Final = 512
# A body's place in the line, likewise.
BODY_LINE_BYTES: Final = 320
# A body is a file: it takes whole blocks.
BLOCK_BYTES: Final = 4096
MAX_CUT_FIELDS: Final = 32
MAX_CUT_CHARS: Final = 200
MAX_SECRETS_BYTES: Final = 4 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a range has recorded, and may. Pure.

    Events are whole up to `whole_bytes`, then cut down: no body bytes or lists, short texts.
    At `max_bytes` the range ends.
    """

    whole_bytes: int
    max_bytes: int
    spent_bytes: int = 0
    events: int = 0
    cut_events: int = 0

    @classmethod
    def of(cls, recorded_bytes: int) -> Budget:
        """`whole_bytes`, and a quarter more cut down."""
        return cls(whole_bytes=recorded_bytes, max_bytes=recorded_bytes + recorded_bytes // 4)

    def take(self, event: Event) -> tuple[Budget, Event | None]:
        """The new budget and recorded event; None: no room."""
        if not self.cut_events and self.spent_bytes + cost_bytes(event) <= self.whole_bytes:
            return self._with(event, cut=False), event
        small = cut_down(event)
        if self.spent_bytes + cost_bytes(small) > self.max_bytes:
            return self, None
        return self._with(small, cut=True), small

    def _with(self, event: Event, *, cut: bool) -> Budget:
        return replace(
            self,
            spent_bytes=self.spent_bytes + cost_bytes(event),
            events=self.events + 1,
            cut_events=self.cut_events + cut,
        )


def cost_bytes(event: Event) -> int:
    """An upper bound of disk use, bodies included."""
    bodies = sum(
        BODY_LINE_BYTES + -(-len(body.content) // BLOCK_BYTES) * BLOCK_BYTES
        for body in event.bodies
    )
    return LINE_BYTES + len(json.dumps(event.data, separators=(",", ":"))) + bodies


def cut_down(event: Event) -> Event:
    """32 plain fields, texts of 200 characters, no body bytes but the secrets of a connection."""
    data: dict[str, JsonValue] = {}
    for name, value in event.data.items():
        if isinstance(value, list | tuple | Mapping) or len(data) == MAX_CUT_FIELDS:
            continue
        if isinstance(value, str) and len(value) > MAX_CUT_CHARS:
            value = f"{value[:MAX_CUT_CHARS]}…"
        data[name[:MAX_CUT_CHARS]] = value
    # Secrets of a handshake take some 1 KB: no other body passes as one
    is_connection = event.kind is Kind.NETWORK_CONNECTION
    bodies = tuple(
        body
        if is_connection and body.name == SECRETS and len(body.content) <= MAX_SECRETS_BYTES
        else replace(body, content=b"")
        for body in event.bodies
    )
    return replace(event, data={**data, "cut": True}, bodies=bodies)


# A gateway of ours ends a connection earlier (`Bounds.upstream_exchange_s`).
MAX_OPEN_S: Final = 180.0
# What the kernel may have received of a connection before its gateway reads it.
AHEAD_BYTES: Final = 8 << 20
# TCP_ESTABLISHED, and TCP_CLOSE_WAIT: only the other side has ended.
_OPEN_STATES: Final = frozenset({1, 8})
_TCP_INFO: Final = struct.Struct("@B127xQ64xQ")
"""Of `struct tcp_info` (linux/tcp.h): tcpi_state, tcpi_bytes_received, tcpi_bytes_sent."""


class SpentError(ValueError):
    """A budget is used up; the text names it."""


@dataclass(slots=True)
class _Open:
    end: socket.socket
    since_s: float


@dataclass(slots=True)
class _Account:
    plan: UpstreamPlan
    settled_bytes: int = 0
    sent_bytes: int = 0
    dialling: int = 0
    open: list[_Open] = field(default_factory=list)

    def spent_bytes(self) -> int:
        return self.settled_bytes + sum(sum(measure(item.end)[1:]) for item in self.open)

    def set_aside_bytes(self) -> int:
        """The budget, renewed while more may be spent."""
        spent = self.spent_bytes()
        return max(spent, self.plan.budget_bytes) if self.open or self.dialling else spent

    def require_dial(self) -> None:
        """Raise `SpentError` without room for a dial."""
        if self.spent_bytes() + DIAL_BYTES > self.plan.budget_bytes:
            raise SpentError("the upstream's budget for one sample is used up")


class RunSpending:
    """A run's bytes on each real upstream, by the kernel's count. Thread-safe.

    A gateway may be compromised and knows no other range: the owner keeps a second descriptor of
    each connection, adds up what passed, and ends one beyond its budget or time.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._lock, self._now = threading.Lock(), now
        self._accounts: dict[tuple[int, str], _Account] = {}
        self._closed: set[int] = set()
        self._numbers = itertools.count(1)

    def new_range(self) -> int:
        """A number unique to a range in the run."""
        return next(self._numbers)

    @contextmanager
    def dialling(self, number: int, upstream: UpstreamPlan) -> Iterator[None]:
        """Around a dial, which costs `DIAL_BYTES`. Raises `SpentError`."""
        with self._lock:
            account = self._accounts.setdefault((number, upstream.host), _Account(upstream))
            _settle(account, self._now())
            account.dialling += 1  # so that all of the budget is set aside
            try:
                account.require_dial()
                of_host = (a for (_, host), a in self._accounts.items() if host == upstream.host)
                if sum(a.set_aside_bytes() for a in of_host) > account.plan.run_budget_bytes:
                    what = "used up, or set aside for samples that use it now"
                    raise SpentError(f"the upstream's budget for the run is {what}")
            except SpentError:
                account.dialling -= 1
                raise
            account.settled_bytes += DIAL_BYTES
        try:
            yield
        finally:
            with self._lock:
                account.dialling -= 1

    def charge_dial(self, number: int, upstream: UpstreamPlan) -> None:
        """Count another address of a `dialling`. Raises `SpentError`."""
        with self._lock:
            account = self._accounts[number, upstream.host]
            account.require_dial()
            account.settled_bytes += DIAL_BYTES

    def keep(self, number: int, upstream: UpstreamPlan, end: socket.socket) -> None:
        """Watch a connection that is handed over."""
        with self._lock:
            if number in self._closed:
                _shut(end)
                return
            self._accounts[number, upstream.host].open.append(_Open(end.dup(), self._now()))

    def enforce(self, number: int) -> tuple[tuple[UpstreamPlan, str], ...]:
        """End connections beyond budget or time; returns them, with reasons."""
        cut: list[tuple[UpstreamPlan, str]] = []
        with self._lock:
            for account in self._of(number):
                cut += ((account.plan, why) for why in _settle(account, self._now()))
        return tuple(cut)

    def close(self, number: int) -> None:
        """End a range's connections; its bytes stay counted. Idempotent."""
        with self._lock:
            self._closed.add(number)
            for account in self._of(number):
                for item in account.open:
                    _shut(item.end)
                _settle(account, self._now())

    def spent_bytes(self, host: str) -> int:
        """By all ranges of the run until now."""
        with self._lock:
            return sum(
                each.spent_bytes() for (_, name), each in self._accounts.items() if name == host
            )

    def sent_bytes(self, number: int) -> dict[str, int]:
        """Bytes that a range sent to each host, once its connections are closed."""
        with self._lock:
            return {account.plan.host: account.sent_bytes for account in self._of(number)}

    def _of(self, number: int) -> list[_Account]:
        return [account for (owner, _), account in self._accounts.items() if owner == number]


def _settle(account: _Account, now_s: float) -> list[str]:
    cut = []
    is_over = account.spent_bytes() > account.plan.budget_bytes + AHEAD_BYTES
    for item in list(account.open):
        is_late = now_s - item.since_s > MAX_OPEN_S
        if measure(item.end)[0] and (is_over or is_late):
            cut.append(
                "more passed than its budget" if is_over else f"it was open for {MAX_OPEN_S:.0f} s"
            )
            _shut(item.end)
        is_open, sent, received = measure(item.end)
        if not is_open:
            account.settled_bytes += sent + received
            account.sent_bytes += sent
            account.open.remove(item)
            item.end.close()
    return cut


def measure(end: socket.socket) -> tuple[bool, int, int]:
    """Whether our side is open, bytes sent (repeats too) and received. Raises `OSError`."""
    state, received, sent = _TCP_INFO.unpack(
        end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    )
    return state in _OPEN_STATES, sent, received


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
