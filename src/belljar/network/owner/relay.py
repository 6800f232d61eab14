"""Real upstreams' bytes pass through the owner, which counts them against budgets. Thread-safe.

A gateway may be compromised: it gets one end of a pair of sockets, never the connection itself.
"""

from __future__ import annotations

import errno
import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from belljar.plan.network import DIAL_BYTES, UpstreamPlan

PIECE_BYTES: Final = 64 << 10
# To an upstream at a time, each two threads of the owner's; a gateway of ours has eight.
MAX_OPEN: Final = 16


class NotDialledError(ValueError):
    """Nothing was dialled, and nothing recorded yet."""


@dataclass(slots=True)
class _Account:  # A range's bytes on one upstream.
    plan: UpstreamPlan
    spent_bytes: int = 0
    sent_bytes: int = 0
    dialling: int = 0
    relays: list[_UpstreamRelay] = field(default_factory=list)


class RunSpending:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._accounts: dict[tuple[int, str], _Account] = {}
        self._closed: set[int] = set()
        self.numbers = itertools.count(1)  # One for each range of the run.

    @contextmanager
    def dialling(self, number: int, upstream: UpstreamPlan) -> Iterator[None]:
        """Spend `DIAL_BYTES` on the block's dial. Raises `NotDialledError`."""
        with self.lock:
            account = self._accounts.setdefault((number, upstream.host), _Account(upstream))
            if len(account.relays) + account.dialling >= MAX_OPEN:
                raise NotDialledError(f"{MAX_OPEN} connections to the upstream are open")
            if self.left_bytes(account) < DIAL_BYTES:
                is_samples = account.spent_bytes + DIAL_BYTES > upstream.budget_bytes
                whose = "one sample" if is_samples else "the run"
                raise NotDialledError(f"the upstream's budget for {whose} is used up")
            account.spent_bytes += DIAL_BYTES
            account.dialling += 1
        try:
            yield
        finally:
            with self.lock:
                account.dialling -= 1

    def relay(self, number: int, upstream: UpstreamPlan, outer: socket.socket) -> socket.socket:
        """Take over a connection; return the gateway's end. Raises `OSError`."""
        inner, theirs = socket.socketpair()
        try:
            outer.settimeout(None)
            account = self._accounts[number, upstream.host]
            with self.lock:
                if number in self._closed:
                    raise OSError(errno.ECONNABORTED, "the range is over")
                relay = _UpstreamRelay(self, account, inner, outer)
                threading.Thread(target=relay.run, name="upstream-relay", daemon=True).start()
                account.relays.append(relay)
        except BaseException:
            for end in (inner, theirs, outer):
                end.close()
            raise
        return theirs

    def close(self, number: int) -> None:
        """End a range's connections; its bytes stay counted. Idempotent."""
        with self.lock:
            self._closed.add(number)
            for (owner, _), account in self._accounts.items():
                for relay in account.relays if owner == number else ():
                    relay.is_cut = True
                    relay.shut_down()

    def sent_bytes(self, number: int) -> dict[str, int]:
        with self.lock:
            accounts = self._accounts.items()
            return {host: each.sent_bytes for (owner, host), each in accounts if owner == number}

    def spent_bytes(self, host: str) -> int:
        return sum(a.spent_bytes for (_, name), a in self._accounts.items() if name == host)

    def left_bytes(self, account: _Account) -> int:
        """Return the account's remaining budget; the caller holds the lock."""
        plan = account.plan
        of_run = plan.run_budget_bytes - self.spent_bytes(plan.host)
        # Samples may have other budgets for the run: one's may be overspent by the others.
        return max(0, min(plan.budget_bytes - account.spent_bytes, of_run))


class _UpstreamRelay:
    def __init__(
        self, spending: RunSpending, account: _Account, inner: socket.socket, outer: socket.socket
    ) -> None:
        self._spending, self._account = spending, account
        self._inner, self._outer = inner, outer
        self.is_cut = False

    def run(self) -> None:
        # A thread for each direction: an upstream may wait for its reader before it reads on
        answers = threading.Thread(target=self._pass_on, args=(self._outer, self._inner))
        try:
            answers.start()
            self._pass_on(self._inner, self._outer)
            answers.join()
        finally:
            with self._spending.lock:
                self._account.relays.remove(self)
            self._inner.close()
            self._outer.close()

    def _pass_on(self, source: socket.socket, to: socket.socket) -> None:
        is_sent = source is self._inner
        with suppress(OSError):  # one side is gone
            while data := source.recv(PIECE_BYTES):
                with self._spending.lock:  # counted before it passes; less cuts the connection
                    left = 0 if self.is_cut else self._spending.left_bytes(self._account)
                    passed = min(len(data), left)
                    self._account.spent_bytes += passed
                    self._account.sent_bytes += passed * is_sent
                    self.is_cut |= passed < len(data)
                to.sendall(data[:passed])
                if passed < len(data):
                    break
            else:
                if not is_sent:
                    # Not both ways: a gateway must tell an answer's end from a cut
                    to.shutdown(socket.SHUT_WR)
                    return
        self.shut_down()

    def shut_down(self) -> None:
        for end in (self._inner, self._outer):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
